package main

import (
	"context"

	"github.com/sirupsen/logrus"

	"github.com/nth-project/nth/cmd/internal/daemon"
	"github.com/nth-project/nth/pkg/agent"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/fleet"
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
	// describe returns what is known of a node's machine.
	describe func(node string) fleet.Description
	// labels returns the labels of a Node.
	labels func(ctx context.Context, node string) (map[string]string, error)
	// mayWrite returns an error unless this process leads.
	mayWrite func() error
}

// newNotices returns the notices of a fleet. serve sets describe, labels and mayWrite, which need the fleet, before any of them is called.
func newNotices(cfg config.Queue, webhook *notify.Webhook, client notify.Identity, meter *metrics.Metrics, log *logrus.Entry) *notices {
	n := &notices{meter: meter, client: client, webhook: webhook}
	if !cfg.DryRun && (cfg.Kubernetes.Condition || cfg.Kubernetes.Events) {
		n.cluster = notify.NewKubernetes(notify.KubernetesOptions{
			Rules:     policyOf(cfg.Events),
			Condition: cfg.Kubernetes.Condition, Labels: cfg.Kubernetes.Labels, Events: cfg.Kubernetes.Events,
			Source: "nth-queue", Brief: true,
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
		Machine: func(context.Context) notify.Machine { return machineOf(n.describe(node)) },
		Node: func(ctx context.Context) (string, map[string]string) {
			labels, _ := n.labels(ctx, node) // With an error, the notice is sent without labels.
			return node, labels
		},
	})}
	if n.cluster == nil {
		return listeners
	}
	identity := notify.Identity{Client: n.client.Client, Node: node, UID: uid}
	return append(listeners, n.cluster.Node(node, func(context.Context) (notify.Identity, error) { return identity, nil }, entries))
}

// machineOf converts a fleet's description of a machine to that of a notice.
func machineOf(d fleet.Description) notify.Machine {
	return notify.Machine{
		ID: d.Instance, Type: d.Type, Region: d.Region, Zone: d.Zone,
		LocalIP: d.LocalIP, LocalName: d.LocalName, PublicIP: d.PublicIP, PublicName: d.PublicName,
	}
}

// newMeter returns the metrics of the service. The reporter answers for the service's health.
func newMeter(cfg config.Queue, log *logrus.Entry, reporter *statusReporter) *metrics.Metrics {
	m := daemon.NewMetrics("nth-queue", &cfg.Common, log, metrics.Options{
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
