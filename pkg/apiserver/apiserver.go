// Package apiserver makes clients of the API server, as a daemon needs them that empties nodes: they hold nothing back, give
// a dead address up soon, ask nobody at a terminal, and end a request when its context ends, whatever a credential plugin
// does meanwhile. A Right can be asked for; which ones are needed is the business of who asks for the client.
package apiserver

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
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
	// Launch, if set, changes how an exec plugin is run.
	Launch func(plugin *api.ExecConfig)
}

// Client is a client and what is known of it. Its requests have no rate limit and no timeout of their own: their contexts
// have.
type Client struct {
	kubernetes.Interface
	// Source is where it was found, Server the API server's address, and Credential says in a few words what proves the
	// identity, as in "the exec plugin aws".
	Source, Server, Credential string
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
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
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

// New makes a client from a configuration, which it changes. It sends no request.
func New(config *rest.Config, opts Options) (Client, error) {
	config.QPS = -1 // A drain sends one request for each pod, all at once; the API server has fairness of its own.
	config.UserAgent = opts.UserAgent
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	config.WarningHandler = rest.NoWarnings{} // They are for people who write manifests.
	config.Dial = (&net.Dialer{Timeout: dialPatience, KeepAlive: 30 * time.Second}).DialContext
	fetched := config.ExecProvider != nil // by the plugin, or in its place
	proof, err := settlePlugin(config, opts)
	if err != nil {
		return Client{}, err
	}
	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		return Client{}, OneLine(err)
	}
	if fetched {
		httpClient.Transport = punctual{httpClient.Transport}
	}
	if opts.Requested != nil {
		httpClient.Transport = counted{next: httpClient.Transport, tell: opts.Requested}
	}
	client, err := kubernetes.NewForConfigAndClient(config, httpClient)
	if err != nil {
		return Client{}, OneLine(err)
	}
	return Client{Interface: client, Server: config.Host, Credential: proof}, nil
}

// credential says what proves the identity.
func credential(config *rest.Config) string {
	switch {
	case config.ExecProvider != nil:
		return "the exec plugin " + filepath.Base(config.ExecProvider.Command)
	case config.BearerTokenFile != "":
		return "the token file " + config.BearerTokenFile
	case config.BearerToken != "":
		return "a token in the kubeconfig"
	case config.CertFile != "":
		return "the client certificate " + config.CertFile
	case len(config.CertData) > 0:
		return "a client certificate in the kubeconfig"
	}
	return "nothing"
}

// flat is an error whose text is one line, whatever it wraps.
type flat struct{ error }

func (e flat) Error() string { return strings.Join(strings.Fields(e.error.Error()), " ") }
func (e flat) Unwrap() error { return e.error }

// OneLine makes the text of errors from client-go, some of which bring help for people at a terminal, one line.
func OneLine(err error) error { return flat{err} }
