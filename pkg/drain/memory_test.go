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
	for name, node := range map[string]*fatNode{
		"110 pods of 1.3 MiB":        {pods: 110, size: 1363149, phase: corev1.PodRunning},
		"300 finished pods of 1 MiB": {pods: 300, size: 1 << 20, phase: corev1.PodSucceeded},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(node.serve(t))
			defer server.Close()
			child := exec.CommandContext(t.Context(), os.Args[0])
			child.Env = append(os.Environ(), fatNodeAt+"="+server.URL)
			said, err := child.CombinedOutput()
			if err != nil {
				t.Fatalf("%v: %s", err, said)
			}
			var evicted, kilobytes int
			if _, err := fmt.Sscanf(string(said), "evicted %d VmHWM: %d kB", &evicted, &kilobytes); err != nil || evicted != node.pods {
				t.Fatalf("it says %q: %v", said, err)
			}
			t.Logf("peak: %d MB", kilobytes>>10)
			if text := node.pods * node.size >> 10; kilobytes > text {
				t.Errorf("the process had %d kB at its peak, and the pods have %d", kilobytes, text)
			}
		})
	}
}
