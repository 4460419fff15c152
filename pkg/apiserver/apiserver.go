// Package apiserver makes clients of the API server for a daemon that drains nodes. They have no rate limit, give up soon on
// an address that does not answer, never prompt at a terminal, and end a request when its context ends, even if a credential
// plugin hangs. A credential that has to be fetched is renewed in the background before it expires.
package apiserver

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	authorization "k8s.io/api/authorization/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/transport"
)

// dialTimeout is how long a connection to one address of the API server may take before the next address is tried.
// client-go's default is 30 s, a quarter of a spot notice.
const dialTimeout = 5 * time.Second

// Options configure a client.
type Options struct {
	// UserAgent identifies the program in the API server's audit log, as in "nth/v1.0.0".
	UserAgent string
	// Requested, if set, is called after each request, from several goroutines at once, with the HTTP method and the status
	// code of the response; 0 if there was no response.
	Requested func(method string, status int)
	// Token, if set, replaces an exec plugin that makes tokens for an EKS cluster. It gets the cluster and the region that
	// the plugin would be called with; an empty region is the instance's own. Role says in a few words whose tokens they are.
	Token func(ctx context.Context, cluster, region string) (token string, expires time.Time, err error)
	Role  string
	// Fallback runs the exec plugin if it does more than make such a token, if Token fails, and if the API server refuses
	// the token.
	Fallback bool
	// Launch, if set, changes how an exec plugin is run. Environment is added to the plugin's environment, as "NAME=value".
	Launch      func(plugin *api.ExecConfig)
	Environment []string
	// Proxy, if set, returns the proxy for a request. A proxy in the kubeconfig takes precedence.
	Proxy func(*http.Request) (*url.URL, error)
}

// Client is a client of the API server. Its requests have no rate limit, and no timeout but their context's.
type Client struct {
	kubernetes.Interface
	// Source is where the configuration was found, and Server the API server's address. Credential describes in a few words
	// the credential that is configured, as in "the exec plugin aws".
	Source, Server, Credential string

	keeper *keeper // nil if the credential does not have to be fetched
}

// Proof describes in a few words the credential that was fetched last, or Credential if none was fetched.
func (c Client) Proof() string {
	if c.keeper == nil {
		return c.Credential
	}
	return cmp.Or(c.keeper.source(), c.Credential)
}

// Doubt reports that the API server accepts the credential, but for another user than expected. It returns true if it is
// worth trying again at once, because the next credential is obtained in another way.
func (c Client) Doubt() bool {
	return c.keeper != nil && c.keeper.alternates && c.keeper.doubt()
}

// Connect makes a client from a kubeconfig file or, if that is "", from the service account of the pod that this process
// runs in. It makes no request.
func Connect(kubeconfig string, opts Options) (Client, error) {
	if kubeconfig == "" {
		config, err := rest.InClusterConfig()
		if err != nil {
			return Client{}, fmt.Errorf("looking for the service account of a pod, as no kubeconfig is named: %w", err)
		}
		client, err := New(config, opts)
		client.Source = "the pod's files"
		return client, err
	}
	config, err := read(kubeconfig)
	if err != nil {
		return Client{}, fmt.Errorf("reading the kubeconfig %s: %w", kubeconfig, OneLine(err))
	}
	client, err := New(config, opts)
	if err != nil {
		return Client{}, fmt.Errorf("using the kubeconfig %s: %w", kubeconfig, err)
	}
	client.Source = kubeconfig
	return client, nil
}

func read(kubeconfig string) (*rest.Config, error) {
	said, err := clientcmd.LoadFromFile(kubeconfig)
	if err != nil {
		return nil, err
	}
	if err := CheckProxy(said); err != nil {
		return nil, err
	}
	return clientcmd.BuildConfigFromFlags("", kubeconfig)
}

// CheckProxy returns an error if the current cluster's proxy-url is invalid. client-go's own error would show the URL, and a
// password in it.
func CheckProxy(kubeconfig *api.Config) error {
	current, found := kubeconfig.Contexts[kubeconfig.CurrentContext]
	if !found || kubeconfig.Clusters[current.Cluster] == nil {
		return nil // client-go reports that
	}
	address := kubeconfig.Clusters[current.Cluster].ProxyURL
	proxy, err := url.Parse(address)
	if address == "" || err == nil && slices.Contains([]string{"http", "https", "socks5"}, proxy.Scheme) {
		return nil
	}
	return fmt.Errorf("the proxy-url of the cluster %q is no address of a proxy: it must begin with http://, https:// or socks5://, "+
		"and have a %% in the password written as %%25", current.Cluster)
}

// New makes a client from a configuration, which it modifies. It makes no request.
func New(config *rest.Config, opts Options) (Client, error) {
	config.QPS = -1 // A drain evicts all pods at once; the API server has priority and fairness.
	config.UserAgent = opts.UserAgent
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	config.WarningHandler = rest.NoWarnings{} // They are meant for authors of manifests.
	config.Dial = (&net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second}).DialContext
	if config.Proxy == nil {
		config.Proxy = opts.Proxy
	}
	keeper, credential, err := newKeeper(config, opts)
	if err != nil {
		return Client{}, err
	}
	config.ExecProvider = nil // client-go must not run it as well
	rt, err := newTransport(config, nil)
	if err != nil {
		return Client{}, OneLine(err)
	}
	if keeper != nil {
		keeper.plain = rt
		keeper.build = func(certificate *tls.Certificate) (http.RoundTripper, error) {
			return newTransport(config, certificate)
		}
		rt = authenticated{keeper}
	}
	if opts.Requested != nil {
		rt = counted{next: rt, requested: opts.Requested}
	}
	httpClient := &http.Client{Transport: rt, Timeout: config.Timeout}
	client, err := kubernetes.NewForConfigAndClient(config, httpClient)
	if err != nil {
		return Client{}, OneLine(err)
	}
	return Client{Interface: client, Server: config.Host, Credential: credential, keeper: keeper}, nil
}

// newTransport returns a transport with connections of its own, which present the client certificate unless it is nil.
func newTransport(config *rest.Config, certificate *tls.Certificate) (http.RoundTripper, error) {
	settings, err := config.TransportConfig()
	if err != nil {
		return nil, err
	}
	if certificate != nil {
		settings.TLS.GetCertHolder = &transport.GetCertHolder{GetCert: func() (*tls.Certificate, error) { return certificate, nil }}
	}
	rt, err := transport.New(settings)
	if err != nil {
		return nil, err
	}
	return newPaced(rt), nil
}

// staticCredential describes the credential in the kubeconfig or in a file that it names; "" if there is none.
func staticCredential(config *rest.Config) string {
	switch {
	case config.BearerTokenFile != "":
		return "the token file " + config.BearerTokenFile
	case config.BearerToken != "":
		return "a token in the kubeconfig"
	case config.CertFile != "":
		return "the client certificate " + config.CertFile
	case len(config.CertData) > 0:
		return "a client certificate in the kubeconfig"
	}
	return ""
}

// flat is an error with a text of one line.
type flat struct{ error }

func (e flat) Error() string { return strings.Join(strings.Fields(e.error.Error()), " ") }
func (e flat) Unwrap() error { return e.error }

// OneLine joins the text of an error to one line. Some of client-go's errors have several, with help for users at a terminal.
func OneLine(err error) error { return flat{err} }

// counted reports each request and the status of its response.
type counted struct {
	next      http.RoundTripper
	requested func(method string, status int) // Options.Requested
}

var _ utilnet.RoundTripperWrapper = counted{}

// WrappedRoundTripper lets client-go find the connections.
func (c counted) WrappedRoundTripper() http.RoundTripper { return c.next }

// RoundTrip implements http.RoundTripper.
func (c counted) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := c.next.RoundTrip(request)
	status := 0
	if err == nil {
		status = response.StatusCode
	}
	c.requested(request.Method, status)
	return response, err
}

const (
	// maxDials is how many requests may wait for a connection at the same time. With HTTP/2, one new connection serves a
	// hundred requests; several are dialed because one may hang.
	maxDials = 4
	// dialSlotTimeout is how long a request may hold its dial slot, so that others can try while some hang.
	dialSlotTimeout = 500 * time.Millisecond
)

// paced limits how many requests wait for a connection at the same time. net/http dials for each request that finds all
// connections in use, and learns only afterwards that an HTTP/2 connection serves many: of a thousand requests at once, nine
// hundred would dial, and each TLS handshake costs client and server milliseconds of processor time. With the limit, the
// requests that wait use the first connections that are established.
type paced struct {
	next  http.RoundTripper
	slots chan struct{}
}

var _ utilnet.RoundTripperWrapper = paced{}

func newPaced(next http.RoundTripper) paced {
	return paced{next: next, slots: make(chan struct{}, maxDials)}
}

// WrappedRoundTripper lets client-go find the connections.
func (p paced) WrappedRoundTripper() http.RoundTripper { return p.next }

// RoundTrip implements http.RoundTripper.
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

// Right is a permission that the client needs.
type Right struct {
	// For says what it is needed for.
	For string
	// Optional is set if nodes can be drained without it.
	Optional bool
	// Attributes describe it to the API server.
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

// Allowed asks the API server whether the client has the right. Admission may still refuse a request. The error is
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
