package e2e

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// somewhere is an address of the loopback network that nobody else has.
func somewhere() string {
	return fmt.Sprintf("127.%d.%d.%d:9092", 1+rand.N(254), rand.N(256), 1+rand.N(254))
}

// scrape returns what nth serves at a path.
func scrape(t *testing.T, address, path string) string {
	t.Helper()
	client := http.Client{Timeout: 10 * time.Second}
	answer, err := client.Get("http://" + address + path)
	if err != nil {
		t.Fatalf("asking nth for %s: %v", path, err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		t.Fatalf("asking nth for %s: got %s (%v): %s", path, answer.Status, err, text)
	}
	return string(text)
}

// awaitMetric waits until a line begins so. The journal, by which the end of a drain is known, may hear of it first.
func awaitMetric(t *testing.T, address, line string) {
	t.Helper()
	served := func(context.Context) (bool, error) {
		return strings.Contains(scrape(t, address, "/metrics"), "\n"+line), nil
	}
	if err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, 10*time.Second, true, served); err != nil {
		t.Errorf("nth does not serve %s: %v", line, err)
	}
}

// The original counts above 1, as its metadata service announces something new at each request; here it is one event,
// which is handled once. Its names for what is about the Go runtime were another library's.
func TestPeer19MetricsAreServed(t *testing.T) {
	address := somewhere()
	s := play(t, fmt.Sprintf("[metrics]\nlisten = %q\ncompatible = true\n", address))
	s.imds.SetSpot("terminate", twoMinutes())
	s.waitDrained(t)
	for _, line := range []string{
		`actions_total{node_action="cordon-and-drain",node_status="success"} 1`,
		`actions_total{node_action="pre-drain",node_status="success"} 1`,
		`nth_actions_total{action="drain",outcome="done"} 1`,
		"nth_pods_evicted_total 1",
		"nth_notice_to_cordon_seconds_count 1",
		"nth_draining 0",
		"go_goroutines ", "go_gc_duration_seconds_count ", "go_memstats_alloc_bytes ", "process_resident_memory_bytes ",
	} {
		awaitMetric(t, address, line)
	}
	if said := scrape(t, address, "/healthz"); said != "ok\n" {
		t.Errorf("nth says of its health %q, want ok", said)
	}
	s.nth.Stop(t)
}
