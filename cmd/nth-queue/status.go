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

// statusReporter keeps the status current: the sentence in "systemctl status", the file for "nth-queue status", and the metrics. It feeds the
// watchdog of the service manager as long as the queue is being read.
type statusReporter struct {
	file     *record.StatusFile
	log      *logrus.Entry
	meter    *metrics.Metrics
	queue    *sqs.Queue
	fleet    interface{ Status() fleet.Status }
	manager  manager
	began    time.Time
	cfg      config.Queue
	identity state.IdentityStatus
	process  string // this process's name in the Lease
	degraded []string

	mu      sync.Mutex
	trouble string // why the queue cannot be read; empty if it can
	since   time.Time

	stuck bool // The last beat found a receiver that hangs. Only run uses this.
}

// manager is the service manager.
type manager interface {
	Status(format string, args ...any)
	Beat()
}

// glance is the time between two computations of the status. An unchanged status is written at every tenth of them.
const glance, refresh = time.Second, 10

// run reports the status until ctx ends, and then that the process has stopped.
func (b *statusReporter) run(ctx context.Context) {
	last := ""
	for n := 0; ; n++ {
		status, nodes, messages := b.status(), b.fleet.Status(), b.queue.Status()
		b.manager.Status("%s", status.Sentence)
		b.meter.Show(status)
		b.meter.ShowQueue(metrics.QueueStatus{
			InFlight: messages.Held, Oldest: messages.Oldest, LastAnswer: messages.Answered,
			Up:    messages.Up || !nodes.Leads, // A process that does not lead reads no messages.
			Leads: nodes.Leads, Known: nodes.Nodes, Draining: nodes.Draining, Waiting: nodes.Waiting,
		})
		if status.Sentence != last || n%refresh == 0 {
			b.file.Show(status)
		}
		last = status.Sentence
		b.beat()
		if !loop.Await(ctx, nil, glance) {
			status.Stopped = time.Now()
			b.file.Show(status)
			return
		}
	}
}

// beat feeds the watchdog, unless a receiver hangs: then the service manager is to restart the service.
func (b *statusReporter) beat() {
	err := b.queue.Stalled()
	if err == nil {
		b.manager.Beat()
	} else if !b.stuck {
		b.log.WithField(systemd.FieldMessageID, systemd.SourceTrouble).WithError(err).
			Error("receiving from the queue stalled; waiting for the service manager to restart nth-queue")
	}
	b.stuck = err != nil
}

// status returns the present status, with a sentence for "systemctl status".
func (b *statusReporter) status() state.Status {
	fleet, held := b.fleet.Status(), b.queue.Status().Held
	version, _ := cli.BuildVersion()
	b.mu.Lock()
	defer b.mu.Unlock()
	s := state.Status{
		Version: state.StatusVersion, Program: version, PID: os.Getpid(), Started: b.began, Updated: time.Now().Round(0),
		DryRun: b.cfg.DryRun, Identity: b.identity,
		Degraded: slices.Concat(b.degraded, b.meter.Troubles()), Events: fleet.Events, Documents: []state.DocumentStatus{}, Off: []state.OffStatus{},
	}
	switch {
	case !fleet.Known:
		s.Sentence = "waiting for the list of Nodes from the API server"
	case !fleet.Leads && fleet.Leader == "":
		s.Sentence = "standing by; nobody leads"
	case !fleet.Leads:
		s.Sentence = fmt.Sprintf("standing by; %s leads", fleet.Leader)
	case fleet.Draining+fleet.Waiting+fleet.LeftAlone > 0:
		s.Sentence = fmt.Sprintf("draining %s, %d waiting, %d left alone; %s in flight",
			text.Count(fleet.Draining, "node"), fleet.Waiting, fleet.LeftAlone, text.Count(held, "message"))
	default:
		s.Sentence = fmt.Sprintf("reading the queue for %s; nothing is announced", text.Count(fleet.Nodes, "node"))
	}
	if b.trouble != "" {
		s.Sentence += fmt.Sprintf("; cannot receive from the queue since %s", b.since.Format("15:04:05"))
		s.Documents = append(s.Documents, state.DocumentStatus{Kind: "queue", Trouble: b.trouble, Since: b.since.Round(0)})
	}
	if why := fleet.LeaseError; why != nil {
		s.Sentence += fmt.Sprintf("; the Lease cannot be read or written since %s", fleet.Since.Format("15:04:05"))
		s.Documents = append(s.Documents, state.DocumentStatus{Kind: "lease", Trouble: why.Error(), Since: fleet.Since.Round(0)})
	}
	if b.cfg.DryRun {
		s.Sentence += " (dry run)"
		s.Off = append(s.Off, state.OffStatus{What: "writing to the cluster, and deleting messages", Why: "this is a dry run"})
	}
	return s
}

// longestSilence is how long ago SQS may have answered last for nth-queue to be ready: three times as long as it waits for messages.
const longestSilence = time.Minute

// unready returns why messages cannot be worked on at present, or could not be if this process led; nil if they can.
func (b *statusReporter) unready() error {
	fleet, answered := b.fleet.Status(), b.queue.Status().Answered
	switch {
	case !fleet.Known:
		return errors.New("no list of Nodes from the API server yet")
	case fleet.LeaseError != nil:
		return fmt.Errorf("the Lease cannot be read or written: %w", fleet.LeaseError)
	case !fleet.Leads: // It is ready to lead.
		return nil
	case answered.IsZero():
		return errors.New("nothing was received from the queue yet")
	case time.Since(answered) > longestSilence:
		return fmt.Errorf("nothing was received from the queue for %s", time.Since(answered).Round(time.Second))
	}
	return nil
}

// leader says which process leads, for operators.
func (b *statusReporter) leader() string {
	switch fleet := b.fleet.Status(); {
	case fleet.Leads:
		return b.process + " leads, which is this process"
	case fleet.Leader == "":
		return "nobody is known to lead"
	default:
		return fleet.Leader + " leads"
	}
}

// receiving sets why the queue cannot be read, from now on; nil if it can. It logs that.
func (b *statusReporter) receiving(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err == nil {
		b.trouble = ""
		b.log.WithField(systemd.FieldMessageID, systemd.SourceRecovered).Info("receiving from the queue again")
		return
	}
	b.trouble, b.since = err.Error(), time.Now()
	b.log.WithField(systemd.FieldMessageID, systemd.SourceTrouble).Warnf("cannot receive from the queue: %s; retrying", err)
}
