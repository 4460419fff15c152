package main

import (
	"context"

	"github.com/sirupsen/logrus"

	"github.com/nth-project/nth/pkg/agent"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/identity"
	"github.com/nth-project/nth/pkg/imds"
	"github.com/nth-project/nth/pkg/metrics"
	"github.com/nth-project/nth/pkg/notify"
	"github.com/nth-project/nth/pkg/record"
	"github.com/nth-project/nth/pkg/systemd"
)

// newListeners returns the listeners of the agent, which report its transitions to the cluster, the webhook and the metrics. The functions in work
// send the reports: they run in the background until their context ends. alive says whether the daemon works, for the heartbeat on the Node.
// A dry run writes only the heartbeat to the cluster. Its posts to the webhook are marked as a dry run's.
func newListeners(
	cfg config.Config, webhook *notify.Webhook, kubelet *identity.Kubelet, store *record.Store, metadata *imds.Source, alive func() bool, meter *metrics.Metrics, log *logrus.Entry,
) (listeners []agent.Listener, work []func(context.Context)) {
	ofNode := webhook.Node(notify.Subject{
		Machine: func(ctx context.Context) notify.Machine { // A notice is sent without what cannot be read: the polling reports that.
			known, _ := metadata.Instance(ctx)
			return notify.Machine(known)
		},
		Node: func(ctx context.Context) (string, map[string]string) { // A notice is sent without the name or labels that cannot be read.
			id, err := kubelet.Identity(ctx)
			if err != nil {
				return "", nil
			}
			labels, _ := id.Labels(ctx)
			return id.Node, labels
		},
	})
	listeners, work = []agent.Listener{ofNode, meter}, []func(context.Context){webhook.Run, meter.Run}
	if cfg.DryRun && cfg.Kubernetes.Heartbeat == 0 { // Nothing is written to the cluster.
		return listeners, work
	}
	k := notify.NewKubernetes(notify.KubernetesOptions{
		Rules:     policyOf(cfg),
		Condition: true,
		Labels:    cfg.Kubernetes.Labels,
		Heartbeat: cfg.Kubernetes.Heartbeat,
		Alive:     alive,
		DryRun:    cfg.DryRun,
		Events:    cfg.Kubernetes.Events && !cfg.DryRun,
		Source:    "nth",
		Trouble:   func(err error) { log.WithField(systemd.FieldMessageID, systemd.NoticeTrouble).Warn(err) },
	})
	return append(listeners, k.Node("", func(ctx context.Context) (notify.Identity, error) {
		id, err := kubelet.Identity(ctx)
		return notify.Identity{Client: id.Client, Node: id.Node}, err
	}, store.Entries)), append(work, k.Run)
}
