// Package apiserver makes clients of the API server, as a daemon needs them that empties nodes: they hold nothing back, give
// a dead address up soon, ask nobody at a terminal, and end a request when its context ends, whatever a credential plugin
// does meanwhile. A credential that has to be fetched is replaced before it expires, beside the requests. A Right can be asked for; which ones are needed is the business of who asks for the client.
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

// dialPatience is how long one address of the API server may take to answer before the next one is tried; client-go
// waits for 30 s, a quarter of a spot notice.
const dialPatience = 5 * time.Second

// Options say what a client is to be like.
type Options struct {
	// UserAgent is how the API server's audit log names the program, as in "nth/v1.0.0".
	UserAgent string
	// Requested, if set, is called after each request, from several goroutines at once, with its HTTP method and the status
	// of the answer; 0 is none.
	Requested func(method string, status int)
	// Token, if set, makes the tokens for an EKS cluster, and tells when each expires, in place of the exec plugin. The
	// cluster and the region, "" for one's own, are those that the plugin would be called with. Role says in a few words
	// whose tokens they are.
	Token func(ctx context.Context, cluster, region string) (token string, expires time.Time, err error)
	Role  string
	// Fallback has the plugin run all the same where it does more than to make such a token, and where that fails or the
	// token is refused.
	Fallback bool
	// Launch, if set, changes how an exec plugin is run, and Environment is added to its environment, "NAME=value" each.
	Launch      func(plugin *api.ExecConfig)
	Environment []string
	// Proxy, if set, says which proxy a request goes through, unless the kubeconfig does.
	Proxy func(*http.Request) (*url.URL, error)
}

// Client is a client and what is known of it. Its requests have no rate limit and no timeout of their own: their contexts
// have.
type Client struct {
	kubernetes.Interface
	// Source is where it was found, Server the API server's address, and Credential says in a few words what is to prove the
	// identity, as in "the exec plugin aws".
	Source, Server, Credential string

	keeper *keeper // nil if the credential is none that is fetched
}

// Proof says in a few words what proves the identity, as it was fetched last: Credential, if none was fetched.
func (c Client) Proof() string {
	if c.keeper == nil {
		return c.Credential
	}
	return cmp.Or(c.keeper.proof(), c.Credential)
}

// Doubt says that the API server knows the credential, and by another name than it should. It tells whether it is worth asking
// again now, as there is another way to have one, which is tried next.
func (c Client) Doubt() bool {
	return c.keeper != nil && c.keeper.other && c.keeper.doubt()
}

// Connect makes a client from a kubeconfig's file or, if that is "", from the service account of the pod that this process
// runs in. It sends no request.
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

// CheckProxy finds fault with the address of the proxy that a kubeconfig names. client-go would, too, and tell the address with
// the password that there may be in it.
func CheckProxy(kubeconfig *api.Config) error {
	current, found := kubeconfig.Contexts[kubeconfig.CurrentContext]
	if !found || kubeconfig.Clusters[current.Cluster] == nil {
		return nil // It has other faults, which client-go tells.
	}
	address := kubeconfig.Clusters[current.Cluster].ProxyURL
	proxy, err := url.Parse(address)
	if address == "" || err == nil && slices.Contains([]string{"http", "https", "socks5"}, proxy.Scheme) {
		return nil
	}
	return fmt.Errorf("the proxy-url of the cluster %q is no address of a proxy: it must begin with http://, https:// or socks5://, "+
		"and have a %% in the password written as %%25", current.Cluster)
}

// New makes a client from a configuration, which it changes. It sends no request.
func New(config *rest.Config, opts Options) (Client, error) {
	config.QPS = -1 // A drain sends one request for each pod, all at once; the API server has fairness of its own.
	config.UserAgent = opts.UserAgent
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	config.WarningHandler = rest.NoWarnings{} // They are for people who write manifests.
	config.Dial = (&net.Dialer{Timeout: dialPatience, KeepAlive: 30 * time.Second}).DialContext
	if config.Proxy == nil {
		config.Proxy = opts.Proxy
	}
	keeper, proof, err := fetched(config, opts)
	if err != nil {
		return Client{}, err
	}
	config.ExecProvider = nil // client-go is not to run it, too
	road, err := connected(config, keeper)
	if err != nil {
		return Client{}, OneLine(err)
	}
	if opts.Requested != nil {
		road = counted{next: road, tell: opts.Requested}
	}
	httpClient := &http.Client{Transport: road, Timeout: config.Timeout}
	client, err := kubernetes.NewForConfigAndClient(config, httpClient)
	if err != nil {
		return Client{}, OneLine(err)
	}
	return Client{Interface: client, Server: config.Host, Credential: proof, keeper: keeper}, nil
}

// connected returns the road that a configuration asks for, with the credential of the keeper if there is one.
func connected(config *rest.Config, keeper *keeper) (http.RoundTripper, error) {
	bare, err := roadWith(config, nil)
	if err != nil || keeper == nil {
		return bare, err
	}
	keeper.bare = bare
	keeper.build = func(certificate *tls.Certificate) (http.RoundTripper, error) { return roadWith(config, certificate) }
	return authenticated{keeper}, nil
}

// roadWith returns a road, which is connections that are made as they are needed. A certificate, if it is not nil, is shown on
// each of them.
func roadWith(config *rest.Config, certificate *tls.Certificate) (http.RoundTripper, error) {
	settings, err := config.TransportConfig()
	if err != nil {
		return nil, err
	}
	if certificate != nil {
		settings.TLS.GetCertHolder = &transport.GetCertHolder{GetCert: func() (*tls.Certificate, error) { return certificate, nil }}
	}
	road, err := transport.New(settings)
	if err != nil {
		return nil, err
	}
	return newPaced(road), nil
}

// inKubeconfig says what there is in the kubeconfig that proves the identity, "" if there is nothing.
func inKubeconfig(config *rest.Config) string {
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

// flat is an error whose text is one line, whatever it wraps.
type flat struct{ error }

func (e flat) Error() string { return strings.Join(strings.Fields(e.error.Error()), " ") }
func (e flat) Unwrap() error { return e.error }

// OneLine makes the text of errors from client-go, some of which bring help for people at a terminal, one line.
func OneLine(err error) error { return flat{err} }

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

// Right is something that is asked of the API server.
type Right struct {
	// For says what it is needed for.
	For string
	// Optional tells that a drain does not need it.
	Optional bool
	// Attributes are how the API server knows it.
	Attributes authorization.ResourceAttributes
}

// String is the right in the words of kubectl auth can-i.
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

// Allowed asks the API server whether the client has the right. Admission may still refuse a single request. The error is
// client-go's.
func (r Right) Allowed(ctx context.Context, client kubernetes.Interface) (bool, error) {
	answer, err := client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorization.SelfSubjectAccessReview{
		Spec: authorization.SelfSubjectAccessReviewSpec{ResourceAttributes: &r.Attributes},
	}, meta.CreateOptions{})
	if err != nil {
		return false, err
	}
	return answer.Status.Allowed, nil
}
