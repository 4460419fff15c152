package kube

import (
	"context"
	"net/http"
	"strings"

	authorization "k8s.io/api/authorization/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// NewClient returns a client of the API server at the address server. The transport through carries its requests: see NewTransport. The client
// has no rate limit: a drain evicts all pods at once, and the API server has priority and fairness. A request has no time limit but that of
// its context.
func NewClient(server string, through http.RoundTripper) (kubernetes.Interface, error) {
	return kubernetes.NewForConfigAndClient(&rest.Config{
		Host: server,
		QPS:  -1,
		ContentConfig: rest.ContentConfig{
			ContentType:        runtime.ContentTypeProtobuf,
			AcceptContentTypes: runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON,
		},
		WarningHandler: rest.NoWarnings{}, // The API server's warnings are meant for authors of manifests.
	}, &http.Client{Transport: through})
}

// Counted returns a transport that calls requested after each request, with the HTTP method and the status code of the response. The status is
// 0 if there was no response. Calls come from several goroutines at once.
func Counted(next http.RoundTripper, requested func(method string, status int)) http.RoundTripper {
	return counted{next, requested}
}

// counted reports each request and the status of its response.
type counted struct {
	next      http.RoundTripper
	requested func(method string, status int)
}

var _ utilnet.RoundTripperWrapper = counted{}

// WrappedRoundTripper lets client-go find the transport below. client-go may close the idle connections of that transport.
func (c counted) WrappedRoundTripper() http.RoundTripper { return c.next }

// RoundTrip implements http.RoundTripper: it makes the request, and then reports it.
func (c counted) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := c.next.RoundTrip(request)
	status := 0
	if err == nil {
		status = response.StatusCode
	}
	c.requested(request.Method, status)
	return response, err
}

// Right is a permission that nth or nth-queue needs.
type Right struct {
	// For says what the right is needed for, in words.
	For string
	// Optional is set if nodes can be drained without the right.
	Optional bool
	// Attributes describe the right to the API server.
	Attributes authorization.ResourceAttributes
}

// String returns the right as the arguments of "kubectl auth can-i".
func (r Right) String() string {
	a := r.Attributes
	words := []string{a.Verb, a.Resource}
	if a.Subresource != "" {
		words[1] += "/" + a.Subresource
	}
	if a.Name != "" {
		words = append(words, a.Name)
	}
	if a.Namespace != "" {
		words = append(words, "-n", a.Namespace)
	}
	return strings.Join(words, " ")
}

// Allowed asks the API server whether the client has the right. A client that has the right may still be refused by admission. The error is
// client-go's, unchanged.
func (r Right) Allowed(ctx context.Context, client kubernetes.Interface) (bool, error) {
	answer, err := client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorization.SelfSubjectAccessReview{
		Spec: authorization.SelfSubjectAccessReviewSpec{ResourceAttributes: &r.Attributes},
	}, meta.CreateOptions{})
	if err != nil {
		return false, err
	}
	return answer.Status.Allowed, nil
}
