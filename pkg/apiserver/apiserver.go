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
	"net/url"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
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
