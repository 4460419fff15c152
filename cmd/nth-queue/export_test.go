package main

import (
	"context"
	"io"
	"net/http"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/client-go/kubernetes"

	"github.com/nth-project/nth/cmd/internal/cli"
	"github.com/nth-project/nth/cmd/internal/daemon"
	"github.com/nth-project/nth/pkg/agent"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/fleet"
	"github.com/nth-project/nth/pkg/notify"
	"github.com/nth-project/nth/pkg/record"
	"github.com/nth-project/nth/pkg/sqs"
	"github.com/nth-project/nth/pkg/state"
)

// AWSConfig is awsConfig, LeaseOf is leaseOf, and HookSettings is hookSettings.
var (
	AWSConfig    = awsConfig
	LeaseOf      = leaseOf
	HookSettings = hookSettings
)

// Manager is what the service manager is told.
type Manager interface {
	Status(format string, args ...any)
	Beat()
}

// fleetAs stands as it is said to.
type fleetAs fleet.Status

func (f fleetAs) Status() fleet.Status { return fleet.Status(f) }

// Sentence is how an nth-queue that knows the nodes says how it stands.
func Sentence(stand fleet.Status) string {
	b := &statusReporter{queue: sqs.New(sqs.Options{}), fleet: fleetAs(stand), meter: newMeter(config.Queue{}, nil)}
	return b.status().Sentence
}

// Unready is why an nth-queue that stands so and reads these messages is not ready; "" if it is.
func Unready(stand fleet.Status, messages *sqs.Queue) string {
	b := &statusReporter{queue: messages, fleet: fleetAs(stand)}
	if err := b.unready(); err != nil {
		return err.Error()
	}
	return ""
}

// ShowAndBeat keeps the reporter of an nth-queue that reads these messages, until ctx ends.
func ShowAndBeat(ctx context.Context, messages *sqs.Queue, manager Manager, log *logrus.Entry, dir string, pace time.Duration) {
	b := &statusReporter{file: record.NewStatusFile(dir, nil), log: log, queue: messages, fleet: fleetAs{}, manager: manager, pace: pace, meter: newMeter(config.Queue{}, nil)}
	b.begin(ctx)()
}

// Run runs nth-queue, as the process does.
func Run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return cli.Run(ctx, nthQueue(), args, stdout, stderr, daemon.Complain("nth-queue"))
}

// Probes answers for an nth-queue with that identity that reads these messages and stands so.
func Probes(messages *sqs.Queue, stand fleet.Status, process string, log *logrus.Entry) http.Handler {
	m := newMeter(config.Queue{}, log)
	m.queue, m.reporter = messages, &statusReporter{queue: messages, fleet: fleetAs(stand), process: process}
	return m.Handler()
}

// PassOn passes on what a webhook has to tell, and what some other work does, until it is ended.
func PassOn(ctx context.Context, webhook *notify.Webhook, work func(context.Context)) (end func()) {
	n := &notices{webhook: webhook, meter: newMeter(config.Queue{}, nil)}
	n.reporting, n.stop = context.WithCancel(ctx)
	n.work.Go(func() { work(n.reporting) })
	return n.begin()
}

// Report reports about the nodes of a cluster, as those settings say, until it is ended.
func Report(ctx context.Context, cfg config.Queue, client kubernetes.Interface, mayWrite func() error) (
	of func(node, uid string, entries func() []state.Entry) []agent.Listener, end func(),
) {
	log := logrus.New()
	log.SetOutput(io.Discard)
	n := newNotices(ctx, cfg, notify.Identity{Client: client}, newMeter(config.Queue{}, logrus.NewEntry(log)), logrus.NewEntry(log))
	n.describe, n.mayWrite = func(string) fleet.Description { return fleet.Description{} }, mayWrite
	return n.of, n.begin()
}

// PolicyOf gives the rules that follow from settings.
var PolicyOf = policyOf
