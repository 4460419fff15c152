// Package metrics counts what nth does, for Prometheus. It only observes: a call costs a few additions.
//
// OnTransition counts what happens to events, and Polled and Requested the requests of the daemon (count.go). Show exports the
// status (show.go). newSeries creates all series (series.go); docs/metrics.md lists them, and a test compares. Run exports them over HTTP,
// with health checks, and in a file for node_exporter (serve.go), if the options ask for that. Neither can make nth fail: errors are
// reported, and the attempt is repeated.
package metrics

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nth-project/nth/pkg/event"
)

// Options are the options of a Metrics.
type Options struct {
	// Version and Commit are this program's.
	Version, Commit string
	// DryRun is set if nothing is written to the cluster: what is counted as done was only logged.
	DryRun bool
	// Queue is set for nth-queue: it drains many nodes, uses no metadata service, and reads a queue.
	Queue bool
	// Listen is the address to serve HTTP at, as "host:port"; without a host it means every address of the machine, as in
	// Prometheus. "" is none.
	Listen string
	// Textfile is the path of the file for node_exporter; "" is none. Its directory must exist.
	Textfile string
	// Stuck, if set, returns an error if a part of the daemon hangs, other than its main loop.
	Stuck func() error
	// Ready, if set, returns why the daemon cannot do its work at present although nothing hangs; nil if it can. Without Ready there
	// is no readiness check.
	Ready func() error
	// Leader, if set, returns a sentence for the answers to probes: which nth-queue leads.
	Leader func() string
	// Trouble, if set, is called with an error of the listener or the file: once for as long as the error stays the same. Calls come
	// from several goroutines.
	Trouble func(error)
}

// kinds returns the kinds of events that the program with these options can have.
func (o Options) kinds() []event.Kind {
	if o.Queue {
		return event.QueuedKinds()
	}
	return event.Kinds()
}

// Metrics has all the series. Its methods may be called from any goroutine, and do not block.
type Metrics struct {
	opts Options
	// lastShow is when the daemon's loop has last called Show, on the monotonic clock.
	lastShow atomic.Pointer[time.Time]
	series   *series

	// own has the series of nth, and process those of any Go program, which do not belong in the file.
	own, process *prometheus.Registry

	mu     sync.Mutex
	faults map[string]string // the current errors of the listener and the file
}

// New returns a Metrics that has counted nothing yet.
func New(opts Options) *Metrics {
	m := &Metrics{
		opts: opts,
		own:  prometheus.NewRegistry(), process: prometheus.NewRegistry(), faults: map[string]string{},
	}
	m.beat() // The daemon's loop has maxSilence from now on for its first call of Show.
	m.series = newSeries(m.own, opts, m.healthy)
	m.process.MustRegister(
		// Their new home, the package collectors, is linked with database/sql.
		prometheus.NewGoCollector(),                                       //nolint:staticcheck // See above.
		prometheus.NewProcessCollector(prometheus.ProcessCollectorOpts{}), //nolint:staticcheck // See above.
	)
	return m
}

// Run serves the metrics and writes the file, as far as the options ask for that, until ctx ends. Then it writes the file a last time, which
// takes as long as the disk needs.
func (m *Metrics) Run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	if m.opts.Listen != "" {
		running.Go(func() { m.listen(ctx) })
	}
	if m.opts.Textfile != "" {
		running.Go(func() { m.writeFiles(ctx) })
	}
}

// maxSilence is how long the daemon's loop may go without calling Show before it counts as stuck. It calls Show every ten seconds at least.
// systemd's watchdog gives it the same time.
const maxSilence = 30 * time.Second

// beat remembers that the daemon's loop is alive now.
func (m *Metrics) beat() {
	now := time.Now()
	m.lastShow.Store(&now)
}

// healthy returns an error if the daemon's loop hangs, or a part that Options.Stuck looks at. It is the check of /healthz. An outage of the
// metadata service or the API server is no such error: nth does all that it can meanwhile.
func (m *Metrics) healthy() error {
	if silence := time.Since(*m.lastShow.Load()); silence > maxSilence {
		return fmt.Errorf("the loop that decides has given no sign of life for %s", silence.Round(time.Second))
	}
	if m.opts.Stuck == nil {
		return nil
	}
	return m.opts.Stuck()
}

// ready returns an error if the daemon cannot do its work now: a part hangs, or Options.Ready says why. It is the check of /readyz, which
// there is only with Options.Ready.
func (m *Metrics) ready() error {
	if err := m.healthy(); err != nil {
		return err
	}
	return m.opts.Ready()
}
