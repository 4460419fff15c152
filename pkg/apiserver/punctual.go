package apiserver

import (
	"net/http"

	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// punctual ends a request when its context ends. Before a request is sent, client-go runs an exec plugin whose token
// has expired, however long that takes and whatever became of the context; a plugin that hangs would hold a drain past
// its deadline. So would a request that waits for the token that another one gets.
type punctual struct{ next http.RoundTripper }

var _ utilnet.RoundTripperWrapper = punctual{}

// WrappedRoundTripper lets client-go find the connections behind.
func (p punctual) WrappedRoundTripper() http.RoundTripper { return p.next }

// RoundTrip is next's, or the context's error, whichever comes first.
func (p punctual) RoundTrip(request *http.Request) (*http.Response, error) {
	type outcome struct {
		response *http.Response
		err      error
	}
	done, ctx := make(chan outcome), request.Context()
	go func() {
		response, err := p.next.RoundTrip(request)
		select {
		case done <- outcome{response, err}:
		case <-ctx.Done():
			if err == nil {
				_ = response.Body.Close() // Nobody waits for it any more.
			}
		}
	}()
	select {
	case o := <-done:
		return o.response, o.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
