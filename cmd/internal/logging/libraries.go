package logging

import (
	"os"
	"sync"
	"sync/atomic"

	"github.com/go-logr/logr/funcr"
	"github.com/sirupsen/logrus"
	"k8s.io/klog/v2"
)

// libraries is where client-go's own words go. klog's logger is set once, as a request that is still under way may be reading it.
var (
	libraries  atomic.Pointer[logrus.Entry]
	setLibrary sync.Once
)

// QuietLibraries sends what client-go logs by itself to the debug level: nth tells its troubles in its own words.
func QuietLibraries(log *logrus.Entry) {
	libraries.Store(log)
	setLibrary.Do(func() {
		klog.SetLogger(funcr.New(func(_, args string) { libraries.Load().Debug(args) }, funcr.Options{}))
	})
}

// HurryLibraries makes client-go give a dead connection to the API server up within ten seconds: a ping after 5 s of
// silence, and 5 s for its answer. It sends all requests over one connection, and would take 45 s, more than a third of
// a spot notice, to notice that a network or a load balancer has lost it. An environment that says otherwise is obeyed.
func HurryLibraries() error {
	for _, limit := range []string{"HTTP2_READ_IDLE_TIMEOUT_SECONDS", "HTTP2_PING_TIMEOUT_SECONDS"} {
		if os.Getenv(limit) != "" {
			continue
		}
		if err := os.Setenv(limit, "5"); err != nil {
			return err
		}
	}
	return nil
}
