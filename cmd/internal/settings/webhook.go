package settings

import (
	"cmp"
	"fmt"
	"time"

	"github.com/nth-project/nth/cmd/internal/cli"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/notify"
)

// postTimeout is how long one post may take. A post that fails is repeated.
const postTimeout = 5 * time.Second

// Webhook returns the options for the webhook of the program of that name. They are nil if the settings have no address, or a faulty one. It reads the
// files that the settings name, and renders every kind of notice with the template. nth's own template replaces a faulty one. faults has a line for
// each fault.
func Webhook(c config.Webhook, name string) (to *notify.WebhookOptions, faults []string) {
	fault := func(err error) { faults = append(faults, fmt.Sprintf("webhook: %s", err)) }
	endpoint, err := endpointOf(c, name)
	if err != nil {
		fault(err)
	}
	if endpoint == nil && c.Template == "" {
		return nil, faults
	}
	contentType := notify.DefaultContentType
	if endpoint != nil {
		contentType = endpoint.ContentType()
	}
	template, err := templateOf(c, contentType)
	if err != nil {
		if endpoint != nil {
			err = fmt.Errorf("%w; webhook notices use the built-in template", err)
		}
		fault(err)
		template = notify.OwnTemplate()
	}
	if endpoint == nil {
		return nil, faults
	}
	to = &notify.WebhookOptions{Post: endpoint.Post, Template: template, Cluster: c.Cluster}
	for _, phase := range c.At {
		to.At = append(to.At, notify.Phase(phase))
	}
	return to, faults
}

// endpointOf returns the endpoint whose URL is in the file of the settings, or in the credential "webhook-url" of the service; nil without either.
func endpointOf(c config.Webhook, name string) (*notify.Endpoint, error) {
	version, _ := cli.BuildVersion()
	to := notify.Destination{
		URLFile: cmp.Or(c.URLFile, Credential(name, "webhook-url")), HeadersFile: cmp.Or(c.HeadersFile, Credential(name, "webhook-headers")),
		Proxy: c.Proxy, Timeout: postTimeout, UserAgent: name + "/" + version,
	}
	if to.URLFile == "" { // No webhook is configured.
		return nil, nil
	}
	endpoint, err := notify.NewEndpoint(to)
	if err != nil {
		return nil, fmt.Errorf("%w; no webhook notices are sent", err)
	}
	return endpoint, nil
}

// templateOf returns the template that the settings have or whose file they name.
func templateOf(c config.Webhook, contentType string) (*notify.Template, error) {
	place, text := "webhook.template", c.Template
	if c.IsTemplateFile() {
		var err error
		if text, err = notify.ReadTemplate(c.Template); err != nil {
			return nil, fmt.Errorf("webhook.template: %w", err)
		}
		place = c.Template
	}
	return notify.NewTemplate(place, text, contentType)
}
