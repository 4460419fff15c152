package imds

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	// bodyLimit is the most that is read of any answer, in bytes. The longest document is the history of maintenance, with
	// about 250 bytes for each event that the instance ever had.
	bodyLimit = 64 << 10
	// headerLimit is the most that is read of the header of any answer, in bytes.
	headerLimit = 16 << 10
	// lineBuffer is enough for a request, and for the header of an answer as EC2 gives it, in bytes.
	lineBuffer = 1 << 10
	// dialTimeout is short because the service is on the same host: if there is no connection by then, a packet was lost,
	// and the next poll comes sooner than the kernel's retransmission.
	dialTimeout = 500 * time.Millisecond
)

// The header with a session token's lifetime, and the longest that EC2 gives, in seconds.
const (
	tokenTTLHeader = "X-Aws-Ec2-Metadata-Token-Ttl-Seconds"
	maxTokenTTL    = 21600
)

// dialer makes a connection; nil means the network's own.
type dialer func(ctx context.Context, network, address string) (net.Conn, error)

// httpClient speaks to the metadata service alone: no proxy and no redirect, which could carry the session token
// elsewhere, nothing unbounded, and one connection for each request, as EC2 closes it anyway. It is not an http.Client
// because redirects, cookies and timeouts are all that this would add.
type httpClient struct {
	source *Source
	dial   dialer
	https  *http.Transport // for a custom endpoint
}

func (s *Source) newHTTPClient() *httpClient {
	dial := s.dial
	if dial == nil {
		dial = (&net.Dialer{Timeout: dialTimeout, KeepAlive: -1}).DialContext
	}
	return &httpClient{source: s, dial: dial, https: &http.Transport{
		DialContext:            dial,
		DisableKeepAlives:      true,
		DisableCompression:     true,
		MaxResponseHeaderBytes: headerLimit,
	}}
}

// Do implements imds.HTTPClient. It reports requests for a session token to Options.Renewed.
func (c *httpClient) Do(r *http.Request) (*http.Response, error) {
	resp, err := c.exchange(r)
	if r.Method != http.MethodPut || c.source.opts.Renewed == nil {
		return resp, err
	}
	refused := err
	if err == nil && resp.StatusCode != http.StatusOK {
		refused = unexpectedStatus(resp.StatusCode)
	}
	c.source.opts.Renewed(refused)
	return resp, err
}

// exchange sends a request, limits and checks the answer, and notes the outcome in the exchange of the request's context.
func (c *httpClient) exchange(r *http.Request) (*http.Response, error) {
	last, _ := r.Context().Value(exchangeKey{}).(*exchange)
	if last == nil {
		last = new(exchange)
	}
	last.begin(r.Method == http.MethodPut)
	asked := time.Now()
	resp, err := c.reach(r)
	if err != nil {
		last.err = withoutAddresses(err)
		return nil, last.err
	}
	last.status = resp.StatusCode
	noteForCheck(r.Context(), resp, time.Since(asked))
	resp.Body = &boundedBody{http.MaxBytesReader(nil, resp.Body, bodyLimit), last}
	if last.token.Load() && resp.StatusCode == http.StatusOK {
		if err := checkToken(resp); err != nil {
			last.err = err
			return nil, err
		}
	}
	return resp, nil
}

// reach sends a request to whichever of the service's own addresses answers. A custom endpoint has only one.
func (c *httpClient) reach(r *http.Request) (*http.Response, error) {
	known := c.source.addresses
	if known == nil || r.URL.Host != addressIPv4 {
		return c.send(r)
	}
	var unreached []string
	for _, address := range known.order() {
		there := r.Clone(r.Context())
		there.URL.Host, there.Host = address, address
		resp, err := c.send(there)
		if err == nil {
			known.note(address, true)
			return resp, nil
		}
		if lost := new(connectError); !errors.As(err, &lost) || r.Context().Err() != nil {
			return nil, err
		}
		known.note(address, false)
		unreached = append(unreached, fmt.Sprintf("%s (%s)", address, withoutAddresses(err)))
	}
	return nil, fmt.Errorf("the metadata service cannot be reached at %s", strings.Join(unreached, ", nor at "))
}

// send sends a request, and tells the throttle how long the answer takes.
func (c *httpClient) send(r *http.Request) (*http.Response, error) {
	roundTrip := c.direct
	if r.URL.Scheme != "http" {
		roundTrip = c.https.RoundTrip
	}
	asked := time.Now()
	resp, err := roundTrip(r)
	if err == nil {
		c.source.throttle.noteAnswer(time.Since(asked))
	}
	return resp, err
}

// checkToken refuses an answer that is no session token. The SDK would keep it for as long as the answer says, and a
// token that fits in no header fails each request before the service could refuse it and have it renewed.
func checkToken(resp *http.Response) error {
	defer func() { _ = resp.Body.Close() }()
	token, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	unprintable := func(r rune) bool { return r <= ' ' || r > '~' }
	if len(token) == 0 || bytes.ContainsFunc(token, unprintable) {
		return fmt.Errorf("the metadata service answers %d bytes that are no token", len(token))
	}
	ttl := resp.Header.Get(tokenTTLHeader)
	if seconds, err := strconv.Atoi(ttl); err != nil || seconds < 1 || seconds > maxTokenTTL {
		return fmt.Errorf("the metadata service gives a token for %q seconds", ttl)
	}
	resp.Body = io.NopCloser(bytes.NewReader(token))
	return nil
}

// boundedBody is the body of an answer, whose errors are noted.
type boundedBody struct {
	io.ReadCloser
	last *exchange
}

// Read implements io.Reader.
func (b *boundedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == nil || errors.Is(err, io.EOF) {
		return n, err
	}
	if tooLarge := new(http.MaxBytesError); errors.As(err, &tooLarge) {
		err = fmt.Errorf("the answer is longer than %d KiB", bodyLimit>>10)
	}
	b.last.err = withoutAddresses(err)
	return n, b.last.err
}

// withoutAddresses removes the addresses from a network error: the local port differs each time, and the same trouble
// should read the same.
func withoutAddresses(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		return fmt.Errorf("%s: %w", op.Op, op.Err)
	}
	return err
}

// The service's own addresses. The second exists on Nitro instances with HttpProtocolIpv6 enabled, and is the only one
// that an instance in an IPv6-only subnet can reach.
const (
	addressIPv4 = "169.254.169.254"
	addressIPv6 = "[fd00:ec2::254]"
)

// switchAfter is for how long no connection to an address can have been made before the other one is tried again: an
// outage is no reason to switch.
const switchAfter = 10 * time.Second

// addresses remembers which of the service's two addresses has answered.
type addresses struct {
	mu       sync.Mutex
	current  string    // has answered; "" if none has
	lostFrom time.Time // since then no connection could be made to it; zero if one could
}

// order returns the addresses in the order in which they are to be tried.
func (a *addresses) order() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch lost := !a.lostFrom.IsZero() && time.Since(a.lostFrom) >= switchAfter; {
	case a.current == "":
		return []string{addressIPv4, addressIPv6}
	case !lost:
		return []string{a.current}
	case a.current == addressIPv4:
		return []string{addressIPv4, addressIPv6}
	default:
		return []string{addressIPv6, addressIPv4}
	}
}

// note notes whether an address has answered.
func (a *addresses) note(address string, answered bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case answered:
		a.current, a.lostFrom = address, time.Time{}
	case address == a.current && a.lostFrom.IsZero():
		a.lostFrom = time.Now()
	}
}

// connectError means that there is no connection to the service.
type connectError struct{ error }

// Unwrap returns the cause.
func (e *connectError) Unwrap() error { return e.error }

// direct sends a request without a body on a connection of its own, in the calling goroutine. EC2 closes the connection
// after each answer, so nothing else is needed: an http.Transport has three more goroutines for each, and switching
// between them is a good part of what an idle nth costs. The connection ends with the answer's body, or with the request's
// context.
func (c *httpClient) direct(r *http.Request) (*http.Response, error) {
	address := net.JoinHostPort(r.URL.Hostname(), cmp.Or(r.URL.Port(), "80"))
	conn, err := c.dial(r.Context(), "tcp", address)
	if err != nil {
		return nil, &connectError{err}
	}
	stop := context.AfterFunc(r.Context(), func() { _ = conn.Close() })
	resp, err := exchangeOn(conn, r)
	if err != nil {
		stop()
		_ = conn.Close()
		return nil, cmp.Or(r.Context().Err(), err)
	}
	resp.Body = connBody{ReadCloser: resp.Body, conn: conn, ctxErr: r.Context().Err, stop: stop}
	return resp, nil
}

// exchangeOn sends the request and reads the answer up to its body.
func exchangeOn(conn net.Conn, r *http.Request) (*http.Response, error) {
	r.Close = true
	out := bufio.NewWriterSize(conn, lineBuffer)
	if err := r.Write(out); err != nil {
		return nil, err
	}
	if err := out.Flush(); err != nil {
		return nil, err
	}
	header := &io.LimitedReader{R: conn, N: headerLimit}
	in := bufio.NewReaderSize(header, lineBuffer)
	for {
		resp, err := http.ReadResponse(in, r)
		switch {
		case err != nil && header.N <= 0:
			return nil, fmt.Errorf("the answer's header is longer than %d KiB", headerLimit>>10)
		case err != nil:
			return nil, err
		case resp.StatusCode >= http.StatusOK: // 1xx announces another answer
			header.N = math.MaxInt64
			return resp, nil
		}
	}
}

// connBody is the body of the only answer on a connection.
type connBody struct {
	io.ReadCloser
	conn   net.Conn
	ctxErr func() error // of the request's context
	stop   func() bool  // stops watching that
}

// Read implements io.Reader. A read that fails because the request's context has ended returns that context's error.
func (b connBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = cmp.Or(b.ctxErr(), err)
	}
	return n, err
}

// Close implements io.Closer.
func (b connBody) Close() error {
	b.stop()
	return b.conn.Close()
}
