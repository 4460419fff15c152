package bench

import (
	"os"
	"strconv"
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
)

// What is measured is said by the Makefile's targets, in the environment. "make e2e" measures nothing.
func TestBench_PrintsWhatWasMeasured(t *testing.T) {
	klog.SetLogger(logr.Discard()) // client-go's words about its watches belong nowhere in the table
	switch what := os.Getenv("NTH_BENCH"); what {
	case "nth":
		measureNth(t, os.Getenv("ONLY"), os.Getenv("BASE"))
	case "poll":
		poll(t, os.Getenv("IMDS"))
	case "compare":
		compare(t)
	case "queue":
		nodes, _ := strconv.Atoi(os.Getenv("NODES")) // 0 is all sizes
		measureQueue(t, nodes)
	case "replay":
		replayTraces(t, os.Getenv("TRACES"), os.Getenv("HISTORIES"))
	default:
		t.Skipf("NTH_BENCH is %q, and not nth, poll, compare, queue or replay", what)
	}
}
