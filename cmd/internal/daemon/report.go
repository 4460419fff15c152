package daemon

import (
	"path/filepath"

	"github.com/sirupsen/logrus"

	"github.com/nth-project/nth/cmd/internal/cli"
	"github.com/nth-project/nth/cmd/internal/settings"
	"github.com/nth-project/nth/pkg/asg"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/metrics"
	"github.com/nth-project/nth/pkg/notify"
	"github.com/nth-project/nth/pkg/systemd"
)

// StateDirectory returns the directory for a daemon's state. A dry run has its own: what it has only logged must not count as done
// later.
func StateDirectory(cfg *config.Common) string {
	if cfg.DryRun {
		return filepath.Join(cfg.StateDirectory, "dry-run")
	}
	return cfg.StateDirectory
}

// NewWebhook returns the webhook of the daemon of that name, which logs and counts what becomes of its notices.
func NewWebhook(name string, cfg *config.Common, log *logrus.Entry, meter *metrics.Metrics) *notify.Webhook {
	options := &notify.WebhookOptions{}
	if to, _ := settings.Webhook(cfg.Webhook, name); to != nil { // Reading the settings has reported the faults.
		options = to
	}
	options.DryRun = cfg.DryRun
	options.Reported = func(r notify.DeliveryResult) {
		logDelivery(log, r)
		switch {
		case r.Lost:
			meter.NoticeLost()
		case r.Err == nil:
			meter.Noticed()
		} // A notice that is tried again is not counted yet.
	}
	return notify.NewWebhook(*options)
}

// logDelivery logs the result of an attempt to deliver a notice. Of the failures of one notice, only the first is a warning, and the others
// are for debugging. A lost notice is an error.
func logDelivery(log *logrus.Entry, r notify.DeliveryResult) {
	log = log.WithField(systemd.FieldEventID, r.Event)
	trouble := log.WithField(systemd.FieldMessageID, systemd.NoticeTrouble)
	switch {
	case r.Err == nil:
		log.WithField(systemd.FieldMessageID, systemd.NoticeSent).Infof("webhook delivered: %s", r.Outcome)
	case r.Lost:
		trouble.Errorf("webhook notice dropped (%s): %s", r.Outcome, r.Err)
	case r.Again:
		trouble.Debugf("webhook delivery failed (%s): %s; retrying", r.Outcome, r.Err)
	default:
		trouble.Warnf("webhook delivery failed (%s): %s; retrying", r.Outcome, r.Err)
	}
}

// LogHook logs a report about lifecycle hooks.
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

// NewMetrics returns the metrics of the daemon of that name. The options are those that differ between the programs.
func NewMetrics(name string, cfg *config.Common, log *logrus.Entry, options metrics.Options) *metrics.Metrics {
	options.Version, options.Commit = cli.BuildVersion()
	options.DryRun = cfg.DryRun
	options.Listen, options.Textfile = cfg.Metrics.Listen, cfg.Metrics.Textfile
	options.Trouble = func(err error) {
		log.WithField(systemd.FieldMessageID, systemd.MetricsTrouble).Warnf("%s; %s continues without metrics, and retries", err, name)
	}
	m := metrics.New(options)
	m.HookRequests(texts(asg.Requests()), texts(asg.Answers()))
	return m
}

// texts converts values of a string type to strings.
func texts[T ~string](values []T) []string {
	converted := make([]string, len(values))
	for i, value := range values {
		converted[i] = string(value)
	}
	return converted
}

// CountHooks returns a function that counts requests about lifecycle hooks.
func CountHooks(m *metrics.Metrics) func(asg.Request, asg.Answer) {
	return func(what asg.Request, answer asg.Answer) { m.HookRequested(string(what), string(answer)) }
}
