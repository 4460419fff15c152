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
	"time"
)

// bodyLimit is the most that is read of any answer, in bytes. The longest document is the history of maintenance, with
// about 250 bytes for each event that the instance ever had.
const bodyLimit = 64 << 10

// headerLimit is the most that is read of the header of any answer, in bytes.
const headerLimit = 16 << 10

// dialTimeout is short because the service is on the same host: if no connection is made by then, a packet was lost,
// and the next poll comes sooner than the kernel's own second try.
const dialTimeout = 500 * time.Millisecond

// The header that tells a session token's lifetime, and the longest that EC2 gives, in seconds.
const (
	lifetimeHeader = "X-Aws-Ec2-Metadata-Token-Ttl-Seconds"
	lifetimeLimit  = 21600
)

// dialer makes a connection; nil means the network's own.
type dialer func(ctx context.Context, network, address string) (net.Conn, error)

// newHTTPClient returns a client that speaks to the metadata service alone: no proxy and no redirect, which could
// carry the session token elsewhere, nothing unbounded, and one connection for each request, as EC2 closes it anyway.
func newHTTPClient(dial dialer, svc *service, renewed func(error)) *http.Client {
	if dial == nil {
		dial = (&net.Dialer{Timeout: dialTimeout, KeepAlive: -1}).DialContext
	}
	transport := &http.Transport{
		DialContext:            dial,
		DisableKeepAlives:      true,
		DisableCompression:     true,
		MaxResponseHeaderBytes: headerLimit,
	}
	transport.RegisterProtocol("http", direct{dial}) // an endpoint of one's own may speak HTTPS
	var next http.RoundTripper = timed{transport, svc}
	if svc.addresses != nil {
		next = either{next, svc.addresses}
	}
	return &http.Client{
		Transport:     careful{next: next, renewed: renewed},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// careful makes requests, bounds their answers and notes how they ended in the request's exchange.
type careful struct {
	next    http.RoundTripper
	renewed func(error) // Options.Renewed
}

// RoundTrip implements http.RoundTripper.
func (c careful) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := c.roundTrip(r)
	if r.Method != http.MethodPut || c.renewed == nil {
		return resp, err
	}
	refused := err
	if err == nil && resp.StatusCode != http.StatusOK {
		refused = fmt.Errorf("the metadata service answers %d %s", resp.StatusCode, http.StatusText(resp.StatusCode))
	}
	c.renewed(refused)
	return resp, err
}

func (c careful) roundTrip(r *http.Request) (*http.Response, error) {
	note, _ := r.Context().Value(exchangeKey{}).(*exchange)
	if note == nil {
		note = new(exchange)
	}
	note.begin(r.Method == http.MethodPut)
	asked := time.Now()
	resp, err := c.next.RoundTrip(r)
	if err != nil {
		note.err = steady(err)
		return nil, note.err
	}
	note.status = resp.StatusCode
	noteAnswer(r.Context(), resp, time.Since(asked))
	resp.Body = &body{http.MaxBytesReader(nil, resp.Body, bodyLimit), note}
	if note.token.Load() && resp.StatusCode == http.StatusOK {
		if err := checkToken(resp); err != nil {
			note.err = err
			return nil, err
		}
	}
	return resp, nil
}

// checkToken refuses an answer that is no session token. The SDK would keep it for as long as the answer says, and a
// token that no header can carry fails each request before the service could refuse it and have it renewed.
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
	lifetime := resp.Header.Get(lifetimeHeader)
	if seconds, err := strconv.Atoi(lifetime); err != nil || seconds < 1 || seconds > lifetimeLimit {
		return fmt.Errorf("the metadata service gives a token for %q seconds", lifetime)
	}
	resp.Body = io.NopCloser(bytes.NewReader(token))
	return nil
}

// body is the bounded body of an answer.
type body struct {
	io.ReadCloser
	note *exchange
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == nil || errors.Is(err, io.EOF) {
		return n, err
	}
	if tooLarge := new(http.MaxBytesError); errors.As(err, &tooLarge) {
		err = fmt.Errorf("the answer is longer than %d KiB", bodyLimit>>10)
	}
	b.note.err = steady(err)
	return n, b.note.err
}

// steady takes the addresses out of a network error: the local port differs each time, and the same trouble should
// read the same.
func steady(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		return fmt.Errorf("%s: %w", op.Op, op.Err)
	}
	return err
}
