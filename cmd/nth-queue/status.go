package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/nth-project/nth/cmd/internal/cli"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/fleet"
	"github.com/nth-project/nth/pkg/loop"
	"github.com/nth-project/nth/pkg/metrics"
	"github.com/nth-project/nth/pkg/record"
	"github.com/nth-project/nth/pkg/sqs"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/systemd"
	"github.com/nth-project/nth/pkg/text"
)

// statusReporter shows the status: as the sentence in "systemctl status", as the file for "nth-queue status", and in the metrics. It also feeds the
// service manager's watchdog, unless a receiver of the queue hangs.
type statusReporter struct {
	file     *record.StatusFile
	log      *logrus.Entry
	meter    *metrics.Metrics
	queue    *sqs.Queue
	fleet    interface{ Status() fleet.Status }
	manager  manager
	began    time.Time // when the service began to run with these settings
	cfg      config.Queue
	identity state.IdentityStatus
	process  string // this process's name in the Lease
	degraded []string

	mu      sync.Mutex
	trouble string    // why the queue cannot be read; empty if it can
	since   time.Time // when trouble was set

	stuck bool // the last beat found a receiver that hangs; only the goroutine of run uses it
}

// manager is the service manager.
type manager interface {
	Status(format string, args ...any)
	Beat()
}

// The status is computed every statusPause. The file is written if its sentence has changed, and at every fileEvery-th time.
const (
	statusPause = time.Second
	fileEvery   = 10
)

// run reports the status until ctx ends, and then writes to the file that the process has stopped.
func (b *statusReporter) run(ctx context.Context) {
	last := "" // the sentence of the last status
	for n := 0; ; n++ {
		nodes, messages := b.fleet.Status(), b.queue.Status()
		status := b.status(nodes, messages)
		b.manager.Status("%s", status.Sentence)
		b.meter.Show(status)
		b.meter.ShowQueue(metrics.QueueStatus{
			InFlight: messages.Held, Oldest: messages.Oldest, LastAnswer: messages.Answered,
			Up:    messages.Up || !nodes.Leads, // A process that does not lead reads no messages.
			Leads: nodes.Leads, Known: nodes.Nodes, Draining: nodes.Draining, Waiting: nodes.Waiting,
		})
		if status.Sentence != last || n%fileEvery == 0 {
			b.file.Show(status)
		}
		last = status.Sentence
		b.beat()
		if !loop.Await(ctx, nil, statusPause) {
			status.Stopped = time.Now()
			b.file.Show(status)
			return
		}
	}
}

// beat feeds the watchdog, unless a receiver hangs: then it logs that once, and lets the service manager restart the service.
func (b *statusReporter) beat() {
	err := b.queue.Stalled()
	if err == nil {
		b.manager.Beat()
	} else if !b.stuck {
		b.log.WithField(systemd.FieldMessageID, systemd.SourceTrouble).
			Errorf("all SQS receivers hang: %s; waiting for systemd or the kubelet to restart nth-queue", err)
	}
	b.stuck = err != nil
}

// status returns the status of the process, by those of the fleet and the queue. Its sentence is for "systemctl status".
func (b *statusReporter) status(nodes fleet.Status, messages sqs.Status) state.Status {
	version, _ := cli.BuildVersion()
	b.mu.Lock()
	defer b.mu.Unlock()
	s := state.Status{
		Version: state.StatusVersion, Program: version, PID: os.Getpid(), Started: b.began, Updated: time.Now().Round(0),
		DryRun: b.cfg.DryRun, Identity: b.identity,
		Degraded: slices.Concat(b.degraded, b.meter.Troubles()), Events: nodes.Events, Documents: []state.DocumentStatus{}, Off: []state.OffStatus{},
	}
	switch {
	case !nodes.Known:
		s.Sentence = "waiting for the list of Nodes from the API server"
	case !nodes.Leads && nodes.Leader == "":
		s.Sentence = "standing by; nobody leads"
	case !nodes.Leads:
		s.Sentence = fmt.Sprintf("standing by; %s leads", nodes.Leader)
	case nodes.Draining+nodes.Waiting+nodes.LeftAlone > 0:
		s.Sentence = fmt.Sprintf("draining %s, %d waiting, %d left alone; %s in flight",
			text.Count(nodes.Draining, "node"), nodes.Waiting, nodes.LeftAlone, text.Count(messages.Held, "message"))
	default:
		s.Sentence = fmt.Sprintf("reading the queue for %s; nothing is announced", text.Count(nodes.Nodes, "node"))
	}
	if b.trouble != "" {
		s.Sentence += fmt.Sprintf("; cannot receive messages from the queue since %s", b.since.Format("15:04:05"))
		s.Documents = append(s.Documents, state.DocumentStatus{Kind: "queue", LastGood: messages.Answered.Round(0), Trouble: b.trouble, Since: b.since.Round(0)})
	}
	if why := nodes.LeaseError; why != nil {
		s.Sentence += fmt.Sprintf("; the leader-election Lease cannot be read or written since %s", nodes.Since.Format("15:04:05"))
		s.Documents = append(s.Documents, state.DocumentStatus{Kind: "lease", Trouble: why.Error(), Since: nodes.Since.Round(0)})
	}
	if b.cfg.DryRun {
		s.Sentence += " (dry run)"
		s.Off = append(s.Off, state.OffStatus{What: "writing to the cluster, and deleting messages", Why: "this is a dry run"})
	}
	return s
}

// longestSilence is how old the last answer of SQS may be while nth-queue counts as ready: three times as long as one request waits for messages.
const longestSilence = time.Minute

// unready returns why this process cannot work on messages at present, or could not take over if it does not lead. It returns nil if the process is
// ready. The readiness probe calls it.
func (b *statusReporter) unready() error {
	nodes, answered := b.fleet.Status(), b.queue.Status().Answered
	switch {
	case !nodes.Known:
		return errors.New("no list of Nodes from the API server yet")
	case nodes.LeaseError != nil:
		return fmt.Errorf("nth-queue cannot read or write its leader-election Lease: %w", nodes.LeaseError)
	case !nodes.Leads: // It is ready to lead.
		return nil
	case answered.IsZero():
		return errors.New("SQS has not answered any ReceiveMessage request yet")
	case time.Since(answered) > longestSilence:
		return fmt.Errorf("SQS has not answered any ReceiveMessage request for %s", time.Since(answered).Round(time.Second))
	}
	return nil
}

// leader returns a phrase for operators about the process that leads.
func (b *statusReporter) leader() string {
	switch nodes := b.fleet.Status(); {
	case nodes.Leads:
		return b.process + " leads, which is this process"
	case nodes.Leader == "":
		return "nobody is known to lead"
	default:
		return nodes.Leader + " leads"
	}
}

// receiving notes and logs that the queue cannot be read from now on, because of err, or that it can be read again if err is nil. sqs.Queue calls
// it when that changes.
func (b *statusReporter) receiving(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err == nil {
		b.trouble = ""
		b.log.WithField(systemd.FieldMessageID, systemd.SourceRecovered).Info("receiving messages from the queue again")
		return
	}
	b.trouble, b.since = err.Error(), time.Now()
	b.log.WithField(systemd.FieldMessageID, systemd.SourceTrouble).Warnf("cannot receive messages from the queue: %s; retrying", err)
}
