package apiserver

import (
	"net/http"

	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// counted tells of each request how it was answered.
type counted struct {
	next http.RoundTripper
	tell func(method string, status int) // Options.Requested
}

var _ utilnet.RoundTripperWrapper = counted{}

// WrappedRoundTripper lets client-go find the connections behind.
func (c counted) WrappedRoundTripper() http.RoundTripper { return c.next }

// RoundTrip is next's.
func (c counted) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := c.next.RoundTrip(request)
	status := 0
	if err == nil {
		status = response.StatusCode
	}
	c.tell(request.Method, status)
	return response, err
}
