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
	return transport.HTTPWrappersForConfig(settings, &leaving{build: build, used: first})
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

// mostConnections is how many connections to the API server a transport has. With HTTP/2, each serves a hundred requests at once. But net/http
// dials for each request that finds no free connection, and learns only afterwards that the first would have served many.
const mostConnections = 32

const (
	// leaveAfter is how many requests in a row must fail before leaving leaves their connections.
	leaveAfter = 3
	// leavePause is how long new connections are kept, even if requests fail.
	leavePause = 5 * time.Second
)

// leaving is a transport that leaves its connections when several requests in a row have failed. With HTTP/2, all requests share one
// connection. Behind a load balancer, it may lead to the one API server that is dead inside, though that answers pings. Requests that are
// under way may end on the old connection. The next request makes a new one, for which leaving reads the files of the configuration again.
type leaving struct {
	build func() (*http.Transport, error) // returns a transport without connections

	mu        sync.Mutex
	used      *http.Transport
	reads     int       // how many of these in a row have failed over its connections
	writes    int       // the same: a server that answers reads from its cache may fail all writes
	notBefore time.Time // when these connections may be left
}

var _ utilnet.RoundTripperWrapper = &leaving{}

// WrappedRoundTripper lets client-go find the transport below, whose idle connections it may close.
func (l *leaving) WrappedRoundTripper() http.RoundTripper {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.used
}

// RoundTrip implements http.RoundTripper. It notes whether the request has succeeded.
func (l *leaving) RoundTrip(request *http.Request) (*http.Response, error) {
	used, began := l.WrappedRoundTripper(), time.Now()
	response, err := used.RoundTrip(request)
	switch {
	case err != nil:
		// A caller that cancels early says nothing about the server. One that has waited for a read's whole timeout does: the server hangs.
		if !errors.Is(context.Cause(request.Context()), context.Canceled) || time.Since(began) >= Read {
			l.note(used, request.Method, false)
		}
	case response.StatusCode >= http.StatusInternalServerError || response.StatusCode == http.StatusUnauthorized:
		// 401 counts, as a new connection reads the client certificate again, which may have been renewed.
		l.note(used, request.Method, false)
	case request.URL.Query().Get("watch") == "": // A watch is answered from a cache, so that its success says nothing about other requests.
		l.note(used, request.Method, true)
	}
	return response, err
}

// note counts whether a request over the connections of used has succeeded (well). If too many have failed in a row, the next request gets new
// connections.
func (l *leaving) note(used http.RoundTripper, method string, well bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if used != l.used { // These connections have been left already.
		return
	}
	failed := &l.writes
	if method == http.MethodGet {
		failed = &l.reads
	}
	if *failed++; well {
		*failed = 0
	}
	if *failed < leaveAfter || time.Now().Before(l.notBefore) {
		return
	}
	next, err := l.build()
	if err != nil {
		return // A file is being replaced; what was read before may still do.
	}
	go l.used.CloseIdleConnections() // It may wait for a lock of the old transport.
	l.used, l.reads, l.writes, l.notBefore = next, 0, 0, time.Now().Add(leavePause)
}
