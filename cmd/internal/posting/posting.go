// Package posting makes of the table [webhook] what the webhook posts, and where to, and tells the journal what became of
// it. The programs differ in their names only.
package posting

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"strings"

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

// Settings is what the webhook works by; nil if there is nobody to post to, or if it is not clear to whom. name is the
// program's. The error is about what is wrong, one line for each fault: the settings are of use all the same, with nth's own
// template in place of one that cannot be used.
func Settings(c config.Webhook, name string) (*notify.WebhookSettings, error) {
	to, toErr := Destination(c, name)
	contentType := notify.Destination{Headers: c.Headers, HeadersFile: c.HeadersFile}.ContentType()
	var judged error
	if to != nil {
		contentType, judged = to.ContentType(), to.Judge()
	}
	template, templateErr := templateOf(c, contentType)
	faults := faultsOf(toErr, judged, templateErr)
	if to == nil {
		return nil, faults
	}
	return &notify.WebhookSettings{
		Post: to.Post, Template: template, AtDetection: c.AtDetection, AtEnd: c.AtEnd, AtClose: c.AtClose,
	}, faults
}

// Judge adds what is wrong with the webhook, for the program of that name, to what reading the settings has told. It notes the
// text of the template in them.
func Judge(reading error, c *config.Webhook, name string) error {
	var faults []error
	degraded, ok := errors.AsType[config.Degraded](reading)
	if reading != nil && !ok {
		return reading
	}
	faults = append(faults, degraded.Faults...)
	if _, err := Settings(*c, name); err != nil {
		faults = append(faults, err)
	}
	c.TemplateText, _, _ = templateText(*c) // Its error is among the faults.
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

// faultsOf joins faults, each with the table that they are in.
func faultsOf(faults ...error) error {
	for i, fault := range faults {
		if fault != nil {
			faults[i] = fmt.Errorf("webhook: %w", fault)
		}
	}
	return errors.Join(faults...)
}

// templateOf is the template that is set. With an error it is nth's own.
func templateOf(c config.Webhook, contentType string) (*notify.Template, error) {
	text, place, err := templateText(c)
	if err == nil {
		var template *notify.Template
		if template, err = notify.CompileTemplate(place, text, contentType); err == nil {
			return template, nil
		}
	}
	own, ownErr := notify.CompileTemplate("nth's own template", "", "")
	return own, errors.Join(fmt.Errorf("%w; nth's own template is used", err), ownErr)
}

// templateText is the text of the template, and where it comes from. It is empty where nth's own is wanted.
func templateText(c config.Webhook) (text, place string, err error) {
	switch {
	case c.Template != "" && c.TemplateFile != "":
		return "", "", errors.New("webhook.template and webhook.template_file are both set: keep one")
	case c.TemplateFile == "":
		return c.Template, "webhook.template", nil
	}
	content, err := os.ReadFile(c.TemplateFile)
	if err != nil {
		return "", "", fmt.Errorf("webhook.template_file: %w", err)
	}
	if len(content) == 0 {
		return "", "", fmt.Errorf("webhook.template_file: %s is empty", c.TemplateFile)
	}
	return string(content), c.TemplateFile, nil
}

// Destination is where the webhook posts to; nil if there is none.
func Destination(c config.Webhook, name string) (*notify.Destination, error) {
	if c.URL != "" && c.URLFile != "" {
		return nil, errors.New("webhook.url and webhook.url_file are both set: keep one; nothing is posted")
	}
	if c.URL == "" {
		c.URLFile = cmp.Or(c.URLFile, program.Credential(urlCredential))
	}
	c.HeadersFile = cmp.Or(c.HeadersFile, program.Credential(headersCredential))
	if c.URL == "" && c.URLFile == "" {
		return nil, nil
	}
	version, _ := program.BuildVersion()
	return &notify.Destination{
		URL: c.URL, URLFile: c.URLFile, Headers: c.Headers, HeadersFile: c.HeadersFile, Proxy: c.Proxy,
		CAFile: c.CAFile, Timeout: c.Timeout, UserAgent: name + "/" + version,
	}, nil
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
