package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// delayBuckets are for the time from a message's sending to its receipt: a moment, or as long as nobody read the queue.
var delayBuckets = []float64{0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 900}

// queueSeries are what only nth-queue has to say.
type queueSeries struct {
	messages         *prometheus.CounterVec
	inFlight, oldest prometheus.Gauge
	delay            prometheus.Histogram
	up, heard        prometheus.Gauge
	leased           prometheus.Gauge
	nodes            *prometheus.GaugeVec
}

func (m maker) queue() *queueSeries {
	return &queueSeries{
		messages: m.counters("nth_queue_messages_total", "Messages of the queue, by result.", "outcome"),
		inFlight: m.gauge("nth_queue_messages_in_flight", "Messages that are held while their work is done."),
		oldest:   m.gauge("nth_queue_oldest_message_age_seconds", "The age of the oldest of them, since it was sent; 0 if there is none."),
		delay:    m.histogram("nth_queue_receive_delay_seconds", "The time from a message's sending to its first receipt.", delayBuckets),
		up:       m.gauge("nth_queue_up", "1 if the queue could be read when it was last tried."),
		heard:    m.gauge("nth_queue_last_success_timestamp_seconds", "When SQS last answered a receive request."),
		leased:   m.gauge("nth_queue_lease_held", "1 unless this process has no Lease, so that it drains nothing."),
		nodes:    m.gauges("nth_queue_nodes", "Nodes of the cluster that this process drains, that wait in its line, and that there are.", "state"),
	}
}

// QueueStanding is how nth-queue stands.
type QueueStanding struct {
	// InFlight is how many messages are held, and Oldest when the oldest of them was sent; zero if there is none.
	InFlight int
	Oldest   time.Time
	// Up tells whether the queue could be read at the last try, and Heard when it last could; zero if never.
	Up    bool
	Heard time.Time
	// Leased tells that the process is not without its Lease.
	Leased bool
	// Known are the nodes of the cluster; Draining and Waiting are those that this process drains, or is going to.
	Known, Draining, Waiting int
}

// ShowQueue notes how nth-queue stands. Like Show, it is called every few seconds.
func (m *Metrics) ShowQueue(now QueueStanding) {
	q := m.series.queue
	q.inFlight.Set(float64(now.InFlight))
	age := 0.0
	if !now.Oldest.IsZero() {
		age = max(time.Since(now.Oldest), 0).Seconds()
	}
	q.oldest.Set(age)
	q.up.Set(oneIf(now.Up))
	q.leased.Set(oneIf(now.Leased))
	if !now.Heard.IsZero() {
		q.heard.Set(seconds(now.Heard))
	}
	for state, count := range map[string]int{"known": now.Known, "draining": now.Draining, "waiting": now.Waiting} {
		q.nodes.WithLabelValues(state).Set(float64(count))
	}
	m.touch()
}

// Messages counts nothing yet for these outcomes, so that an increase is seen from the first message on.
func (m *Metrics) Messages(outcomes ...string) {
	for _, outcome := range outcomes {
		m.series.queue.messages.WithLabelValues(outcome)
	}
}

// Message counts what became of a message.
func (m *Metrics) Message(outcome string) { m.series.queue.messages.WithLabelValues(outcome).Inc() }

// Received notes how long a message was on its way. One that has come before is not told here.
func (m *Metrics) Received(delay time.Duration) {
	m.series.queue.delay.Observe(max(delay, 0).Seconds())
}
