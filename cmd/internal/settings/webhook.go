package settings

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/nth-project/nth/cmd/internal/cli"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/notify"
)

// postTimeout is how long one post may take. A post that fails is repeated.
const postTimeout = 5 * time.Second

// Webhook returns the options of the webhook of the program of that name, or nil if there is no address. It reads the files that they name, and
// renders every kind of notice with the template. It returns a line for each fault. nth's own template takes the place of a faulty one.
func Webhook(c config.Webhook, name string) (to *notify.WebhookOptions, faults []string) {
	fault := func(err error) {
		if err != nil {
			faults = append(faults, fmt.Sprintf("webhook: %s", err))
		}
	}
	version, _ := cli.BuildVersion()
	at := notify.Destination{
		URL: c.URL, URLFile: c.URLFile, Headers: c.Headers, HeadersFile: cmp.Or(c.HeadersFile, Credential(name, "webhook-headers")),
		Proxy: c.Proxy, CAFile: c.CAFile, Timeout: postTimeout, UserAgent: name + "/" + version,
	}
	switch {
	case c.URL != "" && c.URLFile != "":
		at.URL, at.URLFile = "", ""
		fault(errors.New("webhook.url and webhook.url_file are both set: keep one; nothing is posted"))
	case c.URL == "" && c.URLFile == "":
		at.URLFile = Credential(name, "webhook-url")
	}
	for _, wrong := range at.Check() {
		fault(wrong)
	}
	template, err := templateOf(c, at.ContentType())
	if err != nil {
		fault(fmt.Errorf("%w; nth's own template is used", err))
		template, err = notify.CompileTemplate("nth's own template", "")
		fault(err)
	}
	if at.URL == "" && at.URLFile == "" {
		return nil, faults
	}
	to = &notify.WebhookOptions{Post: at.Post, Template: template, ContentType: at.ContentType, Cluster: c.Cluster}
	for _, phase := range c.At {
		to.At = append(to.At, notify.Phase(phase))
	}
	return to, faults
}

// templateOf compiles the template in the settings or in the file that they name, and tries it.
func templateOf(c config.Webhook, contentType string) (*notify.Template, error) {
	place, text := "webhook.template", c.Template
	if c.IsTemplateFile() {
		var err error
		if text, err = notify.ReadTemplate(c.Template); err != nil {
			return nil, fmt.Errorf("webhook.template: %w", err)
		}
		place = c.Template
	}
	template, err := notify.CompileTemplate(place, text)
	if err == nil {
		err = template.Try(contentType)
	}
	return template, err
}
