//go:build !race

package drain_test

import (
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// The race detector has several times the memory and the time of what it watches: "make test" runs this without it.

// A pod may have 1.5 MiB, which its author writes.
func TestMemory_OfADrainDoesNotGrowWithPods(t *testing.T) {
	for name, c := range map[string]struct {
		pods, size int
		phase      corev1.PodPhase
	}{
		"110 pods of 1.3 MiB":        {110, 1363149, corev1.PodRunning},
		"300 finished pods of 1 MiB": {300, 1 << 20, corev1.PodSucceeded},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(fatNode(t, c.pods, c.size, c.phase))
			defer server.Close()
			child := exec.CommandContext(t.Context(), os.Args[0])
			child.Env = append(os.Environ(), fatNodeAt+"="+server.URL)
			said, err := child.CombinedOutput()
			if err != nil {
				t.Fatalf("%v: %s", err, said)
			}
			var evicted, kilobytes int
			if _, err := fmt.Sscanf(string(said), "evicted %d VmHWM: %d kB", &evicted, &kilobytes); err != nil || evicted != c.pods {
				t.Fatalf("it says %q: %v", said, err)
			}
			t.Logf("peak: %d MB", kilobytes>>10)
			if text := c.pods * c.size >> 10; kilobytes > text {
				t.Errorf("the process had %d kB at its peak, and the pods have %d", kilobytes, text)
			}
		})
	}
}
