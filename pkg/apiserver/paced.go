package apiserver

import (
	"context"
	"net/http"
	"net/http/httptrace"
	"sync"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
)

const (
	// dialsAtOnce is how many requests may be without a connection at the same time. One dial makes room for a hundred requests
	// where the API server speaks HTTP/2; more than one are tried, as one may hang.
	dialsAtOnce = 4
	// dialPause is for how long a request counts among those, so that others may try when all of them hang.
	dialPause = 500 * time.Millisecond
)

// paced lets few requests look for a connection at the same time. net/http dials for each request that finds all connections full, and
// knows only afterwards that one new connection has room for all of them: of a thousand requests at once, nine hundred would dial, and
// each handshake takes milliseconds of both processors. Once the first has a connection, those that waited find room on it.
type paced struct {
	next   http.RoundTripper
	places chan struct{}
}

var _ utilnet.RoundTripperWrapper = paced{}

func newPaced(next http.RoundTripper) paced {
	return paced{next: next, places: make(chan struct{}, dialsAtOnce)}
}

// WrappedRoundTripper lets client-go find the connections behind.
func (p paced) WrappedRoundTripper() http.RoundTripper { return p.next }

// RoundTrip is next's.
func (p paced) RoundTrip(request *http.Request) (*http.Response, error) {
	select {
	case p.places <- struct{}{}:
	case <-request.Context().Done():
		if request.Body != nil {
			_ = request.Body.Close() // as a RoundTripper must
		}
		return nil, context.Cause(request.Context())
	}
	leave := sync.OnceFunc(func() { <-p.places })
	defer leave() // without a connection, too
	defer time.AfterFunc(dialPause, leave).Stop()
	trace := &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { leave() }}
	return p.next.RoundTrip(request.WithContext(httptrace.WithClientTrace(request.Context(), trace)))
}
