package e2e

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/systemd"
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
		has := func() bool { return strings.Contains(scrape(t, address, "/metrics"), "\n"+line) }
		for limit := time.Now().Add(time.Minute); !has(); time.Sleep(10 * time.Millisecond) { // They are counted once the journal has it.
			if time.Now().After(limit) {
				t.Fatalf("nth does not serve %s", line)
			}
		}
	}
	if said := scrape(t, address, "/healthz"); said != "ok\n" {
		t.Errorf("nth says of its health %q, want ok", said)
	}
	s.nth.Stop(t)
}

func TestMetricsThatCannotBeShownDoNotHoldADrain(t *testing.T) {
	address := somewhere()
	occupant, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer occupant.Close()
	s := play(t, fmt.Sprintf("[metrics]\nlisten = %q\ntextfile = %q\n", address, filepath.Join(t.TempDir(), "not there", "nth.prom")))
	s.nth.WaitSays(t, "address already in use; nth continues without metrics")
	s.nth.WaitSays(t, "no such file or directory; nth continues without metrics")
	s.imds.SetSpot("terminate", twoMinutes())
	s.waitDrained(t)
	if told := len(s.nth.Logged(systemd.MetricsTrouble)); told != 2 {
		t.Errorf("nth has said %d times that it cannot show its metrics, want once for each way", told)
	}

	if err := occupant.Close(); err != nil {
		t.Fatal(err)
	}
	limit := time.After(time.Minute)
	for {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			conn.Close()
			break
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-limit:
			t.Fatalf("nth does not listen at the address that is free now: %v", err)
		}
	}
	if text := scrape(t, address, "/metrics"); !strings.Contains(text, `nth_actions_total{action="drain",outcome="done"} 1`) {
		t.Error("nth does not serve what it has counted meanwhile")
	}
}
