package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/nth-project/nth/cmd/internal/program"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/kubelet"
	"github.com/nth-project/nth/pkg/notify"
	"github.com/nth-project/nth/pkg/record"
	"github.com/nth-project/nth/pkg/systemd"
)

// Credentials that the unit may be given with LoadCredential=.
const (
	urlCredential     = "webhook-url"
	headersCredential = "webhook-headers"
)

// soundConfig is effectiveConfig, judged also by what only their users can judge.
func soundConfig(path string) (config.Config, error) {
	cfg, err := effectiveConfig(path)
	if err != nil {
		return config.Config{}, err
	}
	if _, err := webhookSettings(cfg.Webhook); err != nil {
		return config.Config{}, program.ConfigError{Fault: err}
	}
	return cfg, nil
}

// webhookSettings is what the webhook works by; nil if there is nobody to post to. The error is about the settings.
func webhookSettings(c config.Webhook) (*notify.WebhookSettings, error) {
	if c.Template != "" && c.TemplateFile != "" {
		return nil, errors.New("webhook.template and webhook.template_file are both set: keep one")
	}
	to, err := destination(c)
	if to == nil || err != nil {
		return nil, err
	}
	name, text := "webhook.template", c.Template
	if c.TemplateFile != "" {
		content, err := os.ReadFile(c.TemplateFile)
		if err != nil {
			return nil, fmt.Errorf("webhook.template_file: %w", err)
		}
		if name, text = c.TemplateFile, string(content); text == "" {
			return nil, fmt.Errorf("webhook.template_file: %s is empty", name)
		}
	}
	template, err := notify.CompileTemplate(name, text, to.ContentType())
	return &notify.WebhookSettings{
		Post: to.Post, Template: template, AtDetection: c.AtDetection, AtEnd: c.AtEnd, AtClose: c.AtClose,
	}, err
}

// destination is where the webhook posts to; nil if there is none.
func destination(c config.Webhook) (*notify.Destination, error) {
	if c.URL != "" && c.URLFile != "" {
		return nil, errors.New("webhook.url and webhook.url_file are both set: keep one")
	}
	if c.URL == "" && c.URLFile == "" {
		c.URLFile = credential(urlCredential)
	}
	if c.HeadersFile == "" {
		c.HeadersFile = credential(headersCredential)
	}
	if c.URL == "" && c.URLFile == "" {
		return nil, nil
	}
	version, _ := program.BuildVersion()
	return &notify.Destination{
		URL: c.URL, URLFile: c.URLFile, Headers: c.Headers, HeadersFile: c.HeadersFile, Proxy: c.Proxy,
		CAFile: c.CAFile, Timeout: c.Timeout, UserAgent: "nth/" + version,
	}, nil
}

// credential is the file of one of the service's credentials; "" if it was not given.
func credential(name string) string {
	dir := os.Getenv("CREDENTIALS_DIRECTORY")
	if !filepath.IsAbs(dir) {
		return ""
	}
	path := filepath.Join(dir, name)
	if _, err := os.Stat(path); err != nil {
		return ""
	}
	return path
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
		Machine: func(ctx context.Context) notify.Machine {
			i := from.machine.describe(ctx)
			return notify.Machine{
				ID: i.ID, Type: i.Type, LifeCycle: i.LifeCycle, Account: i.Account, Region: i.Region, Zone: i.Zone,
				LocalIP: i.LocalIP, LocalName: i.LocalName, PublicIP: i.PublicIP, PublicName: i.PublicName,
			}
		},
		Node: func(ctx context.Context) (string, map[string]string) { return described(ctx, from.identity) },
		Told: func(t notify.Telling) { tell(from.log, t) },
	})
	n.reposted = func(cfg config.Config) {
		settings, err := webhookSettings(cfg.Webhook)
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

// tell tells the journal what became of a notice. An outage is one message, and each notice that is lost is one.
func tell(log *logrus.Entry, t notify.Telling) {
	log = log.WithField(systemd.FieldEventID, t.Notice.Event)
	trouble := log.WithField(systemd.FieldMessageID, systemd.NoticeTrouble)
	switch {
	case t.Err == nil:
		log.WithField(systemd.FieldMessageID, systemd.NoticeSent).Infof("the webhook has taken a notice: %s", t.Notice.What)
	case t.GivenUp:
		trouble.Errorf("the webhook does not get a notice (%s): %s", t.Notice.What, t.Err)
	case t.Again:
		trouble.Debugf("the webhook did not take a notice (%s): %s; trying again", t.Notice.What, t.Err)
	default:
		trouble.Warnf("the webhook did not take a notice (%s): %s; trying again", t.Notice.What, t.Err)
	}
}

// webhook checks what can be checked of the webhook without posting, and posts a test if that is asked for. The settings
// have been judged.
func (c *check) webhook(ctx context.Context, cfg config.Config, post bool) {
	to, _ := destination(cfg.Webhook)
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
	settings, err := webhookSettings(cfg.Webhook)
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
