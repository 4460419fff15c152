// Package posting makes of the table [webhook] what the webhook posts, and where to, and tells the journal what became of
// it. The programs differ in their names only.
package posting

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/sirupsen/logrus"

	"github.com/nth-project/nth/cmd/internal/program"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/notify"
	"github.com/nth-project/nth/pkg/systemd"
)

// Credentials that the unit may be given with LoadCredential=.
const (
	urlCredential     = "webhook-url"
	headersCredential = "webhook-headers"
)

// Settings is what the webhook works by; nil if there is nobody to post to, or if it is not clear to whom. name is the program's, and
// the table one that Judge has been given: nothing is read anew, and nth's own template is in the place of one that cannot be used.
func Settings(c config.Webhook, name string) (*notify.WebhookSettings, error) {
	to, err := Destination(c, name)
	if to == nil {
		return nil, err
	}
	template, err := notify.CompileTemplate("the template", c.TemplateText, "")
	if err != nil {
		return nil, err
	}
	return &notify.WebhookSettings{
		Post: to.Post, Template: template, AtDetection: c.AtDetection, AtEnd: c.AtEnd, AtClose: c.AtClose,
	}, nil
}

// Judge adds what is wrong with the webhook, for the program of that name, to what reading the settings has told: one line for each
// fault, whether or not the address is known. It reads all files that they name, which takes a moment at most, and notes in the settings
// which template is of use.
func Judge(reading error, c *config.Webhook, name string) error {
	degraded, ok := errors.AsType[config.Degraded](reading)
	if reading != nil && !ok {
		return reading
	}
	text, place, textErr := "", "", error(nil)
	var read sync.WaitGroup
	read.Go(func() { text, place, textErr = templateText(*c) })
	named, toErr := destination(*c, name)
	judged := named.Judge()
	read.Wait()
	if textErr == nil {
		_, textErr = notify.CompileTemplate(place, text, named.ContentType())
	}
	if textErr != nil {
		text, textErr = "", fmt.Errorf("%w; nth's own template is used", textErr)
	}
	c.TemplateText = text
	faults := slices.Clone(degraded.Faults)
	for _, fault := range append([]error{toErr, textErr}, judged...) {
		if fault != nil {
			faults = append(faults, fmt.Errorf("webhook: %w", fault))
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

// templateText is the text of the template, and where it comes from. It is empty where nth's own is wanted.
func templateText(c config.Webhook) (text, place string, err error) {
	switch {
	case c.Template != "" && c.TemplateFile != "":
		return "", "", errors.New("webhook.template and webhook.template_file are both set: keep one")
	case c.TemplateFile == "":
		return c.Template, "webhook.template", nil
	}
	text, err = notify.ReadTemplate(c.TemplateFile)
	if err != nil {
		return "", "", fmt.Errorf("webhook.template_file: %w", err)
	}
	return text, c.TemplateFile, nil
}

// Destination is where the webhook posts to; nil if there is none.
func Destination(c config.Webhook, name string) (*notify.Destination, error) {
	to, err := destination(c, name)
	if err != nil || to.URL == "" && to.URLFile == "" {
		return nil, err
	}
	return &to, nil
}

// destination is where the webhook posts to, also where the address is not known.
func destination(c config.Webhook, name string) (notify.Destination, error) {
	version, _ := program.BuildVersion()
	to := notify.Destination{
		Headers: c.Headers, HeadersFile: cmp.Or(c.HeadersFile, program.Credential(headersCredential)), Proxy: c.Proxy,
		CAFile: c.CAFile, Timeout: c.Timeout, UserAgent: name + "/" + version,
	}
	if c.URL != "" && c.URLFile != "" {
		return to, errors.New("webhook.url and webhook.url_file are both set: keep one; nothing is posted")
	}
	if to.URL, to.URLFile = c.URL, c.URLFile; to.URL == "" && to.URLFile == "" {
		to.URLFile = program.Credential(urlCredential)
	}
	return to, nil
}

// Tell tells the journal what became of a notice. An outage is one message, and each notice that is lost is one.
func Tell(log *logrus.Entry, t notify.Telling) {
	log = log.WithField(systemd.FieldEventID, t.Notice.Event)
	trouble := log.WithField(systemd.FieldMessageID, systemd.NoticeTrouble)
	switch {
	case t.Notice.Event == "":
		trouble.Warnf("what the webhook has to post may not outlive a restart: %s", t.Err)
	case t.Err == nil:
		log.WithField(systemd.FieldMessageID, systemd.NoticeSent).Infof("the webhook has taken a notice: %s", t.Notice.What)
	case t.Alike > 0:
		trouble.Errorf("the webhook does not get a notice (%s), nor %d others: %s", t.Notice.What, t.Alike, t.Err)
	case t.GivenUp:
		trouble.Errorf("the webhook does not get a notice (%s): %s", t.Notice.What, t.Err)
	case t.Again:
		trouble.Debugf("the webhook did not take a notice (%s): %s; trying again", t.Notice.What, t.Err)
	default:
		trouble.Warnf("the webhook did not take a notice (%s): %s; trying again", t.Notice.What, t.Err)
	}
}
