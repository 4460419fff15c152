// Package role gives the packages that use AWS the instance's IAM role: its credentials, the endpoints of services, what
// AWS calls a refusal, and the pauses between attempts.
package role

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/credentials/ec2rolecreds"
	"github.com/aws/aws-sdk-go-v2/feature/ec2/imds"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/nth-project/nth/pkg/text"
)

// Metadata reads a document of the instance metadata service, by its path below /latest/meta-data/. The error is an
// fs.ErrNotExist if there is none.
type Metadata func(ctx context.Context, path string) ([]byte, error)

// Line reads a document of one line, without the blanks around it.
func (m Metadata) Line(ctx context.Context, path string) (string, error) {
	body, err := m(ctx, path)
	return strings.TrimSpace(string(body)), err
}

// GetMetadata implements ec2rolecreds.GetMetadataAPIClient. The SDK knows which documents have the role's credentials, and when to read them
// again. It calls GetMetadata to read each.
func (m Metadata) GetMetadata(ctx context.Context, in *imds.GetMetadataInput, _ ...func(*imds.Options)) (*imds.GetMetadataOutput, error) {
	body, err := m(ctx, strings.TrimPrefix(in.Path, "/"))
	if err != nil {
		return nil, err
	}
	return &imds.GetMetadataOutput{Content: io.NopCloser(bytes.NewReader(body))}, nil
}

// Credentials returns the role's credentials, which are requested when they are first needed and kept until shortly
// before they expire. The error is an fs.ErrNotExist if the instance has no role.
func Credentials(metadata Metadata) *aws.CredentialsCache {
	return aws.NewCredentialsCache(ec2rolecreds.New(func(o *ec2rolecreds.Options) { o.Client = metadata }))
}

// connectTimeout is how long a connection to AWS may take to be made, and as long again to be encrypted.
const connectTimeout = 5 * time.Second

// Account returns the configuration for clients of the SDK that use the instance's role, in the instance's own region. It sends nothing to AWS.
// Account reads the same environment variables as AWS's own programs, as far as they say where and how services are
// reached: AWS_USE_FIPS_ENDPOINT, AWS_USE_DUALSTACK_ENDPOINT, AWS_ENDPOINT_URL, with the name of a service or without, and AWS_CA_BUNDLE.
// Credentials in the environment are ignored.
func (m Metadata) Account(ctx context.Context) (aws.Config, error) {
	env, err := readEnvironment()
	if err != nil {
		return aws.Config{}, fmt.Errorf("reading AWS's settings in the environment: %w", err)
	}
	roots, err := readCABundle(os.Getenv("AWS_CA_BUNDLE"))
	if err != nil {
		return aws.Config{}, err
	}
	region, err := m.Line(ctx, "placement/region")
	if err != nil {
		return aws.Config{}, fmt.Errorf("asking the metadata service for the region: %w", err)
	}
	cfg := aws.Config{
		Region: region, Credentials: Credentials(m), HTTPClient: Unhurried(newHTTPClient(roots)),
		ConfigSources: []any{env}, // Clients look up the settings of their own service there.
	}
	if endpoint := os.Getenv(endpointVariable); endpoint != "" {
		cfg.BaseEndpoint = aws.String(strings.TrimSuffix(endpoint, "/"))
	}
	return cfg, nil
}

// Own returns the instance's own ID, and the configuration that account returns. account is usually Metadata.Account. Own sends nothing to AWS.
func Own(ctx context.Context, metadata Metadata, account func(context.Context) (aws.Config, error)) (id string, cfg aws.Config, err error) {
	if id, err = metadata.Line(ctx, "instance-id"); err != nil {
		return "", aws.Config{}, fmt.Errorf("asking the metadata service for the instance's ID: %w", err)
	}
	cfg, err = account(ctx)
	return id, cfg, err
}

// connections is how many connections to a service are kept for requests that are made at once.
const connections = 8

// newHTTPClient returns a client for requests that are seconds or minutes apart: it keeps no connection for long. roots are the certificate
// authorities that the client trusts; nil means the system's.
func newHTTPClient(roots *x509.CertPool) *http.Client {
	return &http.Client{Transport: &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         (&net.Dialer{Timeout: connectTimeout}).DialContext,
		TLSClientConfig:     &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout: connectTimeout,
		ForceAttemptHTTP2:   true,
		MaxIdleConns:        connections,
		MaxIdleConnsPerHost: connections,
		IdleConnTimeout:     2 * connectTimeout,
	}}
}

// readCABundle returns the certificate authorities in a file. If path is "", it returns nil, which means the system's.
func readCABundle(path string) (*x509.CertPool, error) {
	if path == "" {
		return nil, nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading AWS_CA_BUNDLE: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("reading AWS_CA_BUNDLE: there is no certificate in %s", path)
	}
	return roots, nil
}

// Unhurried wraps an HTTP client for the SDK; nil means the SDK's own. The SDK closes a request's body as soon as the answer begins, while
// net/http may still send it. net/http prefers the body's WriteTo, which returns io.EOF after that. net/http takes that for a failure, and
// cuts the connection in the middle of the answer. So Unhurried hides all methods of the body but Read and Close.
func Unhurried(client aws.HTTPClient) aws.HTTPClient {
	if client == nil {
		client = awshttp.NewBuildableClient()
	}
	return unhurried{client}
}

// unhurried is the client that Unhurried returns.
type unhurried struct{ aws.HTTPClient }

// Do implements aws.HTTPClient.
func (c unhurried) Do(r *http.Request) (*http.Response, error) {
	if r.Body != nil && r.Body != http.NoBody {
		r.Body = struct{ io.ReadCloser }{r.Body} // without WriteTo
	}
	return c.HTTPClient.Do(r)
}

// ErrNoRole means that the instance has no role to call AWS with.
var ErrNoRole = errors.New("the instance has no IAM role")

// RefusedError means that IAM does not allow a request.
type RefusedError struct {
	// Action is the request's name in IAM policies, such as "ec2:DescribeInstances".
	Action string
}

// Error implements error.
func (e RefusedError) Error() string { return "the IAM role does not allow " + e.Action }

// Explain says in plain words why a request to AWS failed; the SDK's own text is a paragraph. err is the SDK's error, action the request's
// name in IAM policies, and timeout the limit that the request had. The result is ErrNoRole, a RefusedError, or another error that names the
// action, and wraps err. It is nil if err is nil.
func Explain(action string, timeout time.Duration, err error) error {
	if err == nil {
		return nil
	}
	return explained{explain(action, timeout, err), err}
}

// explained has the text of its error. errors.Is and errors.As find its cause, too.
type explained struct {
	error
	cause error
}

// Unwrap returns both errors.
func (e explained) Unwrap() []error { return []error{e.error, e.cause} }

// explain returns the error whose text Explain shows.
func explain(action string, timeout time.Duration, err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return ErrNoRole
	case Refused(err):
		return RefusedError{action}
	}
	if api, ok := errors.AsType[smithy.APIError](err); ok {
		return fmt.Errorf("calling %s: %s: %s", action, api.ErrorCode(), text.Visible(api.ErrorMessage(), text.Line))
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("calling %s: no answer within %s", action, timeout)
	}
	if answer, ok := errors.AsType[*smithyhttp.ResponseError](err); ok && answer.HTTPStatusCode() > 0 {
		return fmt.Errorf("calling %s: an answer of the status %d that cannot be read", action, answer.HTTPStatusCode())
	}
	if sending, ok := errors.AsType[*url.Error](err); ok { // Its text has the whole URL, which says no more than the action.
		err = sending.Err
	}
	return fmt.Errorf("calling %s: %w", action, err)
}

// Refused reports whether a service has answered that a request is not allowed, by whatever policy. Services have several
// codes for it, some with the service's name as a prefix or "Exception" as a suffix.
func Refused(err error) bool {
	switch Code(err) {
	case "AccessDenied", "UnauthorizedOperation", "UnauthorizedAccess", "NotAuthorized", "Unauthorized":
		return true
	}
	return false
}

// Throttled reports whether a service has answered that there are too many requests.
func Throttled(err error) bool {
	switch Code(err) {
	case "Throttling", "Throttled", "ThrottledRequest", "RequestThrottled", "RequestLimitExceeded", "TooManyRequests", "SlowDown":
		return true
	}
	return false
}

// Code returns the error code in a service's answer, without the service's name in front and "Exception" at the end. It is empty if err is not
// an answer of a service.
func Code(err error) string {
	api, ok := errors.AsType[smithy.APIError](err)
	if !ok {
		return ""
	}
	code := api.ErrorCode()
	return strings.TrimSuffix(code[strings.LastIndexByte(code, '.')+1:], "Exception")
}

// Pause returns how long to wait after that many failures in a row. The pause after one failure is first, doubled with each further failure,
// longest at most. Pause returns a random part of that, between half and all, so that a fleet whose requests failed together does not retry
// together.
func Pause(failures int, first, longest time.Duration) time.Duration {
	steps := min(max(failures, 1), 64) // After 64 doublings any pause has reached longest.
	backoff := wait.Backoff{Duration: first / 2, Cap: longest / 2, Factor: 2, Jitter: 1, Steps: steps}
	var pause time.Duration
	for range steps {
		pause = backoff.Step()
	}
	return pause
}

// Spread returns the interval changed by a random tenth at most, more or less, so that the machines of a fleet do not poll at the same moment.
func Spread(interval time.Duration) time.Duration {
	return wait.Jitter(interval*9/10, 2.0/9)
}
