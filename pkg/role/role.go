// Package role has what all packages that call AWS need. That is the credentials of the instance's IAM role, the endpoints of services, the meaning
// of errors, AWS's clock, and the pauses between attempts. Start with Metadata.Account.
package role

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/credentials/ec2rolecreds"
	"github.com/aws/aws-sdk-go-v2/feature/ec2/imds"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/nth-project/nth/pkg/text"
)

// Metadata reads a document of the instance metadata service, by its path below /latest/meta-data/. If the service has no such document, the error
// is an fs.ErrNotExist.
type Metadata func(ctx context.Context, path string) ([]byte, error)

// Line reads a document of one line, without the blanks around it.
func (m Metadata) Line(ctx context.Context, path string) (string, error) {
	body, err := m(ctx, path)
	return strings.TrimSpace(string(body)), err
}

// GetMetadata implements ec2rolecreds.GetMetadataAPIClient: it reads one document. The SDK decides which documents have the role's credentials, and
// when to read them again.
func (m Metadata) GetMetadata(ctx context.Context, in *imds.GetMetadataInput, _ ...func(*imds.Options)) (*imds.GetMetadataOutput, error) {
	body, err := m(ctx, strings.TrimPrefix(in.Path, "/"))
	if err != nil {
		return nil, err
	}
	return &imds.GetMetadataOutput{Content: io.NopCloser(bytes.NewReader(body))}, nil
}

// Credentials returns a cache of the role's credentials. The cache reads them from metadata when they are first needed, and again shortly before
// they expire. If the instance has no role, the error of its Retrieve is an fs.ErrNotExist.
func Credentials(metadata Metadata) *aws.CredentialsCache {
	return aws.NewCredentialsCache(ec2rolecreds.New(func(o *ec2rolecreds.Options) { o.Client = metadata }))
}

const (
	// connectTimeout is how long it may take to connect to AWS. The TLS handshake that follows may take as long again.
	connectTimeout = 5 * time.Second
	// idleTimeout is how long an unused connection stays open: nth's next request may be minutes away.
	idleTimeout = 10 * time.Second
)

// Account returns the configuration for clients of the SDK that use the instance's role, in the instance's own region. It asks the metadata
// service for the region, and sends nothing to AWS.
//
// Account reads those environment variables of AWS's own programs that say how to reach services: AWS_USE_FIPS_ENDPOINT,
// AWS_USE_DUALSTACK_ENDPOINT, AWS_ENDPOINT_URL, with the name of a service or without, and AWS_CA_BUNDLE. It ignores credentials in the
// environment.
func (m Metadata) Account(ctx context.Context) (aws.Config, error) {
	env, err := readEnvironment()
	if err != nil {
		return aws.Config{}, fmt.Errorf("reading the AWS environment variables: %w", err)
	}
	roots, err := readCABundle(os.Getenv("AWS_CA_BUNDLE"))
	if err != nil {
		return aws.Config{}, err
	}
	region, err := m.Line(ctx, "placement/region")
	if err != nil {
		return aws.Config{}, fmt.Errorf("asking the metadata service for the instance's region: %w", err)
	}
	cfg := aws.Config{
		Region: region, Credentials: Credentials(m), HTTPClient: Unhurried(newHTTPClient(roots)),
		ConfigSources: []any{env}, // The client of each service looks up its own settings in env.
	}
	if endpoint := os.Getenv(endpointVariable); endpoint != "" {
		cfg.BaseEndpoint = aws.String(strings.TrimSuffix(endpoint, "/"))
	}
	return cfg, nil
}

// Own returns the ID of the instance that this process runs on, and the configuration that account returns. account is usually Metadata.Account.
// Own asks the metadata service for the ID, and sends nothing to AWS.
func Own(ctx context.Context, metadata Metadata, account func(context.Context) (aws.Config, error)) (id string, cfg aws.Config, err error) {
	if id, err = metadata.Line(ctx, "instance-id"); err != nil {
		return "", aws.Config{}, fmt.Errorf("asking the metadata service for the instance's ID: %w", err)
	}
	cfg, err = account(ctx)
	return id, cfg, err
}

// newHTTPClient returns the SDK's HTTP client with nth's limits. roots are the certificate authorities that it trusts; nil means the system's.
func newHTTPClient(roots *x509.CertPool) aws.HTTPClient {
	client := awshttp.NewBuildableClient().WithDialerOptions(func(d *net.Dialer) { d.Timeout = connectTimeout })
	return client.WithTransportOptions(func(t *http.Transport) {
		t.TLSClientConfig.RootCAs = roots
		t.TLSHandshakeTimeout, t.IdleConnTimeout = connectTimeout, idleTimeout
	})
}

// readCABundle returns the certificate authorities in a file. If path is "", it returns nil, which means the system's.
func readCABundle(path string) (*x509.CertPool, error) {
	if path == "" {
		return nil, nil
	}
	certificates, err := text.ReadFile(path, text.File)
	if err != nil {
		return nil, fmt.Errorf("reading the file that AWS_CA_BUNDLE names: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(certificates) {
		return nil, fmt.Errorf("AWS_CA_BUNDLE must name a file with certificates: there is no certificate in %s", path)
	}
	return roots, nil
}

// Unhurried returns a client for the SDK that sends requests through client; if that is nil, through the SDK's own client. It hides all methods of
// a request's body but Read and Close.
//
// The reason: the SDK closes the body as soon as the answer begins, while net/http may still be sending the body. net/http prefers a body's
// WriteTo, which returns io.EOF once the body is closed. net/http takes that io.EOF for a failure, and cuts the connection in the middle of the
// answer.
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
// name in IAM policies, and timeout the limit that the request had.
//
// The result wraps err. It also wraps ErrNoRole or a RefusedError, if that is the reason. Any other reason is a text that names the action. If err
// is nil, the result is nil.
func Explain(action string, timeout time.Duration, err error) error {
	if err == nil {
		return nil
	}
	return explained{explain(action, timeout, err), err}
}

// explained is the error that Explain returns. Its text is that of the embedded error alone.
type explained struct {
	error
	cause error // the SDK's error
}

// Unwrap returns both errors, for errors.Is and errors.As.
func (e explained) Unwrap() []error { return []error{e.error, e.cause} }

// explain returns the error that has the text for Explain. err is not nil.
func explain(action string, timeout time.Duration, err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist): // The metadata service has no credentials: see Credentials.
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
		return fmt.Errorf("calling %s: cannot decode the answer with HTTP status %d", action, answer.HTTPStatusCode())
	}
	if sending, ok := errors.AsType[*url.Error](err); ok { // The text of sending has the whole URL, which says no more than the action.
		err = sending.Err
	}
	return fmt.Errorf("calling %s: %w", action, err)
}

// Refused reports whether a service has answered that a policy does not allow the request. Services have several codes for that.
func Refused(err error) bool {
	return slices.Contains([]string{"AccessDenied", "UnauthorizedOperation", "UnauthorizedAccess", "NotAuthorized", "Unauthorized"}, Code(err))
}

// Throttled reports whether a service has answered that there are too many requests.
func Throttled(err error) bool {
	return retry.IsErrorThrottles(retry.DefaultThrottles).IsErrorThrottle(err) == aws.TrueTernary
}

// Code returns the error code in a service's answer, such as "AccessDenied". It leaves out the service's name before the code, and "Exception" after
// it, which only some services have. If err is not an answer of a service, the code is empty.
func Code(err error) string {
	api, ok := errors.AsType[smithy.APIError](err)
	if !ok {
		return ""
	}
	code := api.ErrorCode()
	return strings.TrimSuffix(code[strings.LastIndexByte(code, '.')+1:], "Exception")
}

// Pause returns how long to wait before the next attempt, after a number of failures in a row. The upper limit of the pause is first after one
// failure. It doubles with each further failure, and is longest at most.
//
// The pause is random, between half of that limit and all of it: machines whose requests failed together must not try again together.
func Pause(failures int, first, longest time.Duration) time.Duration {
	limit := min(first<<min(max(failures-1, 0), 20), longest) // After 20 doublings, any pause has reached longest.
	return wait.Jitter(limit/2, 1)
}

// Spread returns the interval, made longer or shorter by a random tenth at most: the machines of a fleet must not poll at the same moment.
func Spread(interval time.Duration) time.Duration {
	return wait.Jitter(interval*9/10, 2.0/9)
}
