package main

import (
	"context"
	"strings"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"

	"github.com/nth-project/nth/cmd/internal/daemon"
	"github.com/nth-project/nth/pkg/agent"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/fleet"
	"github.com/nth-project/nth/pkg/identity"
	"github.com/nth-project/nth/pkg/kube"
	"github.com/nth-project/nth/pkg/metrics"
	"github.com/nth-project/nth/pkg/notify"
	"github.com/nth-project/nth/pkg/sqs"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/systemd"
)

// notices reports what happens to nodes: to the metrics, the webhook and the cluster.
type notices struct {
	meter   *metrics.Metrics
	webhook *notify.Webhook
	cluster *notify.Kubernetes // nil if nothing is written to the cluster
	client  notify.Identity    // without a node
	// watched returns the Node of that name as the fleet's watch shows it; nil if there is none.
	watched func(node string) *corev1.Node
	// mayWrite returns an error unless this process leads.
	mayWrite func() error
}

// newNotices returns the notices of a fleet, whose requests pass gate after all others. serve sets watched and mayWrite, which need the
// fleet, before any of them is called.
func newNotices(cfg config.Queue, webhook *notify.Webhook, client notify.Identity, meter *metrics.Metrics, gate *kube.Gate, log *logrus.Entry) *notices {
	n := &notices{meter: meter, client: client, webhook: webhook}
	if !cfg.DryRun && (cfg.Kubernetes.Condition || cfg.Kubernetes.Events) {
		n.cluster = notify.NewKubernetes(notify.KubernetesOptions{
			Rules:     policyOf(cfg.Events),
			Condition: cfg.Kubernetes.Condition, Labels: cfg.Kubernetes.Labels, Events: cfg.Kubernetes.Events,
			Source: "nth-queue", Brief: true, Gate: gate,
			MayWrite: func() error { return n.mayWrite() },
			Trouble:  func(err error) { log.WithField(systemd.FieldMessageID, systemd.NoticeTrouble).Warn(err) },
		})
	}
	return n
}

// work returns the functions that send the reports. They run in the background until their context ends, which is after the drains.
func (n *notices) work() []func(context.Context) {
	work := []func(context.Context){n.webhook.Run, n.meter.Run}
	if n.cluster != nil {
		work = append(work, n.cluster.Run)
	}
	return work
}

// of returns the listeners for the agent of one node. uid is the Node's, and entries returns the record's. It implements fleet.Options.Listeners.
func (n *notices) of(node, uid string, entries func() []state.Entry) []agent.Listener {
	listeners := []agent.Listener{n.meter, n.webhook.Node(notify.Subject{
		Machine: func(context.Context) notify.Machine { return machineOf(n.watched(node)) },
		Node: func(ctx context.Context) (string, map[string]string) {
			// The watch drops most labels. With an error, the notice is sent without labels.
			labels, _ := identity.Identity{Client: n.client.Client, Node: node}.Labels(ctx)
			return node, labels
		},
	})}
	if n.cluster == nil {
		return listeners
	}
	target := notify.Identity{Client: n.client.Client, Node: node, UID: uid, Watched: func() *corev1.Node { return n.watched(node) }}
	return append(listeners, n.cluster.Node(node, func(context.Context) (notify.Identity, error) { return target, nil }, entries))
}

// machineOf returns what a Node says about its machine. A field that the Node does not have is empty, and all are if node is nil.
func machineOf(node *corev1.Node) notify.Machine {
	if node == nil {
		return notify.Machine{}
	}
	m := notify.Machine{
		ID: fleet.InstanceOf(node.Spec.ProviderID), Type: node.Labels[corev1.LabelInstanceTypeStable],
		Zone: node.Labels[corev1.LabelTopologyZone], Region: node.Labels[corev1.LabelTopologyRegion],
	}
	if m.Zone == "" && m.ID != "" { // spec.providerID has the zone, too: aws:///ZONE/INSTANCE.
		m.Zone, _, _ = strings.Cut(strings.TrimPrefix(node.Spec.ProviderID, "aws:///"), "/")
	}
	for _, a := range node.Status.Addresses {
		switch a.Type {
		case corev1.NodeInternalIP:
			m.LocalIP = a.Address
		case corev1.NodeInternalDNS:
			m.LocalName = a.Address
		case corev1.NodeExternalIP:
			m.PublicIP = a.Address
		case corev1.NodeExternalDNS:
			m.PublicName = a.Address
		case corev1.NodeHostName: // A Machine has no such field.
		}
	}
	return m
}

// newMeter returns the metrics of the service. The reporter answers for the service's health.
func newMeter(cfg config.Queue, log *logrus.Entry, reporter *statusReporter) *metrics.Metrics {
	m := daemon.NewMetrics(&cfg.Common, log, metrics.Options{
		Queue:  true,
		Stuck:  func() error { return reporter.queue.Stalled() }, // serve sets reporter.queue later.
		Ready:  reporter.unready,
		Leader: reporter.leader,
	})
	for _, outcome := range sqs.Outcomes() {
		m.Messages(string(outcome)) // The counter exists from the start, at 0: otherwise its first increase would not be seen.
	}
	return m
}
