package kube

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"
)

// NewTransport returns a transport for the API server that a configuration names. The transport has connections of its own, and adds the
// configuration's credential to requests. NewTransport makes no request.
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
	return transport.HTTPWrappersForConfig(settings, &reconnecting{build: build, used: first})
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
			// net/http would put the proxy's own text into the error. That text may repeat the user and password of the proxy's URL.
			return fmt.Errorf("the proxy answers %d %s", answer.StatusCode, http.StatusText(answer.StatusCode))
		},
		DialContext:         (&net.Dialer{Timeout: Dial, KeepAlive: 30 * time.Second}).DialContext,
		TLSClientConfig:     tlsConfig,
		TLSHandshakeTimeout: TLS,
		ForceAttemptHTTP2:   true,
		HTTP2:               &http.HTTP2Config{SendPingTimeout: Ping, PingTimeout: PingAnswer},
		IdleConnTimeout:     Idle,
		MaxIdleConnsPerHost: mostConnections,
		MaxConnsPerHost:     mostConnections,
		DisableCompression:  settings.DisableCompression,
	}, nil
}

// mostConnections bounds the connections to the API server that a transport has. With HTTP/2, each serves a hundred requests at once. But until
// the first connection is made, net/http does not know that, and dials once for each request.
const mostConnections = 32

const (
	// reconnectAfter is how many requests in a row must fail before the next one gets new connections.
	reconnectAfter = 3
	// reconnectPause is how long new connections are kept, even if requests fail.
	reconnectPause = 5 * time.Second
)

// reconnecting is a transport that changes to new connections when several requests in a row have failed. With HTTP/2, all requests share one
// connection. Behind a load balancer, that connection may lead to an API server that answers pings, but no requests. Requests that are under
// way may end on the old connection. For the new one, the files of the configuration are read again.
type reconnecting struct {
	build func() (*http.Transport, error) // returns a transport without connections

	mu           sync.Mutex
	used         *http.Transport
	failedReads  int       // in a row, over the connections of used
	failedWrites int       // the same; counted apart, as a server that answers reads from its cache may fail all writes
	notBefore    time.Time // used is not replaced before this time
}

var _ utilnet.RoundTripperWrapper = &reconnecting{}

// WrappedRoundTripper lets client-go find the transport below. client-go may close the idle connections of that transport.
func (r *reconnecting) WrappedRoundTripper() http.RoundTripper {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.used
}

// RoundTrip implements http.RoundTripper. It makes the request, and counts it as failed or succeeded.
func (r *reconnecting) RoundTrip(request *http.Request) (*http.Response, error) {
	used, began := r.WrappedRoundTripper(), time.Now()
	response, err := used.RoundTrip(request)
	const failed, succeeded = true, false
	switch {
	case err != nil:
		// A caller that cancels early says nothing about the server. One that has waited for a read's whole timeout does: the server hangs.
		if !errors.Is(context.Cause(request.Context()), context.Canceled) || time.Since(began) >= Read {
			r.count(used, request.Method, failed)
		}
	case response.StatusCode >= http.StatusInternalServerError || response.StatusCode == http.StatusUnauthorized:
		// 401 counts: the client certificate may have been renewed, and a new connection reads it again.
		r.count(used, request.Method, failed)
	case request.URL.Query().Get("watch") == "": // A watch that succeeds is not counted: it is answered from a cache.
		r.count(used, request.Method, succeeded)
	}
	return response, err
}

// count counts a request that went over the connections of the transport used. If too many in a row have failed, the next request gets new
// connections.
func (r *reconnecting) count(used http.RoundTripper, method string, failed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if used != r.used { // Its connections have been replaced already.
		return
	}
	inARow := &r.failedWrites
	if method == http.MethodGet {
		inARow = &r.failedReads
	}
	if !failed {
		*inARow = 0
		return
	}
	*inARow++
	if *inARow < reconnectAfter || time.Now().Before(r.notBefore) {
		return
	}
	next, err := r.build()
	if err != nil {
		return // A file of the configuration is being replaced. The present connections may still work.
	}
	go r.used.CloseIdleConnections() // It may wait for a lock of the old transport.
	r.used, r.failedReads, r.failedWrites, r.notBefore = next, 0, 0, time.Now().Add(reconnectPause)
}
