package config

import "time"

// Webhook is the table [webhook]. URL, Headers and Proxy are never printed.
type Webhook struct {
	URL, URLFile           string // both "" is a credential of the service, or off
	Headers                map[string]string
	HeadersFile            string
	Template, TemplateFile string // both "" is nth's own
	TemplateText           string // what is of use of these two, noted by who has judged them; no setting
	Proxy                  string
	CAFile                 string
	Timeout                time.Duration
	AtDetection            bool
	AtEnd                  bool
	AtClose                bool
}

func defaultWebhook() Webhook {
	return Webhook{Timeout: 5 * time.Second, AtDetection: true, AtEnd: true, AtClose: true}
}

func (c *Webhook) table() table {
	return table{"webhook", "Where notices are posted to. docs/notices.md says when, and what a template can use.", []setting{
		{"url", secret{&c.URL, isEndpoint, `a URL that begins with "https://" or "http://", or ""`},
			"The address. Empty is what `url_file` says, or the service's credential `webhook-url`; without any, nothing is posted. It is never printed or logged."},
		{"url_file", optionalFile(&c.URLFile),
			"A file that holds the address, read for each notice."},
		{"headers", secrets{&c.Headers},
			"Headers to send, such as `{ Authorization = \"...\" }`. `Content-Type` is `application/json` unless one says otherwise. Their values are never printed or logged."},
		{"headers_file", optionalFile(&c.HeadersFile),
			"A file with a line `Name: value` for each further header, or an object in JSON, read for each notice. Empty is the service's credential `webhook-headers`, if it has one."},
		{"template", anyText(&c.Template),
			"What is posted: a template as Go's text/template has them, with the functions of sprig. Empty is `template_file`, or `{\"text\": \"...\"}` with one sentence."},
		{"template_file", optionalFile(&c.TemplateFile),
			"A file that holds the template, read at the start and at a reload. There are some in `/usr/share/nth/webhook`."},
		{"proxy", secret{&c.Proxy, isProxy, `a URL that begins with "http://", "https://", "socks5://" or "tcp://", or ""`},
			"The proxy to go through. Those in the environment are not used. It is never printed."},
		{"ca_file", optionalFile(&c.CAFile),
			"Certificates, in PEM, to trust beside the system's."},
		{"timeout", duration{&c.Timeout, 100 * time.Millisecond, time.Minute},
			"How long one attempt may take. One that fails is repeated, for a day at most."},
		{"at_detection", boolean{&c.AtDetection},
			"Post when an event is announced."},
		{"at_end", boolean{&c.AtEnd},
			"Post when what was to be done about it is done, its time is over, or it went wrong."},
		{"at_close", boolean{&c.AtClose},
			"Post when the event no longer stands and nothing of it is left on the node."},
	}}
}
