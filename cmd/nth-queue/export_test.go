package main

import (
	"context"
	"io"
	"net/http"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
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

// LeaseOf is leaseOf, and HookSettings is hookSettings.
var (
	LeaseOf      = leaseOf
	HookSettings = hookSettings
)

// fleetAs stands as it is said to.
type fleetAs fleet.Status

func (f fleetAs) Status() fleet.Status { return fleet.Status(f) }

// reporting returns the reporter of an nth-queue that reads these messages and stands so.
func reporting(stand fleet.Status, messages *sqs.Queue) *statusReporter {
	b := &statusReporter{queue: messages, fleet: fleetAs(stand), process: "host-1"}
	b.meter = newMeter(config.Queue{}, nil, b)
	return b
}

// Sentence is how an nth-queue that knows the nodes says how it stands.
func Sentence(stand fleet.Status) string {
	return reporting(stand, nil).status(stand, sqs.Status{}).Sentence
}

// Unready is why an nth-queue that stands so and reads these messages is not ready; nil if it is.
func Unready(stand fleet.Status, messages *sqs.Queue) error {
	return reporting(stand, messages).unready()
}

// ShowAndBeat keeps the reporter of an nth-queue that reads these messages, until ctx ends.
func ShowAndBeat(ctx context.Context, messages *sqs.Queue, manager manager, log *logrus.Entry, dir string) {
	b := reporting(fleet.Status{}, messages)
	b.file, b.log, b.manager = record.NewStatusFile(dir, nil), log, manager
	b.run(ctx)
}

// Run runs nth-queue, as the process does.
func Run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return cli.Run(ctx, nthQueue(), args, stdout, stderr, daemon.Complain("nth-queue"))
}

// Probes answers for an nth-queue that reads these messages and stands so.
func Probes(messages *sqs.Queue, stand fleet.Status) http.Handler {
	return reporting(stand, messages).meter.Handler()
}

// Report reports about the nodes of a cluster, as those settings say, until it is ended.
func Report(ctx context.Context, cfg config.Queue, client kubernetes.Interface, mayWrite func() error) (
	of func(node, uid string, entries func() []state.Entry) []agent.Listener, end func(),
) {
	log := logrus.New()
	log.SetOutput(io.Discard)
	n := newNotices(cfg, notify.NewWebhook(notify.WebhookOptions{}), notify.Identity{Client: client}, reporting(fleet.Status{}, nil).meter, nil, logrus.NewEntry(log))
	n.watched, n.mayWrite = func(string) *corev1.Node { return nil }, mayWrite
	ctx, stop := context.WithCancel(ctx)
	for _, work := range n.work() {
		go work(ctx)
	}
	return n.of, stop
}

// PolicyOf gives the rules that follow from settings.
var PolicyOf = policyOf
