package daemon

import (
	"context"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"
)

// UntilSignal returns a context that ends with the first SIGTERM or SIGINT, which context.Cause names. The next one ends the program at once.
func UntilSignal(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}

// ReportTimeout is how long a program that stops waits for its listeners to report what has happened. All of them need less, unless a disk
// hangs, and that must not keep the program from stopping.
const ReportTimeout = 5 * time.Second

// Within waits up to the limit for a function to return, and reports whether it has. If it has not, it continues in the background.
func Within(limit time.Duration, wait func()) bool {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		wait()
	}()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-ended:
		return true
	case <-timer.C:
		return false
	}
}

// heapGrowth is the default of GOGC: how much garbage may accumulate before it is collected, in percent of the live heap. Go's own
// default is 100 and at least 4 MB, and nth needs half of that.
const heapGrowth = 50

// setGCPercent keeps a daemon's heap small, unless GOGC is set in the environment. A collection takes about a millisecond in nth, and
// its memory is not available to the node's pods. The heap of nth-queue grows with the cluster.
func setGCPercent() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(heapGrowth)
	}
}
