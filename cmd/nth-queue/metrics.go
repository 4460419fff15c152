package main

import (
	"cmp"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/nth-project/nth/cmd/internal/counting"
	"github.com/nth-project/nth/cmd/internal/program"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/fleet"
	"github.com/nth-project/nth/pkg/metrics"
	"github.com/nth-project/nth/pkg/record"
	"github.com/nth-project/nth/pkg/sqs"
	"github.com/nth-project/nth/pkg/systemd"
)

// meter is what counts, where the settings ask for metrics. Where they do not it is nil, and nobody is told anything for
// its sake.
type meter struct {
	*metrics.Metrics
	counts  counting.Counts
	queue   *sqs.Queue
	board   *board
	fleet   *fleet.Fleet
	waiting func() int // notices
}

func newMeter(cfg config.Queue, log *logrus.Entry) *meter {
	if cfg.Metrics.Listen == "" && cfg.Metrics.Textfile == "" {
		return nil
	}
	m := &meter{waiting: func() int { return 0 }}
	version, commit := program.BuildVersion()
	m.Metrics = metrics.New(metrics.Options{
		Version: version, Commit: commit, DryRun: cfg.DryRun, Compatible: cfg.Metrics.Compatible,
		Listen: cfg.Metrics.Listen, Textfile: cfg.Metrics.Textfile, Queue: true,
		Stuck:   func() error { return cmp.Or(m.queue.Stuck(), m.fleet.Leaseless()) },
		Ready:   func() error { return m.board.unready() },
		Waiting: func() int { return m.waiting() },
		Trouble: func(err error) {
			log.WithField(systemd.FieldMessageID, systemd.MetricsTrouble).Warnf("%s; nth-queue continues without metrics, and retries", err)
		},
	})
	m.counts = counting.In(m.Metrics)
	for _, what := range sqs.Whats() {
		m.Messages(string(what))
	}
	return m
}

// judges makes a queue and a fleet what the meter's health is judged by, and a board what tells whether it is ready.
func (m *meter) judges(messages *sqs.Queue, nodes *fleet.Fleet, board *board) {
	if m != nil {
		m.queue, m.fleet, m.board = messages, nodes, board
	}
}

// troubles are why metrics cannot be had at present.
func (m *meter) troubles() []string {
	if m == nil {
		return nil
	}
	return m.Troubles()
}

// counted is where is counted what both programs count.
func (m *meter) counted() counting.Counts {
	if m == nil {
		return counting.Counts{}
	}
	return m.counts
}

// telling counts what becomes of messages, and then lets it be told.
func (m *meter) telling(tell func(sqs.Report)) func(sqs.Report) {
	if m == nil {
		return tell
	}
	return func(r sqs.Report) {
		m.Message(string(r.What))
		if r.What == sqs.Received && r.Receives <= 1 && !r.Sent.IsZero() {
			m.Received(time.Since(r.Sent))
		}
		tell(r)
	}
}

// show notes how things stand.
func (m *meter) show(status record.Status, nodes fleet.Standing, messages sqs.Standing) {
	if m == nil {
		return
	}
	m.Show(status)
	m.ShowQueue(metrics.QueueStanding{
		InFlight: messages.Held, Oldest: messages.Oldest, Up: messages.Up, Heard: messages.Answered,
		Leased: nodes.Leaseless == nil, Known: nodes.Nodes, Draining: nodes.Draining, Waiting: nodes.Waiting,
	})
}
