package settings

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nth-project/nth/cmd/internal/cli"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/notify"
)

// Webhook returns the settings of the webhook of the program of that name; nil if there is no address, or more than one. Look has validated the
// table before. It has read the template into TemplateText, and left that empty for a template that fails.
func Webhook(c config.Webhook, name string, given Given) (*notify.WebhookSettings, error) {
	to := Destination(c, name, given)
	if to == nil {
		return nil, nil
	}
	template, err := notify.CompileTemplate(templatePlace(&c), c.TemplateText)
	if err != nil {
		return nil, err
	}
	settings := &notify.WebhookSettings{Post: to.Post, Template: template, ContentType: to.ContentType, Cluster: c.Cluster}
	for _, phase := range c.At {
		settings.At = append(settings.At, notify.Phase(phase))
	}
	return settings, nil
}

// Add adds the faults among findings to reading, the error of reading the settings. The result is a config.Degraded, reading itself if that is
// fatal, or nil.
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

// Degraded tells two kinds of errors of reading the settings apart. It returns the faults with which a program can start, or the error with which
// it cannot; neither for nil.
func Degraded(err error) (faults []string, fatal error) {
	if err == nil {
		return nil, nil
	}
	if degraded, ok := errors.AsType[config.Degraded](err); ok {
		return strings.Split(degraded.Error(), "\n"), nil
	}
	return nil, err
}

// The credentials of the webhook.
const (
	urlCredential     = "webhook-url"
	headersCredential = "webhook-headers"
)

// Finding is what was found out about a file or credential that the settings name.
type Finding struct {
	// Source names the file or the credential; "" for the settings themselves.
	Source string
	// Passed says why it was ignored, although nothing is wrong; "" if it was read.
	Passed string
	// Fault says what is wrong with it.
	Fault error
}

// Found returns the finding about a credential. overriddenBy is the setting that is used instead; "" if the credential is used.
func Found(c Credential, overriddenBy string) Finding {
	f := Finding{Source: c.String(), Fault: c.Fault, Passed: c.Sealed}
	if c.Fault != nil {
		f.Fault = fmt.Errorf("%s: %w", c, c.Fault)
	}
	if overriddenBy != "" {
		f.Passed = overriddenBy + " goes before it"
	}
	return f
}

// Look reads all files and credentials that the table names, even if the address is unknown, and returns its findings. It sets c.TemplateText, and
// renders every kind of notice with the template.
func Look(c *config.Webhook, name string, given Given) []Finding {
	place, text, textErr := templatePlace(c), c.Template, error(nil)
	var reading sync.WaitGroup
	if c.IsTemplateFile() {
		reading.Go(func() { text, textErr = notify.ReadTemplate(c.Template) })
	}
	to, found, names := destination(*c, name, given)
	checked := to.Check()
	reading.Wait()
	if textErr != nil {
		textErr = fmt.Errorf("webhook.template: %w", textErr)
	} else {
		var template *notify.Template
		if template, textErr = notify.CompileTemplate(place, text); textErr == nil {
			textErr = template.Try(to.ContentType())
		}
	}
	if textErr != nil {
		text, textErr = "", fmt.Errorf("%w; nth's own template is used", textErr)
	}
	c.TemplateText = text
	template := Finding{Fault: textErr}
	if c.IsTemplateFile() {
		template.Source = c.Template
	}
	found = append([]Finding{template}, found...)
	for _, part := range checked {
		found = append(found, Finding{Source: cmp.Or(names[part.File], part.File), Fault: part.Fault})
	}
	found = slices.DeleteFunc(found, func(f Finding) bool { return f == Finding{} })
	for i, f := range found {
		if f.Fault != nil {
			found[i].Fault = fmt.Errorf("webhook: %w", f.Fault)
		}
	}
	return found
}

// templatePlace is where the template comes from, for errors.
func templatePlace(c *config.Webhook) string {
	if c.IsTemplateFile() {
		return c.Template
	}
	return "webhook.template"
}

// Destination returns where the webhook posts to; nil if there is no address.
func Destination(c config.Webhook, name string, given Given) *notify.Destination {
	to, _, _ := destination(c, name, given)
	if to.URL == "" && to.URLFile == "" {
		return nil
	}
	return &to
}

// postTimeout is how long one post may take. A post that fails is repeated.
const postTimeout = 5 * time.Second

// destination returns where the webhook posts to, with or without an address, findings about the credentials for it, and the names of
// the credentials by their files.
func destination(c config.Webhook, name string, given Given) (to notify.Destination, found []Finding, names map[string]string) {
	version, _ := cli.BuildVersion()
	to = notify.Destination{
		URL: c.URL, URLFile: c.URLFile, Headers: c.Headers, HeadersFile: c.HeadersFile, Proxy: c.Proxy,
		CAFile: c.CAFile, Timeout: postTimeout, UserAgent: name + "/" + version,
	}
	if c.URL != "" && c.URLFile != "" {
		to.URL, to.URLFile = "", ""
		found = append(found, Finding{Fault: errors.New("webhook.url and webhook.url_file are both set: keep one; nothing is posted")})
	}
	names = map[string]string{}
	// use sets file to that of a credential, unless a setting overrides the credential.
	use := func(c Credential, overriddenBy string, file *string) {
		switch {
		case c.Name == "": // There is no such credential.
		case c.File == "" || overriddenBy != "":
			found = append(found, Found(c, overriddenBy))
		default:
			names[c.File] = c.String()
		}
		if overriddenBy == "" {
			*file = c.File
		}
	}
	use(given(urlCredential), firstSet("webhook.url", c.URL, "webhook.url_file", c.URLFile), &to.URLFile)
	use(given(headersCredential), firstSet("webhook.headers_file", c.HeadersFile), &to.HeadersFile)
	return to, found, names
}

// firstSet returns the name of the first setting whose value is not empty; "" if all are empty. Names and values alternate.
func firstSet(namesAndValues ...string) string {
	for pair := range slices.Chunk(namesAndValues, 2) {
		if pair[1] != "" {
			return pair[0]
		}
	}
	return ""
}
