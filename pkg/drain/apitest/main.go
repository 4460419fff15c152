package apitest

import (
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/go-logr/logr/funcr"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/klog/v2"
)

// RunTests runs a package's tests, and fails if client-go said anything by itself meanwhile: what matters is reported in the journal.
func RunTests(m *testing.M) (code int) {
	var mu sync.Mutex
	var said []string
	klog.SetLogger(funcr.New(func(prefix, args string) {
		mu.Lock()
		defer mu.Unlock()
		said = append(said, prefix+" "+args)
	}, funcr.Options{}))
	// The other handler of client-go's counts a millisecond between two errors, of whatever bubble. Their clocks do not agree:
	// it may be years.
	utilruntime.ErrorHandlers = utilruntime.ErrorHandlers[:1]
	code = m.Run()
	mu.Lock()
	defer mu.Unlock()
	if len(said) > 0 {
		fmt.Fprintf(os.Stderr, "FAIL: client-go printed %d lines, the first: %s\n", len(said), said[0])
		code = 1
	}
	return code
}
