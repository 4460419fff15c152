package main

import (
	"context"
	"time"

	"github.com/nth-project/nth/cmd/internal/program"
	"github.com/nth-project/nth/cmd/internal/secrets"
	"github.com/nth-project/nth/cmd/internal/webhooks"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/kubelet"
	"github.com/nth-project/nth/pkg/notify"
	"github.com/nth-project/nth/pkg/record"
	"github.com/nth-project/nth/pkg/systemd"
)

// soundConfig is effectiveConfig, judged also by what only their users can judge. With config.Degraded in the error, the settings
// are of use.
func soundConfig(path string) (config.Config, error) {
	cfg, err := effectiveConfig(path)
	if err = webhooks.Judge(err, &cfg.Webhook, "nth"); err != nil {
		err = program.ConfigError{Fault: err}
	}
	return cfg, err
}

// looked is what a command that people run beside the service has found: what was read and passed over, and what the unit hands the service.
type looked struct {
	found []webhooks.Finding
	unit  secrets.Unit
}

// configBeside is soundConfig with the credentials that the service would get by its unit. Offline, systemd is not asked.
func configBeside(ctx context.Context, path string, offline bool) (config.Config, looked, error) {
	cfg, err := effectiveConfig(path)
	if _, fatal := webhooks.Degraded(err); fatal != nil {
		return config.Config{}, looked{}, err
	}
	l := looked{unit: secrets.Beside(ctx, cfg.HostRoot, "nth.service", offline)}
	l.found = webhooks.Look(&cfg.Webhook, "nth", l.unit.Find)
	if err = webhooks.Add(err, l.found); err != nil {
		err = program.ConfigError{Fault: err}
	}
	return cfg, l, err
}

// addWebhook adds what tells people's own endpoints. It is there, and idle, also while there are none: a reload may bring
// one. Of a dry run, too, it tells, and says that it is one.
func (n *notices) addWebhook(cfg config.Config, from told) {
	outbox, warnings := record.OpenOutbox(recordDirectory(cfg))
	for _, w := range warnings {
		from.log.WithField(systemd.FieldMessageID, systemd.StateTrouble).Error(w)
	}
	webhook := notify.NewWebhook(notify.WebhookOptions{
		Outbox: outbox, DryRun: cfg.DryRun,
		Machine: func(ctx context.Context, _ string) notify.Machine {
			i := from.machine.describe(ctx)
			return notify.Machine{
				ID: i.ID, Type: i.Type, LifeCycle: i.LifeCycle, Account: i.Account, Region: i.Region, Zone: i.Zone,
				LocalIP: i.LocalIP, LocalName: i.LocalName, PublicIP: i.PublicIP, PublicName: i.PublicName,
			}
		},
		Node: func(ctx context.Context, _ string) (string, map[string]string) { return described(ctx, from.identity) },
		Told: func(t notify.Telling) {
			webhooks.Tell(from.log, t)
			from.counts.Notice(t)
		},
	})
	n.waiting = webhook.Waiting
	n.reposted = func(cfg config.Config) {
		settings, err := webhooks.Settings(cfg.Webhook, "nth", secrets.Own)
		if err != nil { // What is wrong with the settings was told when they were judged.
			from.log.WithField(systemd.FieldMessageID, systemd.NoticeTrouble).Error(err)
		}
		webhook.Use(settings)
		webhook.Resume(from.record.Entries(), time.Now(), n.rules.Load().Describe)
	}
	n.reposted(cfg)
	n.add(webhook, webhook.Run)
}

// described asks for the node's name and labels.
func described(ctx context.Context, borrowed *kubelet.Kubelet) (string, map[string]string) {
	id, err := borrowed.Identity(ctx)
	if err != nil {
		return "", nil
	}
	labels, err := id.Labels(ctx)
	if err != nil {
		return id.Node, nil // The notice goes without.
	}
	return id.Node, labels
}

// webhook checks the webhook, and posts a test if that is asked for.
func (c *check) webhook(ctx context.Context, cfg config.Config, l looked, post bool) {
	c.Unit(l.unit)
	c.Webhook(ctx, cfg.Webhook, l.unit.Find, l.found, post, func(ctx context.Context) string {
		id, err := kubelet.New(kubelet.Options{Kubeconfig: cfg.Kubernetes.Kubeconfig}).Identity(ctx)
		if err != nil {
			return "unknown"
		}
		return id.Node
	})
}
