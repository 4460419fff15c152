// Package metrics counts what nth does, for Prometheus. It only observes: a call costs a few additions.
//
// OnTransition counts what happens to events; Polled and Requested count the requests of the daemon (count.go). Show exports the status
// (show.go). newSeries creates all series (series.go); docs/metrics.md lists them, and a test compares. If the options ask for that, Run serves
// the series over HTTP, with health checks, and writes them to a file for node_exporter (serve.go). Neither can make nth fail: Run reports
// errors, and tries again. Start with series.go.
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
	// Listen is the address to serve HTTP at, as "host:port". Without a host it means every address of the machine, as in Prometheus. With
	// "", nothing is served.
	Listen string
	// Textfile is the path of the file for node_exporter, whose directory must exist. With "", no file is written.
	Textfile string
	// Stuck, if set, returns an error if a part of the daemon hangs, other than its main loop; nil if none does.
	Stuck func() error
	// Ready, if set, returns why the daemon cannot do its work at present although nothing hangs; nil if it can. Without Ready, Handler has
	// no /readyz.
	Ready func() error
	// Leader, if set, returns a sentence for the answers to probes: which nth-queue leads.
	Leader func() string
	// Trouble, if set, is called with an error of the listener or the file, once for as long as the error stays the same. Several
	// goroutines call it.
	Trouble func(error)
}

// kinds returns the kinds of events that nth, or nth-queue if Queue is set, can learn of.
func (o Options) kinds() []event.Kind {
	if o.Queue {
		return event.QueuedKinds()
	}
	return event.Kinds()
}

// Metrics has all the series. Its methods may be called from any goroutine, and do not block.
type Metrics struct {
	opts Options
	// lastShow is when the daemon's loop last called Show, on the monotonic clock.
	lastShow atomic.Pointer[time.Time]
	series   *series

	// own has the series of nth. process has those that any Go program has, which are not written to the file: see writeFile.
	own, process *prometheus.Registry

	mu     sync.Mutex
	faults map[string]string // the current errors, by the way to export that has failed: listener or textfile
}

// New returns a Metrics that has counted nothing yet.
func New(opts Options) *Metrics {
	m := &Metrics{
		opts: opts,
		own:  prometheus.NewRegistry(), process: prometheus.NewRegistry(), faults: map[string]string{},
	}
	m.beat() // From now on, the daemon's loop has maxSilence for its first call of Show.
	m.series = newSeries(m.own, opts, m.Healthy)
	m.process.MustRegister(
		// Their new home, the package collectors, is linked with database/sql.
		prometheus.NewGoCollector(),                                       //nolint:staticcheck // See above.
		prometheus.NewProcessCollector(prometheus.ProcessCollectorOpts{}), //nolint:staticcheck // See above.
	)
	return m
}

// Run serves the metrics and writes the file, as far as the options ask for that, until ctx ends. Then it writes the file a last time,
// without a limit of time: a file system that hangs keeps Run from returning.
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

// maxSilence is how long the daemon's loop may go without calling Show before it counts as stuck. The loop calls Show every ten seconds at
// least. systemd's watchdog gives the loop the same time.
const maxSilence = 30 * time.Second

// beat remembers that the daemon's loop is alive now.
func (m *Metrics) beat() {
	now := time.Now()
	m.lastShow.Store(&now)
}

// Healthy returns an error if the daemon's loop hangs, or if Options.Stuck returns one. It is the check of /healthz. An outage of the metadata
// service or the API server is no such error: a restart of nth would not mend that.
func (m *Metrics) Healthy() error {
	if silence := time.Since(*m.lastShow.Load()); silence > maxSilence {
		return fmt.Errorf("the main loop hangs: no progress for %s", silence.Round(time.Second))
	}
	if m.opts.Stuck == nil {
		return nil
	}
	return m.opts.Stuck()
}

// ready returns an error if the daemon cannot do its work now: a part hangs, or Options.Ready says why. It is the check of /readyz, and is
// called only if Options.Ready is set.
func (m *Metrics) ready() error {
	if err := m.Healthy(); err != nil {
		return err
	}
	return m.opts.Ready()
}
