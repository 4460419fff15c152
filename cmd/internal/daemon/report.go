package daemon

import (
	"path/filepath"

	"github.com/sirupsen/logrus"

	"github.com/nth-project/nth/cmd/internal/program"
	"github.com/nth-project/nth/pkg/asg"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/metrics"
	"github.com/nth-project/nth/pkg/notify"
	"github.com/nth-project/nth/pkg/record"
	"github.com/nth-project/nth/pkg/systemd"
)

// StateDirectory is where a daemon's state lies. A dry run has one of its own: what was only talked about must not count as
// done, or told, when it becomes serious.
func StateDirectory(cfg *config.Common) string {
	if cfg.DryRun {
		return filepath.Join(cfg.StateDirectory, "dry-run")
	}
	return cfg.StateDirectory
}

// TellStateTrouble tells the journal what is wrong with what lies in the state directory.
func TellStateTrouble(log *logrus.Entry, warnings []error) {
	for _, w := range warnings {
		log.WithField(systemd.FieldMessageID, systemd.StateTrouble).Error(w)
	}
}

// NewWebhook makes the webhook of a daemon, with an outbox in its state directory. The journal is told what becomes of its notices. The
// options say what is the program's own of it.
func NewWebhook(cfg *config.Common, log *logrus.Entry, counts Counts, options notify.WebhookOptions) *notify.Webhook {
	outbox, warnings := record.OpenOutbox(StateDirectory(cfg))
	if options.Backlog > 0 {
		outbox.Allow(options.Backlog)
	}
	TellStateTrouble(log, warnings)
	options.Outbox, options.DryRun = outbox, cfg.DryRun
	options.Told = func(t notify.DeliveryResult) {
		tellDelivery(log, t)
		counts.Notice(t)
	}
	return notify.NewWebhook(options)
}

// tellDelivery tells the journal what became of a notice. An outage is one message, and each notice that is lost is one.
func tellDelivery(log *logrus.Entry, t notify.DeliveryResult) {
	log = log.WithField(systemd.FieldEventID, t.Notice.Event)
	trouble := log.WithField(systemd.FieldMessageID, systemd.NoticeTrouble)
	switch {
	case t.Notice.Event == "":
		trouble.Warnf("webhook outbox not saved, pending notices may be lost at a restart: %s", t.Err)
	case t.Err == nil:
		log.WithField(systemd.FieldMessageID, systemd.NoticeSent).Infof("webhook delivered: %s", t.Notice.What)
	case t.Alike > 0:
		trouble.Errorf("webhook notice dropped (%s), and %d more: %s", t.Notice.What, t.Alike, t.Err)
	case t.GivenUp:
		trouble.Errorf("webhook notice dropped (%s): %s", t.Notice.What, t.Err)
	case t.Again:
		trouble.Debugf("webhook delivery failed (%s): %s; retrying", t.Notice.What, t.Err)
	default:
		trouble.Warnf("webhook delivery failed (%s): %s; retrying", t.Notice.What, t.Err)
	}
}

// TellHook tells the journal news of lifecycle hooks.
func TellHook(log *logrus.Entry, n asg.HookReport) {
	switch n.What {
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

// NewMetrics makes the metrics of the daemon of that name; nil where the settings ask for none. The options say what is the program's own
// of them.
func NewMetrics(name string, cfg *config.Common, log *logrus.Entry, options metrics.Options) *metrics.Metrics {
	if cfg.Metrics.Listen == "" && cfg.Metrics.Textfile == "" {
		return nil
	}
	options.Version, options.Commit = program.BuildVersion()
	options.DryRun, options.Compatible = cfg.DryRun, cfg.Metrics.Compatible
	options.Listen, options.Textfile = cfg.Metrics.Listen, cfg.Metrics.Textfile
	options.Trouble = func(err error) {
		log.WithField(systemd.FieldMessageID, systemd.MetricsTrouble).Warnf("%s; %s continues without metrics, and retries", err, name)
	}
	return metrics.New(options)
}

// Counts count what both programs do. The zero value counts nothing: where the settings ask for no metrics, nobody is told
// anything for their sake.
type Counts struct{ in *metrics.Metrics }

// CountIn returns Counts that count in m.
func CountIn(m *metrics.Metrics) Counts {
	m.HookRequests(texts(asg.Requests()), texts(asg.Answers()))
	return Counts{m}
}

func texts[T ~string](all []T) []string {
	words := make([]string, len(all))
	for i, of := range all {
		words[i] = string(of)
	}
	return words
}

// Notice counts what became of a notice in the end.
func (c Counts) Notice(t notify.DeliveryResult) {
	switch {
	case c.in == nil:
	case t.GivenUp:
		c.in.NoticesLost(1 + t.Alike)
	case t.Err == nil:
		c.in.Noticed()
	}
}

// EventsDropped counts Events that were not written.
func (c Counts) EventsDropped(events int) {
	if c.in != nil {
		c.in.EventsDropped(events)
	}
}

// Requested counts a request to the API server.
func (c Counts) Requested(method string, status int) {
	if c.in != nil {
		c.in.Requested(method, status)
	}
}

// HookRequested counts a request about a lifecycle hook.
func (c Counts) HookRequested(what asg.Request, answer asg.Answer) {
	if c.in != nil {
		c.in.HookRequested(string(what), string(answer))
	}
}
