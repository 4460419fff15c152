// Package webhooks makes of the table [webhook] what the webhook posts, and where to, and tells the journal what became of
// it. The programs differ in their names only.
package webhooks

import (
	"errors"
	"slices"
	"strings"

	"github.com/sirupsen/logrus"

	"github.com/nth-project/nth/cmd/internal/secrets"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/notify"
	"github.com/nth-project/nth/pkg/systemd"
)

// Settings is what the webhook works by; nil if there is nobody to post to, or if it is not clear to whom. name is the program's, and
// the table one that Judge or Look has been given: nothing is read anew, and nth's own template is in the place of one that cannot be used.
func Settings(c config.Webhook, name string, given secrets.Given) (*notify.WebhookSettings, error) {
	to := Destination(c, name, given)
	if to == nil {
		return nil, nil
	}
	template, err := notify.CompileTemplate("the template", c.TemplateText, "")
	if err != nil {
		return nil, err
	}
	return &notify.WebhookSettings{
		Post: to.Post, Template: template, AtDetection: c.AtDetection, AtEnd: c.AtEnd, AtClose: c.AtClose,
	}, nil
}

// Judge adds what is wrong with the webhook, for the program of that name with the credentials that it has been given, to what reading the
// settings has told, and notes in them which template is of use.
func Judge(reading error, c *config.Webhook, name string) error {
	return Add(reading, Look(c, name, secrets.Own))
}

// Add adds what is wrong to what reading the settings has told.
func Add(reading error, found []Finding) error {
	degraded, ok := errors.AsType[config.Degraded](reading)
	if reading != nil && !ok {
		return reading
	}
	faults := slices.Clone(degraded.Faults)
	for _, f := range found {
		if f.Fault != nil {
			faults = append(faults, f.Fault)
		}
	}
	if len(faults) == 0 {
		return nil
	}
	return config.Degraded{Faults: faults}
}

// Degraded lists what is wrong with settings that a program can start with all the same; fatal is why it cannot.
func Degraded(err error) (faults []string, fatal error) {
	if err == nil {
		return nil, nil
	}
	if degraded, ok := errors.AsType[config.Degraded](err); ok {
		return strings.Split(degraded.Error(), "\n"), nil
	}
	return nil, err
}

// SayDegraded tells the journal what is wrong at a start.
func SayDegraded(log *logrus.Entry, faults []string) {
	for _, fault := range faults {
		log.WithField(systemd.FieldMessageID, systemd.ConfigInvalid).Errorf("degraded: %s", fault)
	}
}

// Tell tells the journal what became of a notice. An outage is one message, and each notice that is lost is one.
func Tell(log *logrus.Entry, t notify.Telling) {
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
