package daemon

import (
	"context"
	"os"
	"os/signal"
	"runtime/debug"
	"sync"
	"syscall"
	"time"
)

// UntilSignal returns a context that ends with the first SIGTERM or SIGINT. context.Cause names the signal. The next signal ends the program at once.
func UntilSignal(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	context.AfterFunc(ctx, stop) // stop restores the default action of the signals, which is to end the program.
	return ctx, stop
}

// reportTimeout is how long RunWith waits for the background work when the daemon has ended. All work needs less, unless a disk hangs: a disk must not
// keep the program from stopping.
const reportTimeout = 5 * time.Second

// RunWith calls run, which is a daemon, and meanwhile each function of work in a goroutine of its own. Work is, for example, to report what the daemon
// does. The work's context ends after run has returned, so that the end of the daemon is reported, too. RunWith then waits for the work, but not
// longer than reportTimeout.
func RunWith(ctx context.Context, run func(context.Context), work ...func(context.Context)) {
	working, stop := context.WithCancel(context.WithoutCancel(ctx))
	var all sync.WaitGroup
	for _, w := range work {
		all.Go(func() { w(working) })
	}
	run(ctx)
	stop()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		all.Wait()
	}()
	select {
	case <-ended:
	case <-time.After(reportTimeout):
	}
}

// heapGrowth is the default of GOGC: how much garbage may accumulate before it is collected, in percent of the live heap. Go's own
// default is 100 and at least 4 MB, and nth needs half of that. With 40, nth-queue keeps within 128 MB while it drains 1,000 nodes of 5,000.
const heapGrowth = 40

// setGCPercent keeps a daemon's heap small, unless GOGC is set in the environment. The memory of nth is missing to the node's pods, and a garbage
// collection takes about a millisecond. The heap of nth-queue grows with the cluster.
func setGCPercent() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(heapGrowth)
	}
}
