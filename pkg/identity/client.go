package identity

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	authentication "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/nth-project/nth/pkg/kube"
	"github.com/nth-project/nth/pkg/text"
)

// ClientOptions say how a client proves whose it is, beyond what the kubeconfig says.
type ClientOptions struct {
	// UserAgent identifies the program in the API server's audit log, as in "nth/v1.0.0".
	UserAgent string
	// Requested, if set, is called after each request to the API server, from several goroutines at once, with the HTTP method and the
	// status code of the response; 0 if there was no response.
	Requested func(method string, status int)
	// Token, if set, replaces an exec plugin that makes tokens for an EKS cluster. It gets the cluster and the region that the plugin
	// would be called with; an empty region is the instance's own. Role says in a few words whose tokens they are.
	Token func(ctx context.Context, cluster, region string) (token string, expires time.Time, err error)
	Role  string
	// Fallback runs the exec plugin if it does more than make such a token, if Token fails, and if the API server refuses the token.
	Fallback bool

	root        string   // the directory that the exec plugin sees as "/"; "" means this process's root
	environment []string // variables for the exec plugin, added to this process's
}

// Client is a client of one API server with one configuration.
type Client struct {
	kubernetes.Interface
	// Source is where the configuration was found, and Server the API server's address.
	Source, Server string

	configured  string            // describes the credential that is configured
	keeper      *keeper           // nil if the credential does not have to be fetched
	certificate *x509.Certificate // the client certificate in the kubeconfig; nil if there is none
	through     http.RoundTripper // adds the credential to each request
	address     *url.URL          // the API server's
}

// Connect makes a client from a kubeconfig file or, if that is "", from the service account of the pod that this process runs in. It
// makes no request. Files that the kubeconfig names are read again when they change.
func Connect(kubeconfig string, opts ClientOptions) (*Client, error) {
	if kubeconfig == "" {
		config, err := rest.InClusterConfig()
		if err != nil {
			return nil, text.Redacted(fmt.Errorf("there is neither a kubeconfig (of the service: /etc/nth/nth-queue.kubeconfig) nor the service account of a pod: %w", err))
		}
		return newClient(config, "the pod's files", "the token file "+config.BearerTokenFile, opts)
	}
	config, static, err := readKubeconfig(kubeconfig)
	if err != nil {
		return nil, text.Redacted(fmt.Errorf("reading the kubeconfig %s: %w", kubeconfig, err))
	}
	return newClient(config, kubeconfig, static, opts)
}

// newClient makes a client from a configuration, and modifies that. source says where the configuration was found. static describes the token or
// certificate in the configuration; if that is "", the configuration's exec plugin is used.
func newClient(config *rest.Config, source, static string, opts ClientOptions) (*Client, error) {
	failed := func(err error) (*Client, error) { return nil, text.Redacted(fmt.Errorf("using %s: %w", source, err)) }
	address, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return failed(errServer) // err would quote the address, which may contain a password.
	}
	c := &Client{Source: source, configured: static, address: address}
	if pair, err := tls.X509KeyPair(config.CertData, config.KeyData); err == nil { // An error means that the kubeconfig has no certificate.
		c.certificate = pair.Leaf
	}
	config.UserAgent = opts.UserAgent
	if static == "" && config.ExecProvider != nil {
		if c.keeper, c.configured, err = newKeeper(config, opts); err != nil {
			return failed(err)
		}
	}
	config.ExecProvider = nil // client-go must not run it as well.
	if c.through, err = kube.NewTransport(config); err != nil {
		return failed(err)
	}
	if c.keeper != nil {
		c.through = authenticated{c.through, c.keeper}
	}
	if opts.Requested != nil {
		c.through = kube.Counted(c.through, opts.Requested)
	}
	c.Server = text.Redact((&url.URL{Scheme: address.Scheme, Host: address.Host, Path: strings.TrimSuffix(address.Path, "/")}).String())
	if c.Interface, err = kube.NewClient(address.String(), c.through); err != nil {
		return failed(err)
	}
	return c, nil
}

// Credential describes in a few words the credential that was fetched last, or the one that is configured, as in "the exec plugin aws".
func (c *Client) Credential() string {
	source := ""
	if c.keeper != nil {
		source = c.keeper.source()
	}
	return text.Redact(cmp.Or(source, c.configured, "nothing"))
}

// node asks the API server for the name of the node to which the credential belongs.
func (c *Client) node(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, kube.Read)
	defer cancel()
	review, err := c.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authentication.SelfSubjectReview{}, meta.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("asking %s whose credential is in %s: %w%s", c.Server, c.Source, err, c.fault(err))
	}
	user := review.Status.UserInfo.Username
	node, found := strings.CutPrefix(user, nodeUser)
	if !found || node == "" {
		return "", fmt.Errorf("the credential in %s belongs to the user %q, which is not a node (%s<name>)", c.Source, user, nodeUser)
	}
	return node, nil
}

// fault explains a failed request by the client certificate: it has expired, is not valid yet, or was refused. It returns the end of an error
// message; "" if the client certificate is not the reason.
func (c *Client) fault(err error) string {
	leaf := c.certificate
	if leaf == nil {
		return ""
	}
	const day = "2006-01-02 15:04 UTC"
	from, to := leaf.NotBefore.UTC().Format(day), leaf.NotAfter.UTC().Format(day)
	switch now := time.Now(); {
	case now.After(leaf.NotAfter):
		return "; the client certificate has expired: it was valid until " + to
	case now.Before(leaf.NotBefore):
		return "; the client certificate is not valid yet: it is valid from " + from
	case apierrors.IsUnauthorized(err) || strings.Contains(err.Error(), "remote error: tls"):
		return fmt.Sprintf("; the API server does not accept the client certificate of %q, issued by %q, valid from %s to %s",
			leaf.Subject.CommonName, leaf.Issuer.CommonName, from, to)
	}
	return ""
}
