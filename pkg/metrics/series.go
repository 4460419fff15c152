package metrics

import (
	"runtime"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/state"
)

// The buckets of the histograms, in seconds.
var (
	// A spot notice comes two minutes ahead, and the polls are half a second apart.
	cordonBuckets = []float64{0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120}
	// A drain is over in a second, or takes as long as pods and budgets need.
	drainBuckets = []float64{0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 900, 3600}
	// A message arrives at once, or has waited while nobody read the queue.
	delayBuckets = []float64{0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 900}
)

// series are all metrics of nth but those of the process itself.
type series struct {
	events, actions            *prometheus.CounterVec
	pending, deadline          *prometheus.GaugeVec
	draining, pods, left, held prometheus.Gauge
	evicted, deleted           prometheus.Counter
	drainTook, cordonTook      prometheus.Histogram
	timeLeft                   *prometheus.GaugeVec // what was left until the deadline when a drain ended
	sourceUp, sourceGood       *prometheus.GaugeVec
	imdsRequests, apiRequests  *prometheus.CounterVec
	hookRequests               *prometheus.CounterVec
	credential                 prometheus.Gauge
	notices                    *prometheus.CounterVec
	degraded                   prometheus.Gauge

	// These are nth-queue's, and nil elsewhere.
	messages         *prometheus.CounterVec
	inFlight, oldest prometheus.Gauge
	delay            prometheus.Histogram
	queueUp, leads   prometheus.Gauge
	lastAnswer       prometheus.Gauge
	nodes            *prometheus.GaugeVec
}

// factory makes series and registers them. gauge, counter and histogram make one series. gauges and counters make one for each combination of
// values of the labels.
type factory struct{ promauto.Factory }

func (f factory) gauge(name, help string) prometheus.Gauge {
	return f.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
}

func (f factory) gauges(name, help string, labels ...string) *prometheus.GaugeVec {
	return f.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
}

func (f factory) counter(name, help string) prometheus.Counter {
	return f.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
}

func (f factory) counters(name, help string, labels ...string) *prometheus.CounterVec {
	return f.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
}

func (f factory) histogram(name, help string, buckets []float64) prometheus.Histogram {
	return f.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets})
}

// newSeries creates the series of nth or, if opts.Queue is set, of nth-queue, and registers them in a registry. healthy is the check behind
// nth_healthy.
func newSeries(in *prometheus.Registry, opts Options, healthy func() error) *series {
	f := factory{promauto.With(in)}
	s := &series{
		events:   f.counters("nth_events_total", "Events that were announced.", "kind"),
		pending:  f.gauges("nth_events_pending", "Events that are announced and not over.", "kind"),
		deadline: f.gauges("nth_event_deadline_timestamp_seconds", "The nearest deadline of the pending events, where they have one.", "kind"),
		actions:  f.counters("nth_actions_total", "Completed steps, by result.", "action", "outcome"),

		evicted:    f.counter("nth_pods_evicted_total", "Pods whose eviction the API server has accepted."),
		deleted:    f.counter("nth_pods_deleted_total", "Pods that were deleted, as they would not have terminated before the deadline."),
		drainTook:  f.histogram("nth_drain_duration_seconds", "How long drains took until the node was drained or the time was over.", drainBuckets),
		cordonTook: f.histogram("nth_notice_to_cordon_seconds", "The time from when an event is acted upon to the node's cordon.", cordonBuckets),
		timeLeft:   f.gauges("nth_drain_deadline_remaining_seconds", "What was left of the time when the last drain with a deadline ended.", "kind"),
	}
	s.apiRequests = f.counters("nth_api_requests_total", "Requests to the Kubernetes API server, by the answer's status.", "method", "code")
	s.hookRequests = f.counters("nth_hook_requests_total", "Requests about lifecycle hooks that wait, by what came of them.", "action", "result")
	s.notices = f.counters("nth_notices_total", "Webhook notices by result: delivered or lost.", "outcome")
	s.degraded = f.gauge("nth_degraded", "1 while [log], [webhook] or [metrics] is misconfigured; draining works.")
	if opts.Queue {
		s.addQueue(f)
	} else {
		s.addLocal(f)
	}
	f.constants(opts, healthy)
	s.initialize(opts.kinds())
	return s
}

// addQueue adds the series of nth-queue.
func (s *series) addQueue(f factory) {
	s.messages = f.counters("nth_queue_messages_total", "Messages of the queue, by result.", "outcome")
	s.inFlight = f.gauge("nth_queue_messages_in_flight", "Messages that are held while their work is done.")
	s.oldest = f.gauge("nth_queue_oldest_message_age_seconds", "The age of the oldest of them, since it was sent; 0 if there is none.")
	s.delay = f.histogram("nth_queue_receive_delay_seconds", "The time from a message's sending to its first receipt.", delayBuckets)
	s.queueUp = f.gauge("nth_queue_up", "0 if this process leads, and could not read the queue when it last tried.")
	s.lastAnswer = f.gauge("nth_queue_last_success_timestamp_seconds", "When SQS last answered a receive request.")
	s.leads = f.gauge("nth_queue_leads", "1 while this process leads: it receives messages and drains nodes. 0 while it stands by.")
	s.nodes = f.gauges("nth_queue_nodes", "Nodes of the cluster that this process drains, that wait in its line, and that there are.", "state")
}

// addLocal adds the series of an nth that watches its own machine.
func (s *series) addLocal(f factory) {
	s.draining = f.gauge("nth_draining", "1 while the node is being drained.")
	s.pods = f.gauge("nth_drain_pods", "Pods to evict in the drain under way, or in the last one.")
	s.left = f.gauge("nth_drain_pods_left", "Those of them that are still on the node, or were when the drain ended.")
	s.held = f.gauge("nth_drain_pods_held", "Those of them whose eviction is being refused.")
	s.sourceUp = f.gauges("nth_source_up", "1 if the last poll for events of the kind succeeded.", "kind")
	s.sourceGood = f.gauges("nth_source_last_success_timestamp_seconds", "When the last successful poll for events of the kind was.", "kind")
	s.imdsRequests = f.counters("nth_imds_requests_total", "Requests for documents of the metadata service, by how they ended.", "document", "result")
	s.credential = f.gauge("nth_credential_up", "1 if the API server has accepted the kubelet's credential when it was last used.")
}

// constants creates the series that OnTransition and Show need not update: two constants, and nth_healthy, which calls healthy whenever the
// series are read.
func (f factory) constants(opts Options, healthy func() error) {
	f.gauges("nth_build_info", "1, with what this nth was built from.", "version", "commit", "goversion").
		WithLabelValues(opts.Version, opts.Commit, runtime.Version()).Set(1)
	f.gauge("nth_dry_run", "1 if nothing is written to the cluster, and what is counted was only talked about.").Set(oneIf(opts.DryRun))
	f.NewGaugeFunc(
		prometheus.GaugeOpts{Name: "nth_healthy", Help: "1 unless the main loop or an event source has stalled."},
		func() float64 { return oneIf(healthy() == nil) },
	)
}

// initialize creates the counters that alerts use, at 0. Prometheus sees an increase only if it has read a value before.
func (s *series) initialize(kinds []event.Kind) {
	for _, kind := range kinds {
		s.events.WithLabelValues(string(kind))
	}
	for _, outcome := range []string{delivered, lost} {
		s.notices.WithLabelValues(outcome)
	}
	for _, action := range []string{"cordon", "drain", "uncordon"} {
		for _, outcome := range []state.TransitionKind{state.Done, state.Failed, state.RanOut, state.CalledBack, state.LeftAlone} {
			s.actions.WithLabelValues(action, string(outcome))
		}
	}
}

// oneIf returns a bool as the value of a gauge: 1 for true, 0 for false.
func oneIf(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}
