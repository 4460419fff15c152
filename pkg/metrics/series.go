package metrics

import (
	"runtime"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/record"
)

// The buckets of the histograms, in seconds.
var (
	// A notice gives two minutes, and the polls come every half second.
	cordonBuckets = []float64{0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120}
	// A drain is over in a second, or takes as long as pods and budgets need.
	drainBuckets = []float64{0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 900, 3600}
	// The metadata service answers in milliseconds. One that is slow is waited for.
	imdsBuckets = []float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 1, 2, 5, 15}
)

// series are all that nth has to say, but for what is read from the process itself.
type series struct {
	events, actions               *prometheus.CounterVec
	pending, deadline             *prometheus.GaugeVec
	draining, pods, left, held    prometheus.Gauge
	evicted, deleted              prometheus.Counter
	drainTook, cordonTook         prometheus.Histogram
	spare                         *prometheus.GaugeVec
	sourceUp, sourceGood          *prometheus.GaugeVec
	imdsRequests, imdsTokens      *prometheus.CounterVec
	imdsTook                      prometheus.Histogram
	apiRequests, hookRequests     *prometheus.CounterVec
	credential                    prometheus.Gauge
	notices                       *prometheus.CounterVec
	eventsDropped                 prometheus.Counter
	degraded                      prometheus.Gauge
	peerActions, peerEventsErrors *prometheus.CounterVec // nil unless they are wanted
	queue                         *queueSeries           // nil but for nth-queue
}

// maker makes series and registers them.
type maker struct{ in *prometheus.Registry }

func (m maker) gauge(name, help string) prometheus.Gauge {
	g := prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	m.in.MustRegister(g)
	return g
}

func (m maker) gauges(name, help string, labels ...string) *prometheus.GaugeVec {
	g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
	m.in.MustRegister(g)
	return g
}

func (m maker) counter(name, help string) prometheus.Counter {
	c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	m.in.MustRegister(c)
	return c
}

func (m maker) counters(name, help string, labels ...string) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	m.in.MustRegister(c)
	return c
}

func (m maker) histogram(name, help string, buckets []float64) prometheus.Histogram {
	h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets})
	m.in.MustRegister(h)
	return h
}

func newSeries(in *prometheus.Registry, opts Options, healthy func() error) *series {
	m := maker{in}
	s := &series{
		events:   m.counters("nth_events_total", "Events that were announced.", "kind"),
		pending:  m.gauges("nth_events_pending", "Events that are announced and not over.", "kind"),
		deadline: m.gauges("nth_event_deadline_timestamp_seconds", "The nearest deadline of the pending events, where they have one.", "kind"),
		actions:  m.counters("nth_actions_total", "Completed steps, by result.", "action", "outcome"),

		draining:   m.gauge("nth_draining", "1 while the node is being drained; for nth-queue, how many nodes are."),
		pods:       m.gauge("nth_drain_pods", "Pods to evict in the drains under way, or in the last one."),
		left:       m.gauge("nth_drain_pods_left", "Those of them that are still on the node, or were when the drain ended."),
		held:       m.gauge("nth_drain_pods_held", "Those of them whose eviction is being refused."),
		evicted:    m.counter("nth_pods_evicted_total", "Pods whose eviction the API server has accepted."),
		deleted:    m.counter("nth_pods_deleted_total", "Pods that could not be evicted in time and were deleted."),
		drainTook:  m.histogram("nth_drain_duration_seconds", "How long drains took until the node was drained or the time was over.", drainBuckets),
		cordonTook: m.histogram("nth_notice_to_cordon_seconds", "The time from an event's announcement to the node's cordon.", cordonBuckets),
		spare:      m.gauges("nth_drain_deadline_remaining_seconds", "What was left of the time when the last drain with a deadline ended.", "kind"),
	}
	s.apiRequests = m.counters("nth_api_requests_total", "Requests to the Kubernetes API server, by the answer's status.", "method", "code")
	s.hookRequests = m.counters("nth_hook_requests_total", "Requests about lifecycle hooks that wait, by what came of them.", "action", "result")
	s.notices = m.counters("nth_notices_total", "Webhook notices by result: delivered or lost.", "outcome")
	s.eventsDropped = m.counter("nth_kubernetes_events_dropped_total", "Events for the cluster that could not be written in time and were dropped.")
	s.degraded = m.gauge("nth_degraded", "1 while [log], [webhook] or [metrics] is misconfigured; draining works.")
	if opts.Queue {
		s.queue = m.queue()
	} else {
		s.local(m)
		if opts.LinkLocalExceeded != nil {
			in.MustRegister(linkLocal(opts.LinkLocalExceeded))
		}
	}
	m.standing(opts, healthy)
	if opts.Compatible {
		s.peerActions = m.counters("actions_total", "Actions, as aws-node-termination-handler counts them.", "node_action", "node_status")
		s.peerEventsErrors = m.counters("events_error_total", "Failed looks for events, as aws-node-termination-handler counts them.", "event_error_where")
	}
	s.begin(opts.kinds())
	return s
}

// local makes the series of an nth that watches its own machine.
func (s *series) local(m maker) {
	s.sourceUp = m.gauges("nth_source_up", "1 if the last poll for events of the kind succeeded.", "kind")
	s.sourceGood = m.gauges("nth_source_last_success_timestamp_seconds", "When the last successful poll for events of the kind was.", "kind")

	s.imdsRequests = m.counters("nth_imds_requests_total", "Requests for documents of the metadata service, by how they ended.", "document", "result")
	s.imdsTokens = m.counters("nth_imds_token_requests_total", "Requests for session tokens of the metadata service.", "result")
	s.imdsTook = m.histogram("nth_imds_request_duration_seconds", "How long requests for documents took, tokens included.", imdsBuckets)

	s.credential = m.gauge("nth_credential_up", "1 if the API server has accepted the kubelet's credential when it was last used.")
}

// linkLocal has what is read from the network's driver when the series are.
type linkLocal func() map[string]uint64

var linkLocalDesc = prometheus.NewDesc("nth_ena_linklocal_allowance_exceeded_total",
	"Packets to the metadata service, DNS and the time service that EC2 has dropped, as there were too many.", []string{"interface"}, nil)

// Describe implements prometheus.Collector.
func (linkLocal) Describe(to chan<- *prometheus.Desc) { to <- linkLocalDesc }

// Collect implements prometheus.Collector. Where nothing is read, there is no series.
func (l linkLocal) Collect(to chan<- prometheus.Metric) {
	for name, count := range l() {
		if metric, err := prometheus.NewConstMetric(linkLocalDesc, prometheus.CounterValue, float64(count), name); err == nil {
			to <- metric
		}
	}
}

// standing makes the series that need not be kept.
func (m maker) standing(opts Options, healthy func() error) {
	m.gauges("nth_build_info", "1, with what this nth was built from.", "version", "commit", "goversion").
		WithLabelValues(opts.Version, opts.Commit, runtime.Version()).Set(1)
	m.gauge("nth_dry_run", "1 if nothing is written to the cluster, and what is counted was only talked about.").Set(oneIf(opts.DryRun))
	m.in.MustRegister(prometheus.NewGaugeFunc(
		prometheus.GaugeOpts{Name: "nth_healthy", Help: "1 unless the main loop or an event source has stalled."},
		func() float64 { return oneIf(healthy() == nil) },
	))
	m.in.MustRegister(prometheus.NewGaugeFunc(
		prometheus.GaugeOpts{Name: "nth_notices_waiting", Help: "Notices for the webhook that have not been delivered yet."},
		func() float64 {
			if opts.Waiting == nil {
				return 0
			}
			return float64(opts.Waiting())
		},
	))
}

// begin gives the counters that alerts look at their zero: an increase is seen from there only.
func (s *series) begin(kinds []event.Kind) {
	for _, kind := range kinds {
		s.events.WithLabelValues(string(kind))
		s.pending.WithLabelValues(string(kind))
	}
	for _, outcome := range []string{delivered, lost} {
		s.notices.WithLabelValues(outcome)
	}
	for _, action := range []string{"cordon", "drain", "uncordon"} {
		for _, outcome := range []record.What{record.Done, record.Failed, record.RanOut, record.CalledBack, record.LeftAlone} {
			s.actions.WithLabelValues(action, string(outcome))
		}
	}
}

func oneIf(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}
