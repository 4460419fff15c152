package role

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
)

// Options say how AWS is spoken to.
type Options struct {
	// Metadata reads the documents of the instance metadata service.
	Metadata Metadata
	// Region is the region's name, and Endpoint the base URL of the service in it. Empty is where the instance is, and
	// what the SDK knows of the region, or the environment says.
	Region, Endpoint string
	// Dial makes a connection; nil means the network's own.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// AtOnce is how many requests there may be at once; what is less than one is one.
	AtOnce int
}

// connectLimit is how long a connection to AWS may take to be made, and as long again to be encrypted.
const connectLimit = 5 * time.Second

// Config returns what clients of the SDK are made from for whoever has the instance's role. Nothing is sent to AWS. What
// AWS's own programs take from the environment counts here, too, as far as it says where and how services are asked:
// AWS_USE_FIPS_ENDPOINT, AWS_USE_DUALSTACK_ENDPOINT, AWS_ENDPOINT_URL, with the name of a service or without, and
// AWS_CA_BUNDLE. What it says of credentials does not: those are the role's.
func Config(ctx context.Context, o Options) (aws.Config, error) {
	env, err := awsconfig.NewEnvConfig()
	if err != nil {
		return aws.Config{}, fmt.Errorf("reading AWS's settings in the environment: %w", err)
	}
	roots, err := authorities(env.CustomCABundle)
	if err != nil {
		return aws.Config{}, err
	}
	if o.Region == "" {
		if o.Region, err = o.Metadata.Line(ctx, "placement/region"); err != nil {
			return aws.Config{}, fmt.Errorf("asking the metadata service for the region: %w", err)
		}
	}
	if ignored := env.IgnoreConfiguredEndpoints; o.Endpoint == "" && !aws.ToBool(ignored) {
		o.Endpoint = env.BaseEndpoint
	}
	cfg := aws.Config{
		Region: o.Region, Credentials: Credentials(o.Metadata), HTTPClient: Unhurried(newHTTPClient(o.Dial, roots, max(o.AtOnce, 1))),
		ConfigSources: []any{env}, // The clients ask it for what concerns their service alone.
	}
	if o.Endpoint != "" {
		cfg.BaseEndpoint = aws.String(strings.TrimSuffix(o.Endpoint, "/"))
	}
	return cfg, nil
}

// newHTTPClient returns a client for requests that are seconds or minutes apart: no connection is kept for long.
func newHTTPClient(dial func(context.Context, string, string) (net.Conn, error), roots *x509.CertPool, atOnce int) *http.Client {
	if dial == nil {
		dial = (&net.Dialer{Timeout: connectLimit}).DialContext
	}
	return &http.Client{Transport: &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         dial,
		TLSClientConfig:     &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout: connectLimit,
		ForceAttemptHTTP2:   true,
		MaxIdleConns:        atOnce,
		MaxIdleConnsPerHost: atOnce,
		IdleConnTimeout:     2 * connectLimit,
	}}
}

// authorities are those of a bundle in a file; nil, which is the system's, if there is none.
func authorities(bundle string) (*x509.CertPool, error) {
	if bundle == "" {
		return nil, nil
	}
	text, err := os.ReadFile(bundle) //nolint:gosec // whoever starts nth says where it is
	if err != nil {
		return nil, fmt.Errorf("reading AWS_CA_BUNDLE: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("reading AWS_CA_BUNDLE: there is no certificate in %s", bundle)
	}
	return roots, nil
}

// Unhurried returns a client for the SDK that sends requests by another one. The SDK closes a request when the answer begins, though it
// may still be being written, and what it has closed says io.EOF where net/http has it write the rest, which is nothing. That is taken
// for a failure to send, and the connection is cut in the midst of the answer. So net/http is given what can only be read. nil is the
// SDK's own client.
func Unhurried(client aws.HTTPClient) aws.HTTPClient {
	if client == nil {
		client = awshttp.NewBuildableClient()
	}
	return unhurried{client}
}

type unhurried struct{ aws.HTTPClient }

// Do implements aws.HTTPClient.
func (c unhurried) Do(r *http.Request) (*http.Response, error) {
	if r.Body != nil && r.Body != http.NoBody {
		r.Body = struct{ io.ReadCloser }{r.Body}
	}
	return c.HTTPClient.Do(r)
}
