// Package posting makes of the table [webhook] what the webhook posts, and where to, and tells the journal what became of
// it. The programs differ in their names only.
package posting

import (
	"errors"
	"fmt"
	"os"

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

// Settings is what the webhook works by; nil if there is nobody to post to. name is the
// program's. The error is about the settings.
func Settings(c config.Webhook, name string) (*notify.WebhookSettings, error) {
	if c.Template != "" && c.TemplateFile != "" {
		return nil, errors.New("webhook.template and webhook.template_file are both set: keep one")
	}
	to, err := Destination(c, name)
	if to == nil || err != nil {
		return nil, err
	}
	place, text := "webhook.template", c.Template
	if c.TemplateFile != "" {
		content, err := os.ReadFile(c.TemplateFile)
		if err != nil {
			return nil, fmt.Errorf("webhook.template_file: %w", err)
		}
		if place, text = c.TemplateFile, string(content); text == "" {
			return nil, fmt.Errorf("webhook.template_file: %s is empty", place)
		}
	}
	template, err := notify.CompileTemplate(place, text, to.ContentType())
	return &notify.WebhookSettings{
		Post: to.Post, Template: template, AtDetection: c.AtDetection, AtEnd: c.AtEnd, AtClose: c.AtClose,
	}, err
}

// Destination is where the webhook posts to; nil if there is none.
func Destination(c config.Webhook, name string) (*notify.Destination, error) {
	if c.URL != "" && c.URLFile != "" {
		return nil, errors.New("webhook.url and webhook.url_file are both set: keep one")
	}
	if c.URL == "" && c.URLFile == "" {
		c.URLFile = program.Credential(urlCredential)
	}
	if c.HeadersFile == "" {
		c.HeadersFile = program.Credential(headersCredential)
	}
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
