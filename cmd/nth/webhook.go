package main

import (
	"context"
	"errors"
	"time"

	"github.com/nth-project/nth/cmd/internal/posting"
	"github.com/nth-project/nth/cmd/internal/program"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/kubelet"
	"github.com/nth-project/nth/pkg/notify"
	"github.com/nth-project/nth/pkg/record"
	"github.com/nth-project/nth/pkg/systemd"
)

// soundConfig is effectiveConfig, judged also by what only their users can judge.
func soundConfig(path string) (config.Config, error) {
	cfg, err := effectiveConfig(path)
	if err != nil {
		return config.Config{}, err
	}
	if _, err := posting.Settings(cfg.Webhook, "nth"); err != nil {
		return config.Config{}, program.ConfigError{Fault: err}
	}
	return cfg, nil
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
		Told: func(t notify.Telling) { posting.Tell(from.log, t) },
	})
	n.reposted = func(cfg config.Config) {
		settings, err := posting.Settings(cfg.Webhook, "nth")
		if err != nil { // It was right a moment ago, when the settings were judged.
			from.trouble()(err)
			return
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

// webhook checks what can be checked of the webhook without posting, and posts a test if that is asked for. The settings
// have been judged.
func (c *check) webhook(ctx context.Context, cfg config.Config, post bool) {
	to, _ := posting.Destination(cfg.Webhook, "nth")
	switch {
	case to == nil && post:
		c.fail("webhook", "the settings name nobody to post a test to")
	case to == nil:
		c.ok("webhook", "the settings name none; nothing is posted")
	case to.Judge() != nil:
		c.fail("webhook", "%s", to.Judge())
	case !post:
		c.ok("webhook", "the template gives a message for every kind of notice; \"nth check --webhook\" posts a test")
	default:
		c.post(ctx, cfg)
	}
}

// post posts a test.
func (c *check) post(ctx context.Context, cfg config.Config) {
	node := "unknown"
	if id, err := kubelet.New(kubelet.Options{Kubeconfig: cfg.Kubernetes.Kubeconfig}).Identity(ctx); err == nil {
		node = id.Node
	}
	settings, err := posting.Settings(cfg.Webhook, "nth")
	if err == nil {
		err = postTest(ctx, settings, node)
	}
	if err != nil {
		c.fail("webhook", "it did not take the test: %s", err)
		return
	}
	c.ok("webhook", "it has taken the test")
}

func postTest(ctx context.Context, settings *notify.WebhookSettings, node string) error {
	f := notify.TestFields(node, time.Now())
	text, err := settings.Template.Render(f)
	if err != nil {
		return err
	}
	if text == "" {
		return errors.New("the template gives nothing for it")
	}
	return settings.Post(ctx, f.NoticeID, text)
}
