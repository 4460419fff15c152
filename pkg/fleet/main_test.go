package fleet_test

import (
	"os"
	"testing"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
)

// TestMain keeps client-go from pausing after its errors: the pause is counted from the last one in the process, which
// may have been in another bubble, at another time.
func TestMain(m *testing.M) {
	utilruntime.ErrorHandlers = nil
	os.Exit(m.Run())
}
