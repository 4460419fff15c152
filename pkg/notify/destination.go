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
	"net"
	"net/http"
	"net/textproto"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/nth-project/nth/pkg/text"
)

const (
	// noticeHeader carries the notice's ID, by which a receiver recognizes a duplicate.
	noticeHeader = "X-Nth-Notice"
	// defaultContentType applies unless the headers say otherwise.
	defaultContentType = "application/json"
	// maxBusy bounds the pause that an endpoint may ask for.
	maxBusy = 5 * time.Minute
	// maxAnswerHeader bounds the headers of an answer, in bytes: Go's default, 10 MiB, is too much.
	maxAnswerHeader = 64 << 10
)

// Destination is where a webhook posts to. Post and Check read the files each time, so that their content may change. No error shows the URL
// or the headers: both may contain secrets.
type Destination struct {
	// URL is the address, or URLFile a file that contains it.
	URL, URLFile string
	// Headers override those in HeadersFile: lines "Name: value", or one object of JSON.
	Headers     map[string]string
	HeadersFile string
	// Proxy is http://, https://, socks5:// or tcp://, which means http://. If empty there is none: the environment is
	// ignored.
	Proxy string
	// CAFile contains certificates, in PEM, that are trusted in addition to the system's.
	CAFile string
	// Timeout bounds one post. UserAgent is sent with it.
	Timeout   time.Duration
	UserAgent string
}

// ContentType returns the content type of a message. The headers may replace defaultContentType.
func (d Destination) ContentType() string {
	headers, err := d.headers()
	if err != nil {
		return defaultContentType // The error is reported when something is posted.
	}
	return headers.Get("Content-Type")
}

// Check returns the faults that can be found without posting. It reports none if there is neither a URL nor a file with one: then the webhook is
// off.
func (d Destination) Check() []error {
	var noURL error
	if d.URL != "" || d.URLFile != "" {
		_, noURL = d.target()
	}
	_, noHeaders := d.headers()
	_, noCertificates := d.trusted()
	_, noProxy := d.proxy()
	return slices.DeleteFunc([]error{noURL, noHeaders, noCertificates, noProxy}, func(fault error) bool { return fault == nil })
}

// Post sends one message, text, with the notice's ID. nil means that the receiver has it. A refusedError means that the receiver never takes
// this message, and a busyError that it asks for a pause. After any other error, the queue tries again.
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
		return withoutSecrets(err)
	}
	request.Header = headers
	if host := headers.Get("Host"); host != "" { // net/http ignores it among the headers.
		request.Host = host
	}
	request.Header.Set(noticeHeader, id)
	client := &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	answer, err := client.Do(request)
	if err != nil {
		return withoutSecrets(err)
	}
	defer func() { _ = answer.Body.Close() }()
	_, _ = io.CopyN(io.Discard, answer.Body, 4<<10) // Only the status counts. A server that still writes its answer is not cut off.
	return checkAnswer(answer)
}

// checkAnswer returns what an answer means for the notice: the results are those of Post.
func checkAnswer(answer *http.Response) error {
	status := answer.StatusCode
	text := strings.TrimSpace(fmt.Sprintf("it answers %d %s", status, http.StatusText(status)))
	if status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable {
		if seconds, err := strconv.ParseUint(answer.Header.Get("Retry-After"), 10, 16); err == nil && seconds > 0 {
			return busyError{text, min(time.Duration(seconds)*time.Second, maxBusy)}
		}
	}
	switch {
	case status/100 == 2:
		return nil
	case status/100 == 3:
		return fmt.Errorf("%s: redirects are not followed", text)
	case status == http.StatusBadRequest, status == http.StatusRequestEntityTooLarge,
		status == http.StatusUnsupportedMediaType, status == http.StatusUnprocessableEntity: // They are about this message.
		return refusedError{text + ": it does not take this message"}
	}
	return errors.New(text) // Others, also 401 and 404, end once an operator corrects the settings or the receiver.
}

// target returns the URL to post to. No error shows it.
func (d Destination) target() (*url.URL, error) {
	text, name := d.URL, "the URL"
	if text == "" {
		content, err := readFile(d.URLFile, maxSecretSize)
		if err != nil {
			return nil, fmt.Errorf("reading the URL: %w", err)
		}
		text, name = strings.TrimSpace(content), "the URL in "+d.URLFile
	}
	target, err := url.Parse(text) // Its error would contain the text.
	if err != nil || target.Hostname() == "" || target.Scheme != "http" && target.Scheme != "https" {
		return nil, fmt.Errorf("%s is no URL that begins with http:// or https://", name)
	}
	return target, nil
}

// headers returns the headers of a post: the defaults, those in the file, and those in the settings, which override in that sequence.
func (d Destination) headers() (http.Header, error) {
	headers := http.Header{"Content-Type": {defaultContentType}, "User-Agent": {d.UserAgent}}
	if d.HeadersFile != "" {
		content, err := readFile(d.HeadersFile, maxSecretSize)
		if err != nil {
			return nil, fmt.Errorf("reading the headers: %w", err)
		}
		if err := parseHeaders(content, headers); err != nil {
			return nil, err
		}
	}
	for name, value := range d.Headers {
		headers.Set(name, value)
	}
	return headers, nil
}

// parseHeaders parses the content of a headers file into headers: lines of "Name: value", or one object of JSON. Its errors show nothing of
// the content.
func parseHeaders(content string, headers http.Header) error {
	if strings.HasPrefix(strings.TrimSpace(content), "{") {
		var object map[string]string
		if json.Unmarshal([]byte(content), &object) != nil { // Its error would contain a part of the text.
			return errors.New("reading the headers: they begin with { but are no object of texts in JSON")
		}
		for name, value := range object {
			if !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(value) {
				return errors.New("reading the headers: HTTP does not allow a name or a value in them")
			}
			headers.Set(name, value)
		}
		return nil
	}
	number := 0
	for line := range strings.Lines(content) {
		number++
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue // It is empty, or a comment.
		}
		name, value, found := strings.Cut(line, ":")
		value = textproto.TrimString(value)
		if !found || !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(value) {
			return fmt.Errorf("reading the headers: line %d is not \"Name: value\"", number)
		}
		headers.Set(name, value)
	}
	return nil
}

// transport returns a transport for one post. No connection is kept: the next notice may be weeks away.
func (d Destination) transport() (*http.Transport, error) {
	transport := &http.Transport{DisableKeepAlives: true, MaxResponseHeaderBytes: maxAnswerHeader}
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

// trusted returns the certificates to trust: the system's and those in CAFile. It returns nil, which means the system's, without CAFile.
func (d Destination) trusted() (*x509.CertPool, error) {
	if d.CAFile == "" {
		return nil, nil
	}
	pem, err := readFile(d.CAFile, maxCASize)
	if err != nil {
		return nil, fmt.Errorf("reading the certificates to trust: %w", err)
	}
	trusted, err := x509.SystemCertPool()
	if err != nil { // The system has none: only those in CAFile are trusted.
		trusted = x509.NewCertPool()
	}
	if !trusted.AppendCertsFromPEM([]byte(pem)) {
		return nil, fmt.Errorf("reading the certificates to trust: there is none in %s", d.CAFile)
	}
	return trusted, nil
}

// proxy returns the proxy's URL; nil if there is none.
func (d Destination) proxy() (*url.URL, error) {
	if d.Proxy == "" {
		return nil, nil
	}
	proxy, err := url.Parse(d.Proxy)
	if err != nil || proxy.Hostname() == "" || text.HidesUser(proxy) { // The host may be a part of the password.
		return nil, errors.New("the proxy is no URL such as \"http://proxy.example:3128\"")
	}
	switch proxy.Scheme {
	case "tcp": // as in the settings of aws-node-termination-handler
		proxy.Scheme = "http"
	case "http", "https", "socks5":
	default:
		return nil, fmt.Errorf("the proxy's URL begins with %q, which is none of http, https, socks5 and tcp", proxy.Scheme)
	}
	return proxy, nil
}

// withoutSecrets returns an error that says why a request failed, but shows no secret. Some of net/http's errors quote the server's answer,
// which may repeat parts of the URL or the headers. So only errors without such quotes are shown: those of connections, of TLS, and of a
// connection or context that has ended.
func withoutSecrets(err error) error {
	if outer, ok := errors.AsType[*url.Error](err); ok {
		if outer.Timeout() {
			return errors.New("no answer in time")
		}
		err = outer.Err
	}
	_, ofConnection := errors.AsType[*net.OpError](err)
	shown := slices.ContainsFunc([]error{io.EOF, io.ErrUnexpectedEOF, context.Canceled, http.ErrSchemeMismatch}, func(known error) bool {
		return errors.Is(err, known)
	})
	if !ofConnection && !shown && !strings.HasPrefix(err.Error(), "tls: ") {
		return errors.New("the request, its answer or that of a proxy is not as HTTP wants it")
	}
	return errors.New(err.Error())
}

// These bound, in bytes, the files with the URL and the headers, a template, and certificates. All certificates of a Linux system take a quarter
// of a mebibyte.
const (
	maxSecretSize   = 64 << 10
	maxTemplateSize = 128 << 10
	maxCASize       = 4 << 20
)

// ReadTemplate reads a template's file. An empty file is an error. The error names the file.
func ReadTemplate(path string) (string, error) {
	text, err := readFile(path, maxTemplateSize)
	if err == nil && text == "" {
		err = fmt.Errorf("%s is empty", path)
	}
	return text, err
}

// readFile reads a file of no more than longest bytes. It refuses what is not a regular file, as a pipe or a device may never end. The error
// names the file, and contains nothing of its content.
func readFile(path string, longest int64) (string, error) {
	switch found, err := os.Stat(path); {
	case err != nil:
		return "", err
	case !found.Mode().IsRegular():
		return "", fmt.Errorf("%s is not a file", path)
	}
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = file.Close() }() // Nothing was written.
	content, err := io.ReadAll(io.LimitReader(file, longest+1))
	if err == nil && int64(len(content)) > longest {
		err = fmt.Errorf("%s is longer than %d bytes", path, longest)
	}
	return string(content), err
}
