// Package metrics counts what happens, for Prometheus. It listens and never steers: what it is told costs the teller a
// few additions, and where nobody asks for metrics there is no Metrics.
//
// It is told by Hear what happens (hear.go), by Show how things stand (show.go), and by Polled, Renewed and Requested
// what the daemon asks of others (asked.go); nth-queue also tells of its messages and nodes (queue.go). All series are made in one place (series.go); docs/metrics.md lists them,
// and a test compares. Run offers them in two ways, each of which can be had without the other: to whoever scrapes an
// HTTP listener, which also tells whether nth is alive, and nth-queue ready (listener.go, health.go), and in a file that node_exporter reads
// (textfile.go). Neither can fail nth: what is wrong is told, and tried again.
package metrics

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nth-project/nth/pkg/event"
)

// Options say what is offered, and to whom.
type Options struct {
	// Version and Commit are this program's.
	Version, Commit string
	// DryRun tells that nothing is written to the cluster: what is counted as done was only talked about.
	DryRun bool
	// Compatible adds the counters of aws-node-termination-handler, under their names.
	Compatible bool
	// Queue tells that this is nth-queue: it drains many nodes, asks no metadata service, and reads a queue.
	Queue bool
	// Listen is the address to serve HTTP at, as "host:port"; one without a host is every address of the machine, as in Prometheus. "" is none.
	Listen string
	// Textfile is the path of the file for node_exporter; "" is none. Its directory must exist.
	Textfile string
	// Stuck says what has come to a stop that should go on; nil, also as a function, if nothing has.
	Stuck func() error
	// Ready says why the work cannot be done at present although nothing has come to a stop; nil if it can. Without the function nobody
	// is told whether it can.
	Ready func() error
	// Waiting counts the notices that have not been delivered; nil if there are none.
	Waiting func() int
	// LinkLocalExceeded, if set, tells how many packets to the metadata service and its like EC2 has dropped, by interface. It
	// is called for each reading of the series, from several goroutines, and must not take long.
	LinkLocalExceeded func() map[string]uint64
	// Trouble is told why the listener or the file does not work, once for as long as it stays so. It is called from
	// several goroutines.
	Trouble func(error)
}

// kinds are the kinds of events that there can be.
func (o Options) kinds() []event.Kind {
	if o.Queue {
		return event.QueuedKinds()
	}
	return event.Kinds()
}

// Metrics is everything that is counted. Its methods may be called from any goroutine, and do not block.
type Metrics struct {
	opts   Options
	began  time.Time // with its monotonic reading
	pulse  pulse
	series *series
	drains drains
	// own has the series of nth, and process those of the program as such, whose names others in a file would share.
	own, process *prometheus.Registry
	// changed has an element if something has happened since the file was written.
	changed chan struct{}
	// serving and writing are what is wrong with the listener and the file.
	serving, writing trouble
}

// New returns a Metrics that has counted nothing yet.
func New(opts Options) *Metrics {
	m := &Metrics{
		opts: opts, began: time.Now(), changed: make(chan struct{}, 1),
		own: prometheus.NewRegistry(), process: prometheus.NewRegistry(),
	}
	m.serving.tell, m.writing.tell = opts.Trouble, opts.Trouble
	m.pulse.beat()
	m.series = newSeries(m.own, opts, m.healthy)
	m.process.MustRegister(
		// Their new home, the package collectors, is linked with database/sql.
		prometheus.NewGoCollector(),                                       //nolint:staticcheck // See above.
		prometheus.NewProcessCollector(prometheus.ProcessCollectorOpts{}), //nolint:staticcheck // See above.
	)
	return m
}

// Run serves and writes the metrics until ctx ends, and writes the file a last time then.
func (m *Metrics) Run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	if m.opts.Listen != "" {
		running.Go(func() { m.listen(ctx) })
	}
	if m.opts.Textfile != "" {
		running.Go(func() { m.fileUntil(ctx) })
	}
}
