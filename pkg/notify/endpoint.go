package notify

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/nth-project/nth/pkg/text"
)

const (
	// noticeHeader carries the notice's ID, by which a receiver recognizes a duplicate.
	noticeHeader = "X-Nth-Notice"
	// DefaultContentType is the content type of messages unless the headers say otherwise.
	DefaultContentType = "application/json"
	// maxAnswerHeader bounds the headers of an answer, in bytes. Go's default is 10 MiB.
	maxAnswerHeader = 64 << 10
	// maxFileSize bounds a file with the URL, the headers or a template, in bytes.
	maxFileSize = 128 << 10
)

// Destination says where a webhook posts to.
type Destination struct {
	// URLFile is a file that contains the address.
	URLFile string
	// HeadersFile, if set, is a file with the headers to send: one JSON object.
	HeadersFile string
	// Proxy is the proxy's URL: http://, https://, socks5:// or tcp://, which means http://. If it is empty, no proxy is used, not even one
	// that the environment names.
	Proxy string
	// Timeout bounds one post. UserAgent is sent with it.
	Timeout   time.Duration
	UserAgent string
}

// Endpoint posts messages to a Destination. None of its errors shows the URL or the headers: both may contain secrets.
type Endpoint struct {
	target  string
	headers http.Header
	client  *http.Client
}

// NewEndpoint returns an endpoint for a destination, whose files it reads once. The error says what is wrong with the destination.
func NewEndpoint(d Destination) (*Endpoint, error) {
	target, err := d.target()
	if err != nil {
		return nil, err
	}
	headers, err := d.headers()
	if err != nil {
		return nil, err
	}
	// No connection is kept: the next notice may be weeks away.
	transport := &http.Transport{DisableKeepAlives: true, MaxResponseHeaderBytes: maxAnswerHeader, TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12}}
	if transport.Proxy, err = d.proxy(); err != nil {
		return nil, err
	}
	client := &http.Client{
		Timeout: d.Timeout, Transport: transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // No redirect is followed.
	}
	return &Endpoint{target, headers, client}, nil
}

// ContentType returns the content type of messages.
func (e *Endpoint) ContentType() string { return e.headers.Get("Content-Type") }

// Post sends one message with a notice's ID. text is the body. If the error is nil, the receiver has the message. A refusedError means that the
// receiver will never accept this message. After any other error, the queue tries again.
func (e *Endpoint) Post(ctx context.Context, id, text string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, e.target, strings.NewReader(text))
	if err != nil {
		return withoutSecrets(err)
	}
	request.Header = e.headers.Clone()
	request.Header.Set(noticeHeader, id)
	request.Host = request.Header.Get("Host") // net/http ignores a "Host" among the headers.
	answer, err := e.client.Do(request)
	if err != nil {
		return withoutSecrets(err)
	}
	defer func() { _ = answer.Body.Close() }()
	_, _ = io.CopyN(io.Discard, answer.Body, 4<<10) // Only the status counts. The read lets a server finish a short answer.
	return statusError(answer.StatusCode)
}

// statusError returns the error of Post for the HTTP status of an answer; nil if the status says that the receiver has the message.
func statusError(status int) error {
	text := strings.TrimSpace(fmt.Sprintf("the receiver answers %d %s", status, http.StatusText(status)))
	switch {
	case status/100 == 2:
		return nil
	case status/100 == 3: // An operator may correct the URL.
		return fmt.Errorf("%s: redirects are not followed", text)
	case status == http.StatusBadRequest, status == http.StatusRequestEntityTooLarge,
		status == http.StatusUnsupportedMediaType, status == http.StatusUnprocessableEntity: // These are about this message.
		return refusedError{text + ": it does not take this message"}
	}
	return errors.New(text) // All others, also 401 and 404, may end when an operator corrects the settings or the receiver.
}

// target returns the URL to post to.
func (d Destination) target() (string, error) {
	content, err := text.ReadFile(d.URLFile, maxFileSize)
	if err != nil {
		return "", fmt.Errorf("reading the URL: %w", err)
	}
	target := strings.TrimSpace(string(content))
	parsed, err := url.Parse(target)
	valid := err == nil && parsed.Hostname() != "" && (parsed.Scheme == "http" || parsed.Scheme == "https")
	if !valid { // The error of url.Parse would show the URL.
		return "", fmt.Errorf("the URL in %s does not begin with http:// or https://, or names no host", d.URLFile)
	}
	return target, nil
}

// headers returns the headers of a post. Those in HeadersFile override the defaults. No error shows anything of the file's content.
func (d Destination) headers() (http.Header, error) {
	headers := http.Header{"Content-Type": {DefaultContentType}, "User-Agent": {d.UserAgent}}
	if d.HeadersFile == "" {
		return headers, nil
	}
	content, err := text.ReadFile(d.HeadersFile, maxFileSize)
	if err != nil {
		return nil, fmt.Errorf("reading the headers: %w", err)
	}
	var inFile map[string]string
	if json.Unmarshal(content, &inFile) != nil {
		return nil, fmt.Errorf("%s must contain one JSON object that maps header names to string values", d.HeadersFile)
	}
	for name, value := range inFile {
		if !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(value) {
			return nil, fmt.Errorf("%s has a header name or value that HTTP does not allow", d.HeadersFile)
		}
		headers.Set(name, value)
	}
	return headers, nil
}

// proxy returns the transport's function for the proxy; nil if there is none.
func (d Destination) proxy() (func(*http.Request) (*url.URL, error), error) {
	if d.Proxy == "" {
		return nil, nil
	}
	proxy, err := url.Parse(d.Proxy)
	valid := err == nil && proxy.Hostname() != "" && slices.Contains([]string{"http", "https", "socks5", "tcp"}, proxy.Scheme)
	if !valid || text.HasUserInHost(proxy) {
		return nil, errors.New("the proxy is no URL such as \"http://proxy.example:3128\"")
	}
	if proxy.Scheme == "tcp" { // as in the settings of aws-node-termination-handler
		proxy.Scheme = "http"
	}
	return http.ProxyURL(proxy), nil
}

// withoutSecrets converts an error of net/http to one that shows no secret. Some of net/http's errors quote the server's answer, which may
// repeat parts of the URL or the headers. So only errors that never quote an answer keep their text: those of connections and of TLS.
func withoutSecrets(err error) error {
	if outer, ok := errors.AsType[*url.Error](err); ok {
		if outer.Timeout() {
			return errors.New("no answer in time")
		}
		err = outer.Err // outer shows the URL.
	}
	_, ofConnection := errors.AsType[*net.OpError](err)
	ofTLS := strings.HasPrefix(err.Error(), "tls: ")
	hungUp := errors.Is(err, io.EOF)
	if !ofConnection && !ofTLS && !hungUp && !errors.Is(err, http.ErrSchemeMismatch) {
		return errors.New("the request, its answer or that of a proxy is not valid HTTP")
	}
	return errors.New(err.Error()) // The result has only the text of err, and not its causes, which may say more.
}
