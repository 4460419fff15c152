package main

import (
	"github.com/sirupsen/logrus"

	"github.com/nth-project/nth/cmd/internal/counting"
	"github.com/nth-project/nth/cmd/internal/program"
	"github.com/nth-project/nth/pkg/agent"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/ena"
	"github.com/nth-project/nth/pkg/imds"
	"github.com/nth-project/nth/pkg/metrics"
	"github.com/nth-project/nth/pkg/record"
	"github.com/nth-project/nth/pkg/systemd"
)

// meter is what counts, where the settings ask for metrics. Where they do not it is nil, and nobody is told anything for
// its sake.
type meter struct {
	*metrics.Metrics
	counts  counting.Counts
	source  agent.Pulse
	waiting func() int // notices
}

func newMeter(cfg config.Config, log *logrus.Entry) *meter {
	if cfg.Metrics.Listen == "" && cfg.Metrics.Textfile == "" {
		return nil
	}
	m := &meter{waiting: func() int { return 0 }}
	version, commit := program.BuildVersion()
	m.Metrics = metrics.New(metrics.Options{
		Version: version, Commit: commit, DryRun: cfg.DryRun, Compatible: cfg.Metrics.Compatible,
		Listen: cfg.Metrics.Listen, Textfile: cfg.Metrics.Textfile, LinkLocalExceeded: ena.NewReader("/").LinkLocalExceeded,
		Stuck:   func() error { return m.source.Stuck() },
		Waiting: func() int { return m.waiting() },
		Trouble: func(err error) {
			log.WithField(systemd.FieldMessageID, systemd.MetricsTrouble).Warnf("%s; nth continues without metrics, and retries", err)
		},
	})
	m.counts = counting.In(m.Metrics)
	return m
}

// join makes the meter one of those who are told, and source what its health is judged by.
func (m *meter) join(n *notices, source agent.Pulse) {
	if m == nil {
		return
	}
	m.source, m.waiting = source, n.waiting
	n.add(m, m.Run)
}

// counted is where is counted what both programs count.
func (m *meter) counted() counting.Counts {
	if m == nil {
		return counting.Counts{}
	}
	return m.counts
}

// troubles are why metrics cannot be had at present.
func (m *meter) troubles() []string {
	if m == nil {
		return nil
	}
	return m.Troubles()
}

// ask has the meter told of each request to the metadata service.
func (m *meter) ask(opts *imds.Options) {
	if m == nil {
		return
	}
	opts.Observe = func(p imds.Poll) { m.Polled(p.Document, string(p.Result), p.Latency) }
	opts.Renewed = m.Renewed
}

// shower is somebody who is shown how things stand.
type shower interface{ Show(record.Status) }

// both shows to the file and to the meter.
func (m *meter) both(file shower) shower {
	if m == nil {
		return file
	}
	return twice{file, m}
}

type twice [2]shower

func (t twice) Show(s record.Status) {
	for _, to := range t {
		to.Show(s)
	}
}
