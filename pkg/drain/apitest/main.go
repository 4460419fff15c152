package apitest

import (
	"fmt"
	"os"
	"sync"
	"testing"
	"testing/synctest"

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

// Bubble runs a test with an API server in a bubble of its own, in parallel with others: its clock moves when all in it wait, so that an hour
// takes no time and a duration is exact.
func Bubble(t *testing.T, f func(t *testing.T, s *Server)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { f(t, New(t)) })
}

// Run runs a part of a test in a Bubble of its own.
func Run(t *testing.T, name string, f func(t *testing.T, s *Server)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { Bubble(t, f) })
}
