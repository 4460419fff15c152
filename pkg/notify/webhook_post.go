package notify

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/textproto"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http/httpguts"
)

const (
	// noticeHeader carries the notice's ID, by which a receiver knows one that it gets twice.
	noticeHeader = "X-Nth-Notice"
	// defaultContentType is what a message is unless the headers say otherwise.
	defaultContentType = "application/json"
)

// Destination is where a webhook posts to. The files are read for every post, so that what is in them may change. Neither
// URL nor headers are ever in an error.
type Destination struct {
	// URL is the address, or URLFile a file that holds it.
	URL, URLFile string
	// Headers are added to those in HeadersFile, or in HeadersText, which has a line "Name: value" for each, or one object of JSON.
	Headers                  map[string]string
	HeadersFile, HeadersText string
	// Proxy is http://, https://, socks5:// or, which is the first, tcp://. Without one there is none: the environment is
	// not asked.
	Proxy string
	// CAFile holds certificates, in PEM, that are trusted beside the system's.
	CAFile string
	// Timeout bounds one post. UserAgent is sent with it.
	Timeout   time.Duration
	UserAgent string
}

// rejectedError is an answer that says that this very message is not taken; another try would be no use.
type rejectedError struct{ status int }

func (e rejectedError) Error() string {
	return fmt.Sprintf("it answers %d %s: it does not take this message", e.status, http.StatusText(e.status))
}

// ContentType is what the headers say that a message is.
func (d Destination) ContentType() string {
	headers, err := d.headers()
	if err != nil {
		return defaultContentType // Told when it is posted.
	}
	return headers.Get("Content-Type")
}

// Judged is what was found out about a part of a Destination.
type Judged struct {
	// File is the one that was read for it; empty for what stands in the Destination itself.
	File  string
	Fault error // nil if nothing is wrong
}

// Judge tells what keeps messages from being posted, as far as that can be seen without posting one, and which files were read for that. An
// address that is not known is no fault. It takes no longer than readTime, whatever hangs.
func (d Destination) Judge() []Judged {
	found := []Judged{{File: d.URLFile}, {File: d.HeadersFile}, {File: d.CAFile}, {}}
	var judging sync.WaitGroup
	judging.Go(func() {
		if d.URL != "" || d.URLFile != "" {
			_, found[0].Fault = d.target()
		}
	})
	judging.Go(func() { _, found[1].Fault = d.headers() })
	judging.Go(func() { _, found[2].Fault = d.trusted() })
	_, found[3].Fault = d.proxy()
	judging.Wait()
	return slices.DeleteFunc(found, func(j Judged) bool { return j == Judged{} })
}

// Post sends one message. The receiver has it if there is no error.
func (d Destination) Post(ctx context.Context, id, text string) error {
	target, err := d.target()
	if err != nil {
		return err
	}
	headers, err := d.headers()
	if err != nil {
		return err
	}
	transport, err := d.transport()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, d.Timeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, target.String(), bytes.NewReader([]byte(text)))
	if err != nil {
		return discreet(err, target, headers)
	}
	request.Header = headers
	if host := headers.Get("Host"); host != "" {
		request.Host = host
	}
	request.Header.Set(noticeHeader, id)
	client := &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	answer, err := client.Do(request)
	if err != nil {
		return discreet(err, target, headers)
	}
	defer func() { _ = answer.Body.Close() }()
	_, _ = io.CopyN(io.Discard, answer.Body, 4<<10) // What it has to say beside the status is of no interest.
	return judgeAnswer(answer)
}

// laterError is an answer that says when to come again.
type laterError struct {
	status int
	after  time.Duration
}

func (e laterError) Error() string {
	return fmt.Sprintf("it answers %d %s: it asks for a pause of %s", e.status, http.StatusText(e.status), e.after.Round(time.Second))
}

// longestObeyed bounds the pause that an endpoint may ask for.
const longestObeyed = time.Hour

// retryAfter is the pause that the header Retry-After asks for, in seconds or until a date (RFC 9110, 10.2.3); 0 if it has none.
func retryAfter(header string, now time.Time) time.Duration {
	if seconds, err := strconv.ParseUint(header, 10, 32); err == nil {
		return time.Duration(seconds) * time.Second
	}
	if until, err := http.ParseTime(header); err == nil {
		return max(until.Sub(now), 0)
	}
	return 0
}

func judgeAnswer(answer *http.Response) error {
	status := answer.StatusCode
	if after := retryAfter(answer.Header.Get("Retry-After"), time.Now()); after > 0 &&
		(status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable) {
		return laterError{status, after}
	}
	switch {
	case status/100 == 2:
		return nil
	case status/100 == 3:
		return fmt.Errorf("it answers %d %s: redirects are not followed", status, http.StatusText(status))
	case status == http.StatusBadRequest, status == http.StatusRequestEntityTooLarge,
		status == http.StatusUnsupportedMediaType, status == http.StatusUnprocessableEntity:
		return rejectedError{status}
	}
	return fmt.Errorf("it answers %s", strings.TrimSpace(fmt.Sprintf("%d %s", status, http.StatusText(status))))
}

// target is the address.
func (d Destination) target() (*url.URL, error) {
	text, of := d.URL, "the URL"
	if text == "" {
		content, err := readFile(d.URLFile, longestSecret)
		if err != nil {
			return nil, fmt.Errorf("reading the URL: %w", err)
		}
		text, of = strings.TrimSpace(content), "the URL in "+d.URLFile
	}
	target, err := url.Parse(text) // Its error would repeat the text.
	if err != nil || target.Hostname() == "" || target.Scheme != "http" && target.Scheme != "https" {
		return nil, fmt.Errorf("%s is none that begins with http:// or https://", of)
	}
	return target, nil
}

// headers are those of a post.
func (d Destination) headers() (http.Header, error) {
	headers := http.Header{"Content-Type": {defaultContentType}, "User-Agent": {d.UserAgent}}
	content := d.HeadersText
	if d.HeadersFile != "" {
		var err error
		if content, err = readFile(d.HeadersFile, longestSecret); err != nil {
			return nil, fmt.Errorf("reading the headers: %w", err)
		}
	}
	if err := parseHeaders(content, headers); err != nil {
		return nil, err
	}
	for name, value := range d.Headers {
		headers.Set(name, value)
	}
	return headers, nil
}

// parseHeaders reads lines of "Name: value", or one object of JSON.
func parseHeaders(content string, into http.Header) error {
	if strings.HasPrefix(strings.TrimSpace(content), "{") {
		var object map[string]string
		if json.Unmarshal([]byte(content), &object) != nil { // Its error would repeat what is there.
			return errors.New("reading the headers: they begin with { but are no object of texts in JSON")
		}
		for name, value := range object {
			if !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(value) {
				return errors.New("reading the headers: a name or a value in them is none that HTTP allows")
			}
			into.Set(name, value)
		}
		return nil
	}
	number := 0
	for line := range strings.Lines(content) {
		number++
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, value, found := strings.Cut(line, ":")
		value = textproto.TrimString(value)
		if !found || !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(value) {
			return fmt.Errorf("reading the headers: line %d is not \"Name: value\"", number)
		}
		into.Set(name, value)
	}
	return nil
}

// transport makes connections for one post. None is kept: the next notice may be weeks away.
func (d Destination) transport() (*http.Transport, error) {
	transport := &http.Transport{DisableKeepAlives: true}
	proxy, err := d.proxy()
	if err != nil {
		return nil, err
	}
	if proxy != nil {
		transport.Proxy = http.ProxyURL(proxy)
	}
	trusted, err := d.trusted()
	if err != nil {
		return nil, err
	}
	if trusted != nil {
		transport.TLSClientConfig = &tls.Config{RootCAs: trusted, MinVersion: tls.VersionTLS12}
	}
	return transport, nil
}

// trusted are the certificates to trust; nil for the system's.
func (d Destination) trusted() (*x509.CertPool, error) {
	if d.CAFile == "" {
		return nil, nil
	}
	pem, err := readFile(d.CAFile, longestTrust)
	if err != nil {
		return nil, fmt.Errorf("reading the certificates to trust: %w", err)
	}
	trusted, err := x509.SystemCertPool()
	if err != nil {
		trusted = x509.NewCertPool()
	}
	if !trusted.AppendCertsFromPEM([]byte(pem)) {
		return nil, fmt.Errorf("reading the certificates to trust: there is none in %s", d.CAFile)
	}
	return trusted, nil
}

// proxy is the one to go through; nil if there is none.
func (d Destination) proxy() (*url.URL, error) {
	if d.Proxy == "" {
		return nil, nil
	}
	proxy, err := url.Parse(d.Proxy)
	if err != nil || proxy.Hostname() == "" {
		return nil, errors.New("the proxy is no URL such as \"http://proxy.example:3128\"")
	}
	switch proxy.Scheme {
	case "tcp":
		proxy.Scheme = "http"
	case "http", "https", "socks5":
	default:
		return nil, fmt.Errorf("the proxy's URL begins with %q, which is none of http, https, socks5 and tcp", proxy.Scheme)
	}
	return proxy, nil
}

// discreet is what went wrong with a request, without where it was going and with what.
func discreet(err error, target *url.URL, headers http.Header) error {
	if outer, ok := errors.AsType[*url.Error](err); ok {
		if outer.Timeout() {
			return errors.New("no answer in time")
		}
		err = outer.Err
	}
	text := err.Error()
	secrets := []string{target.String(), target.RequestURI(), target.Path, target.RawQuery}
	if target.User != nil {
		password, _ := target.User.Password()
		secrets = append(secrets, target.User.String(), password)
	}
	for name, values := range headers {
		if name != "Content-Type" && name != "User-Agent" {
			secrets = append(secrets, values...)
		}
	}
	for _, secret := range secrets {
		if len(secret) > 1 {
			text = strings.ReplaceAll(text, secret, "(not shown)")
		}
	}
	return errors.New(text)
}
