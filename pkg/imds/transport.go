package imds

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// The headers with a session token and its lifetime, and the longest that EC2 gives, in seconds.
const (
	tokenHeader    = "X-Aws-Ec2-Metadata-Token"
	tokenTTLHeader = "X-Aws-Ec2-Metadata-Token-Ttl-Seconds"
	maxTokenTTL    = 21600
)

// token is the session token that all clients of a source share.
type token struct {
	fetching chan struct{} // holds the one request that fetches one

	mu    sync.Mutex
	value string
	until time.Time
}

// ask answers a request for a session token with the one that there is. If there is none, one request fetches it, and others wait for
// that, each until its own limit.
func (t *token) ask(r *http.Request, fetch func() (*http.Response, error)) (*http.Response, error) {
	select {
	case <-r.Context().Done():
		return nil, r.Context().Err()
	case t.fetching <- struct{}{}:
		defer func() { <-t.fetching }()
	}
	if resp := t.held(); resp != nil {
		return resp, nil
	}
	resp, err := fetch()
	if err == nil && resp.StatusCode != http.StatusOK {
		return resp, nil
	}
	if err == nil {
		err = t.take(resp)
		_ = resp.Body.Close()
	}
	if err != nil {
		return nil, err
	}
	return t.held(), nil
}

// held is an answer with the token; nil if there is none, or it has less than a second left.
func (t *token) held() *http.Response {
	t.mu.Lock()
	defer t.mu.Unlock()
	left := int(time.Until(t.until).Seconds())
	if left < 1 {
		return nil
	}
	header := http.Header{}
	header.Set(tokenTTLHeader, strconv.Itoa(left))
	return &http.Response{StatusCode: http.StatusOK, Header: header, Body: io.NopCloser(strings.NewReader(t.value))}
}

// take keeps the token of an answer, and refuses what is none. The SDK would keep it for as long as the answer says, and a token that
// fits in no header fails each request before the service could refuse it and have it renewed.
func (t *token) take(resp *http.Response) error {
	value, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	unprintable := func(r rune) bool { return r <= ' ' || r > '~' }
	if len(value) == 0 || bytes.ContainsFunc(value, unprintable) {
		return fmt.Errorf("the metadata service answers %d bytes that are no token", len(value))
	}
	said := resp.Header.Get(tokenTTLHeader)
	seconds, err := strconv.Atoi(said)
	if err != nil || seconds < 1 || seconds > maxTokenTTL {
		return fmt.Errorf("the metadata service gives a token for %.32q seconds", said)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	// A second's fraction is the token's as well, or one that lasts for a second would never be given.
	t.value, t.until = string(value), time.Now().Add(time.Duration(seconds)*time.Second+time.Second/2)
	return nil
}

// drop forgets a token that the service has refused.
func (t *token) drop(value string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.value == value {
		t.until = time.Time{}
	}
}

// httpClient speaks to the metadata service alone: no proxy and no redirect, which could carry the session token elsewhere, nothing
// unbounded, and one connection for each request, as EC2 closes it anyway.
type httpClient struct {
	source    *Source
	transport *http.Transport
}

func (s *Source) newHTTPClient() *httpClient {
	dial := (&net.Dialer{Timeout: dialTimeout, KeepAlive: -1}).DialContext
	return &httpClient{source: s, transport: &http.Transport{
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			if s.dial != nil {
				return s.dial(ctx, network, address)
			}
			return dial(ctx, network, address)
		},
		DisableKeepAlives:      true,
		DisableCompression:     true,
		MaxResponseHeaderBytes: headerLimit,
	}}
}

// Do implements imds.HTTPClient. It gives the token that there is, limits and checks an answer, and notes how the exchange ended in the
// one of the request's context.
func (c *httpClient) Do(r *http.Request) (*http.Response, error) {
	last, _ := r.Context().Value(exchangeKey{}).(*exchange)
	if last == nil {
		last = &exchange{size: shortDocument, answers: new(answers)}
	}
	last.token, last.status, last.err = r.Method == http.MethodPut, 0, nil
	var resp *http.Response
	var err error
	if last.token {
		resp, err = c.source.token.ask(r, func() (*http.Response, error) { return c.exchange(r, last) })
	} else if resp, err = c.exchange(r, last); err == nil && resp.StatusCode == http.StatusUnauthorized {
		c.source.token.drop(r.Header.Get(tokenHeader))
	}
	if err != nil {
		last.err = withoutAddresses(err)
		return nil, last.err
	}
	last.status = resp.StatusCode
	return resp, nil
}

func (c *httpClient) exchange(r *http.Request, last *exchange) (*http.Response, error) {
	asked := time.Now()
	resp, err := c.reach(r)
	if err == nil {
		last.answers.note(resp, time.Since(asked))
		resp.Body = &boundedBody{http.MaxBytesReader(nil, resp.Body, last.size), last}
	}
	return resp, err
}

func (a *answers) note(resp *http.Response, took time.Duration) {
	a.endpoint = resp.Request.URL.Scheme + "://" + resp.Request.URL.Host
	a.slowest = max(a.slowest, took)
	if date, err := http.ParseTime(resp.Header.Get("Date")); err == nil {
		a.date, a.at, a.took = date, time.Now(), took
	}
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
		err = fmt.Errorf("the answer is longer than %d KiB", tooLarge.Limit>>10)
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

// reach sends a request to whichever of the service's own addresses answers, first to the one that has answered last. A custom endpoint
// has only one.
func (c *httpClient) reach(r *http.Request) (*http.Response, error) {
	if !c.source.anyAddress || r.URL.Host != addressIPv4 {
		return c.transport.RoundTrip(r)
	}
	order := []string{addressIPv4, addressIPv6}
	if c.source.onIPv6.Load() {
		order = []string{addressIPv6, addressIPv4}
	}
	var unreached []string
	for _, address := range order {
		there := r.Clone(r.Context())
		there.URL.Host, there.Host = address, address
		resp, err := c.transport.RoundTrip(there)
		if err == nil {
			c.source.onIPv6.Store(address == addressIPv6)
			return resp, nil
		}
		if op := new(net.OpError); !errors.As(err, &op) || op.Op != "dial" || r.Context().Err() != nil {
			return nil, err
		}
		unreached = append(unreached, fmt.Sprintf("%s (%s)", address, withoutAddresses(err)))
	}
	return nil, fmt.Errorf("the metadata service cannot be reached at %s", strings.Join(unreached, ", nor at "))
}
