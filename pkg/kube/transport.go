package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"sync"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"
)

// NewTransport returns a transport for the API server that a configuration names. It has connections of its own, and adds the configuration's
// credential to requests. NewTransport makes no request.
func NewTransport(config *rest.Config) (http.RoundTripper, error) {
	build := func() (*http.Transport, error) { return connections(config) }
	first, err := build()
	if err != nil {
		return nil, err
	}
	settings, err := config.TransportConfig()
	if err != nil {
		return nil, err
	}
	return transport.HTTPWrappersForConfig(settings, newPaced(&leaving{build: build, used: &connected{Transport: first}}))
}

// connections returns a transport that has no connections yet, and adds no credential. It reads the files that the configuration names.
func connections(config *rest.Config) (*http.Transport, error) {
	settings, err := config.TransportConfig()
	if err != nil {
		return nil, err
	}
	tlsConfig, err := transport.TLSConfigFor(settings)
	if err != nil {
		return nil, err
	}
	proxy := settings.Proxy
	if proxy == nil {
		proxy = http.ProxyFromEnvironment
	}
	return &http.Transport{
		Proxy: proxy,
		OnProxyConnectResponse: func(_ context.Context, _ *url.URL, _ *http.Request, answer *http.Response) error {
			if answer.StatusCode == http.StatusOK {
				return nil
			}
			// net/http would repeat what the proxy says, which may be the user and password that it was given.
			return fmt.Errorf("the proxy answers %d %s", answer.StatusCode, http.StatusText(answer.StatusCode))
		},
		DialContext:         dial,
		TLSClientConfig:     tlsConfig,
		TLSHandshakeTimeout: TLS,
		ForceAttemptHTTP2:   true,
		HTTP2:               &http.HTTP2Config{SendPingTimeout: Ping, PingTimeout: PingAnswer},
		IdleConnTimeout:     Idle,
		MaxIdleConnsPerHost: 25, // with HTTP/1.1, as client-go has it
		DisableCompression:  settings.DisableCompression,
	}, nil
}

const (
	// leaveAfter is how many requests in a row must fail before leaving leaves their connections.
	leaveAfter = 3
	// firstLeave is how long new connections are kept, even if requests fail. The time doubles with each change of connections, up to
	// longestLeave, until a request succeeds.
	firstLeave, longestLeave = time.Second, 10 * time.Second
)

// leaving is a transport that leaves its connections when several requests in a row have failed. With HTTP/2, all requests share one
// connection. Behind a load balancer, it may lead to the one API server that is dead inside, though that answers pings. Requests that are
// under way may end on the old connection. The next request makes a new one, for which leaving reads the files of the configuration again.
type leaving struct {
	build func() (*http.Transport, error) // returns a transport without connections

	mu        sync.Mutex
	used      *connected
	pause     time.Duration // from firstLeave to longestLeave; 0 after a success
	notBefore time.Time     // when connections may be left again
}

// connected is a transport, and how well its connections work.
type connected struct {
	*http.Transport
	// reads and writes are how many requests of each sort have failed in a row. They count apart, as an API server without etcd fails writes
	// and still answers reads from its cache.
	reads, writes int
}

var _ utilnet.RoundTripperWrapper = &leaving{}

// WrappedRoundTripper lets client-go find the transport below, whose idle connections it may close.
func (l *leaving) WrappedRoundTripper() http.RoundTripper {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.used.Transport
}

// RoundTrip implements http.RoundTripper. It notes whether the request has succeeded, since several failures in a row make note leave the
// connections. It does so at once if the request fails, and otherwise when the caller has read the answer's body to its end.
func (l *leaving) RoundTrip(request *http.Request) (*http.Response, error) {
	l.mu.Lock()
	used := l.used
	l.mu.Unlock()
	began := time.Now()
	response, err := used.RoundTrip(request)
	failed := func() {
		// A caller that cancels early says nothing about the server. One that has waited for a read's whole timeout does: the server hangs.
		if !errors.Is(context.Cause(request.Context()), context.Canceled) || time.Since(began) >= Read {
			l.note(used, request.Method, false)
		}
	}
	switch {
	case err != nil:
		failed()
	case response.StatusCode >= http.StatusInternalServerError || response.StatusCode == http.StatusUnauthorized:
		// 401 counts, as a new connection reads the client certificate again, which may have been renewed.
		l.note(used, request.Method, false)
	case request.URL.Query().Get("watch") == "": // A watch is answered from a cache, so that its success says nothing about other requests.
		response.Body = &observedBody{ReadCloser: response.Body, failed: failed, well: func() { l.note(used, request.Method, true) }}
	}
	return response, err
}

// observedBody is the body of an answer. It calls well when it was read to its end, and failed when reading it fails: a server may hang in the
// middle of an answer.
type observedBody struct {
	io.ReadCloser
	well, failed func()
	ended        bool
}

// Read implements io.Reader.
func (b *observedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == nil || b.ended { // The body continues, or its end was reported before.
		return n, err
	}
	if b.ended = true; errors.Is(err, io.EOF) {
		b.well()
	} else {
		b.failed()
	}
	return n, err
}

// note counts whether a request over the connections of used has succeeded (well). If too many have failed in a row, the next request gets new
// connections.
func (l *leaving) note(used *connected, method string, well bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if used != l.used { // These connections have been left already.
		return
	}
	failed := &used.writes
	if method == http.MethodGet {
		failed = &used.reads
	}
	if well {
		*failed, l.pause = 0, 0
		return
	}
	*failed++
	if *failed < leaveAfter || time.Now().Before(l.notBefore) {
		return
	}
	next, err := l.build()
	if err != nil {
		return // A file is being replaced; what was read before may still do.
	}
	l.used = &connected{Transport: next}
	l.pause = min(max(2*l.pause, firstLeave), longestLeave)
	l.notBefore = time.Now().Add(l.pause)
	go used.CloseIdleConnections() // It may wait for a lock of the old transport.
}

const (
	// maxDials is how many requests may ask net/http for a connection at the same time. With HTTP/2, one new connection serves a
	// hundred requests. More than one is dialed because one may hang.
	maxDials = 4
	// dialSlotTimeout is how long a request may hold its slot, so that others can try while some hang.
	dialSlotTimeout = 500 * time.Millisecond
)

// paced limits how many requests ask net/http for a connection at the same time. net/http dials for each request that finds no free
// connection, and learns only afterwards that an HTTP/2 connection serves many. Of a thousand requests at once, nine hundred would dial. Each
// TLS handshake costs client and server milliseconds of processor time. With the limit, the other requests use the first connections.
type paced struct {
	next  http.RoundTripper
	slots chan struct{} // has an element for each request that holds a slot
}

var _ utilnet.RoundTripperWrapper = paced{}

func newPaced(next http.RoundTripper) paced {
	return paced{next: next, slots: make(chan struct{}, maxDials)}
}

// WrappedRoundTripper lets client-go find the transport below, whose idle connections it may close.
func (p paced) WrappedRoundTripper() http.RoundTripper { return p.next }

// RoundTrip implements http.RoundTripper. The request holds a slot until it has a connection, but no longer than dialSlotTimeout.
func (p paced) RoundTrip(request *http.Request) (*http.Response, error) {
	select {
	case p.slots <- struct{}{}:
	case <-request.Context().Done():
		if request.Body != nil {
			_ = request.Body.Close() // as a RoundTripper must
		}
		return nil, context.Cause(request.Context())
	}
	leave := sync.OnceFunc(func() { <-p.slots })
	defer leave()
	defer time.AfterFunc(dialSlotTimeout, leave).Stop()
	trace := &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { leave() }}
	return p.next.RoundTrip(request.WithContext(httptrace.WithClientTrace(request.Context(), trace)))
}
