package main

import (
	"context"
	"io"

	"github.com/sirupsen/logrus"
	"k8s.io/client-go/kubernetes"

	"github.com/nth-project/nth/pkg/agent"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/fleet"
	"github.com/nth-project/nth/pkg/kube"
	"github.com/nth-project/nth/pkg/notify"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
)

// PassOn passes on what a webhook has to tell, and what some other work does, until it is ended.
func PassOn(ctx context.Context, webhook *notify.Webhook, work func(context.Context)) (end func()) {
	n := &notices{webhook: webhook, meter: newMeter(config.Queue{}, nil)}
	n.reporting, n.stop = context.WithCancel(ctx)
	n.work.Go(func() { work(n.reporting) })
	return n.begin()
}

// KeepConditions makes those who keep the conditions of nodes in a cluster, by those rules.
func KeepConditions(
	ctx context.Context, client kubernetes.Interface, webhook *notify.Webhook, rules policy.Settings, mayWrite func() error,
) (of func(node, uid string, entries func() []state.Entry) ([]agent.Listener, func(lost bool)), end func()) {
	log := logrus.New()
	log.SetOutput(io.Discard)
	n := &notices{
		cfg: config.Kubernetes{Condition: true}, log: logrus.NewEntry(log), client: notify.Identity{Client: client}, webhook: webhook,
		describe: func(string) fleet.Description { return fleet.Description{} },
		writes:   kube.NewGate(writers), mayWrite: mayWrite,
		meter: newMeter(config.Queue{}, nil),
	}
	n.rules.Store(&rules)
	n.reporting, n.stop = context.WithCancel(ctx)
	return n.of, n.begin()
}
