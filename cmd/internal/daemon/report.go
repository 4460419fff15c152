package daemon

import (
	"path/filepath"

	"github.com/sirupsen/logrus"

	"github.com/nth-project/nth/cmd/internal/cli"
	"github.com/nth-project/nth/pkg/asg"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/metrics"
	"github.com/nth-project/nth/pkg/notify"
	"github.com/nth-project/nth/pkg/systemd"
)

// StateDirectory returns the directory for a daemon's state. A dry run has a directory of its own: what the dry run has only logged must not count
// as done later.
func StateDirectory(cfg *config.Common) string {
	if cfg.DryRun {
		return filepath.Join(cfg.StateDirectory, "dry-run")
	}
	return cfg.StateDirectory
}

// NewWebhook returns a webhook that posts by these options. It logs and counts whether notices are delivered. If to is nil, it posts nothing.
func NewWebhook(to *notify.WebhookOptions, dryRun bool, log *logrus.Entry, meter *metrics.Metrics) *notify.Webhook {
	var options notify.WebhookOptions
	if to != nil {
		options = *to
	}
	options.DryRun = dryRun
	options.Reported = func(r notify.DeliveryResult) {
		logDelivery(log, r)
		if isRetried := r.Err != nil && !r.Lost; !isRetried {
			meter.Noticed(r.Lost)
		}
	}
	return notify.NewWebhook(options)
}

// logDelivery logs the result of an attempt to deliver a notice. The first failure of a notice is logged as a warning, and later ones for debugging
// only. A lost notice is logged as an error.
func logDelivery(log *logrus.Entry, r notify.DeliveryResult) {
	log = log.WithField(systemd.FieldEventID, r.Event)
	if r.Node != "" {
		log = log.WithField(systemd.FieldNode, r.Node)
	}
	trouble := log.WithField(systemd.FieldMessageID, systemd.NoticeTrouble)
	switch {
	case r.Err == nil:
		log.WithField(systemd.FieldMessageID, systemd.NoticeSent).Infof("delivered the webhook notice %q", r.Outcome)
	case r.Lost:
		trouble.Errorf("cannot deliver the webhook notice %q: %s; not retrying; drains are not affected", r.Outcome, r.Err)
	case r.Again:
		trouble.Debugf("cannot deliver the webhook notice %q: %s; retrying", r.Outcome, r.Err)
	default:
		trouble.Warnf("cannot deliver the webhook notice %q: %s; retrying", r.Outcome, r.Err)
	}
}

// LogHook logs a report about lifecycle hooks. The outcome determines the level and the message ID.
func LogHook(log *logrus.Entry, n asg.HookReport) {
	switch n.Outcome {
	case asg.Trouble:
		log.WithField(systemd.FieldMessageID, systemd.HookTrouble).Warn(n.Text)
	case asg.Refused:
		log.WithField(systemd.FieldMessageID, systemd.HookRefused).Warn(n.Text)
	case asg.Completed:
		log.WithField(systemd.FieldMessageID, systemd.HookCompleted).Info(n.Text)
	case asg.Found:
		log.WithField(systemd.FieldMessageID, systemd.HookFound).Info(n.Text)
	}
}

// NewMetrics returns the metrics of a daemon, by the settings. options has what differs between the programs.
func NewMetrics(cfg *config.Common, log *logrus.Entry, options metrics.Options) *metrics.Metrics {
	options.Version, options.Commit = cli.BuildVersion()
	options.DryRun = cfg.DryRun
	options.Listen, options.Textfile = cfg.Metrics.Listen, cfg.Metrics.Textfile
	options.Trouble = func(err error) {
		log.WithField(systemd.FieldMessageID, systemd.MetricsTrouble).Warnf("cannot export metrics: %s; retrying; drains are not affected", err)
	}
	m := metrics.New(options)
	for _, request := range asg.Requests() {
		for _, answer := range asg.Answers() {
			m.HookRequests(string(request), string(answer))
		}
	}
	return m
}

// CountHooks returns a function that counts requests about lifecycle hooks in the metrics. It is for the option Requested of pkg/asg.
func CountHooks(m *metrics.Metrics) func(asg.Request, asg.Answer) {
	return func(what asg.Request, answer asg.Answer) { m.HookRequested(string(what), string(answer)) }
}
