package identity

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"golang.org/x/net/http/httpproxy"
	authentication "k8s.io/api/authentication/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/nth-project/nth/pkg/kube"
	"github.com/nth-project/nth/pkg/text"
)

// ClientOptions are the options of a client that are not in a kubeconfig.
type ClientOptions struct {
	// UserAgent identifies the program in the API server's audit log, as in "nth/v1.0.0".
	UserAgent string
	// Requested, if set, is called after each request to the API server. status is the HTTP status of the response; 0 if there was no
	// response. Several goroutines call it at once.
	Requested func(method string, status int)

	root string // the directory that the exec plugin sees as "/"; "" means the root of this process
}

// Description describes a client for messages.
type Description struct {
	// Source is where the configuration was found, and Server the API server's address. Credential describes the credential in a few
	// words, as in "the exec plugin aws". Proxy is the address of the proxy, without user and password; "" if there is none.
	Source, Server, Credential, Proxy string
}

// Client is a client of one API server with one configuration.
type Client struct {
	kubernetes.Interface
	Description

	version     string            // identifies the kubeconfig, its path and the contents of the files that it names; see Kubelet.load
	certificate *x509.Certificate // the client certificate of the kubeconfig; nil if there is none
	through     http.RoundTripper // sends requests with the credential
	address     *url.URL          // the API server's
}

// Connect makes a client for nth-queue, and sends no request. path is that of a kubeconfig. If path is "", the client uses the service account of
// the pod that this process runs in. client-go reads the files with tokens and certificates again when they change.
func Connect(path string, opts ClientOptions) (*Client, error) {
	if path == "" {
		config, err := rest.InClusterConfig()
		if err != nil {
			return nil, text.Redacted(fmt.Errorf("found neither a kubeconfig nor a pod's service account: %w; set kubernetes.kubeconfig, or create /etc/nth/nth-queue.kubeconfig for the systemd service", err))
		}
		return newClient(config, "the pod's service account", "the token file "+config.BearerTokenFile, opts)
	}
	var k kubeconfig
	document, err := text.ReadFile(path, text.File)
	if err == nil {
		k, err = parse(document, path, "")
	}
	if err != nil {
		return nil, text.Redacted(fmt.Errorf("reading the kubeconfig %s: %w", path, err))
	}
	return k.client(path, opts)
}

// newClient makes a client from a configuration, and sends no request. It modifies the configuration. source says in words where the configuration
// was found. static describes in words its token or certificate; if it has neither, static is "", and the client uses its exec plugin, if any.
//
// No error quotes a secret.
func newClient(config *rest.Config, source, static string, opts ClientOptions) (*Client, error) {
	failed := func(err error) (*Client, error) {
		return nil, text.Redacted(fmt.Errorf("making a Kubernetes client from %s: %w", source, err))
	}
	address, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return failed(errServer) // err would quote the address, which may contain a password.
	}
	c := &Client{address: address}
	c.Source, c.Credential = source, text.Redact(cmp.Or(static, "nothing"))
	c.Server = text.Redact((&url.URL{Scheme: address.Scheme, Host: address.Host, Path: strings.TrimSuffix(address.Path, "/")}).String())
	pair, err := tls.X509KeyPair(config.CertData, config.KeyData)
	if err != nil { // The certificate may be in files. If it is not there either, there is none.
		pair, _ = tls.LoadX509KeyPair(config.CertFile, config.KeyFile)
	}
	c.certificate = pair.Leaf
	config.UserAgent = opts.UserAgent
	if config.Proxy == nil { // The kubeconfig names no proxy.
		config.Proxy = proxyOfEnvironment()
	}
	proxy, err := config.Proxy(&http.Request{URL: address})
	if err != nil {
		return failed(err)
	}
	if proxy != nil {
		c.Proxy = (&url.URL{Scheme: proxy.Scheme, Host: proxy.Host}).String()
	}
	spec := config.ExecProvider
	config.ExecProvider = nil // nth runs the exec plugin (plugin.go). client-go must not run it, too.
	if c.through, err = kube.NewTransport(config); err != nil {
		return failed(err)
	}
	if static == "" && spec != nil {
		run, err := newPlugin(spec, opts.root)
		if err != nil {
			return failed(err)
		}
		c.Credential = text.Redact("the exec plugin " + run.name)
		c.through = authenticated{c.through, &keeper{create: run.create}}
	}
	if opts.Requested != nil {
		c.through = kube.Counted(c.through, opts.Requested)
	}
	if c.Interface, err = kube.NewClient(address.String(), c.through); err != nil {
		return failed(err)
	}
	return c, nil
}

// errProxyVariable means that net/http would take a part of the proxy's password for the host, and ask the DNS for that.
var errProxyVariable = errors.New("HTTPS_PROXY or HTTP_PROXY is no address of a proxy; /, ? and # in its password are written as %2F, %3F and %23")

// proxyOfEnvironment returns a function that finds the proxy for a request in the environment variables, as net/http does. Without a proxy, the
// URL is nil. The function's error does not quote the variables.
func proxyOfEnvironment() func(*http.Request) (*url.URL, error) {
	find := httpproxy.FromEnvironment().ProxyFunc()
	return func(request *http.Request) (*url.URL, error) {
		found, err := find(request.URL)
		if found != nil && text.HasUserInHost(found) {
			return nil, errProxyVariable
		}
		return found, err
	}
}

// node asks the API server for the name of the node whose kubelet the credential belongs to. A credential of any other user is an error.
func (c *Client) node(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, kube.Read, fmt.Errorf("no answer within %s", kube.Read))
	defer cancel()
	review, err := c.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authentication.SelfSubjectReview{}, meta.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("asking the API server %s who owns the credential in %s: %w%s", c.Server, c.Source, err, c.expiry())
	}
	user := review.Status.UserInfo.Username
	node, found := strings.CutPrefix(user, nodeUser)
	if !found || node == "" {
		return "", fmt.Errorf("the credential in %s belongs to the user %q, but nth needs the credential of a node (%s<name>)", c.Source, user, nodeUser)
	}
	return node, nil
}

// expiry is the end of the error message of a failed request: that the client certificate has expired; "" if it has not.
func (c *Client) expiry() string {
	if leaf := c.certificate; leaf != nil && time.Now().After(leaf.NotAfter) {
		return "; the client certificate has expired: it was valid until " + leaf.NotAfter.UTC().Format("2006-01-02 15:04 UTC")
	}
	return ""
}
