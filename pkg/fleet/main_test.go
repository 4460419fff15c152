package fleet_test

import (
	"os"
	"testing"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

// TestMain keeps client-go from pausing after its errors: the pause is counted from the last one in the process, which
// may have been in another bubble, at another time. The fake's watches panic if more waits to be read than they have room for.
func TestMain(m *testing.M) {
	utilruntime.ErrorHandlers = nil
	watch.DefaultChanSize = 10_000
	os.Exit(m.Run())
}
