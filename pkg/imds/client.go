package imds

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/feature/ec2/imds"
)

// How long one document may take, its session token included. The service is on the same host and answers in
// milliseconds. The urgent limit lets a slow service through and still cuts a hanging one before two polls are missed.
const (
	urgentTimeout  = time.Second
	patientTimeout = 2 * time.Second
)

// Result is how a request for a document ended.
type Result string

// The results of a request.
const (
	OK     Result = "ok"     // the document is there and could be read, at least in part
	Absent Result = "absent" // EC2 has no such document for this instance: nothing is announced
	Failed Result = "error"  // anything else
)

// Poll is one request for a document, for those who count them.
type Poll struct {
	Document string // its path below /latest/meta-data/
	Result   Result
	Err      error         // set if Result is Failed
	Latency  time.Duration // the session token included
}

// client reads documents through the SDK, which keeps the session token and renews it.
type client struct {
	sdk     *imds.Client
	timeout time.Duration
	observe func(Poll)
}

// newClient returns a client that has no token yet. The SDK reads no configuration here but the endpoint's environment
// variable: not the shared config files, nor the variable that disables it.
func newClient(opts Options, timeout time.Duration, dial dialer) *client {
	observe := opts.Observe
	if observe == nil {
		observe = func(Poll) {}
	}
	return &client{
		sdk: imds.New(imds.Options{
			Endpoint:                 opts.Endpoint,
			HTTPClient:               newHTTPClient(dial, opts.Renewed),
			ClientEnableState:        imds.ClientEnabled,
			EnableFallback:           aws.FalseTernary,
			Retryer:                  renewal{},
			DisableDefaultTimeout:    true,
			DisableDefaultMaxBackoff: true,
		}),
		timeout: timeout,
		observe: observe,
	}
}

// renewal is the SDK's retry policy: once, at once, and only what the SDK marks as worth it, which is an answer of 401.
// By then it has dropped the session token, and the second attempt gets a new one. Every other failure waits for
// the next poll: the cadence is the retry.
type renewal struct{ aws.NopRetryer }

func (renewal) MaxAttempts() int                             { return 2 }
func (renewal) RetryDelay(int, error) (time.Duration, error) { return 0, nil }
func (renewal) IsErrorRetryable(err error) bool {
	var marked interface{ RetryableError() bool }
	return errors.As(err, &marked) && marked.RetryableError()
}

// read asks for a document and has parse read it. An absent document is the zero value of T and no error.
func read[T any](ctx context.Context, c *client, path string, parse func([]byte) (T, error)) (T, error) {
	start := time.Now()
	var value T
	result := Absent
	body, found, err := c.get(ctx, path)
	if err == nil && found {
		result = OK
		value, err = parse(body)
	}
	if err != nil {
		var none T
		value, result = none, Failed
		err = fmt.Errorf("reading %q: %w", path, err)
	}
	c.observe(Poll{Document: path, Result: result, Err: err, Latency: time.Since(start)})
	return value, err
}

// get returns the body of a document, or found = false if EC2 has none. The path is one below /latest/meta-data/, or
// below /latest/ if it begins with "dynamic/".
func (c *client) get(ctx context.Context, path string) (body []byte, found bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	ctx, last := withExchange(ctx)
	content, err := c.open(ctx, path)
	if err == nil {
		defer func() { _ = content.Close() }()
		body, err = io.ReadAll(content)
	}
	switch {
	case err == nil && last.status == http.StatusOK:
		return body, true, nil
	case last.absent():
		return nil, false, nil
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return nil, false, last.during(fmt.Errorf("no answer within %s: %w", c.timeout, ctx.Err()))
	default:
		return nil, false, last.during(last.cause(err))
	}
}

// open calls the SDK's operation for the path.
func (c *client) open(ctx context.Context, path string) (io.ReadCloser, error) {
	if dynamic, ok := strings.CutPrefix(path, "dynamic/"); ok {
		out, err := c.sdk.GetDynamicData(ctx, &imds.GetDynamicDataInput{Path: dynamic})
		if err != nil {
			return nil, err
		}
		return out.Content, nil
	}
	out, err := c.sdk.GetMetadata(ctx, &imds.GetMetadataInput{Path: path})
	if err != nil {
		return nil, err
	}
	return out.Content, nil
}

// exchange is the last HTTP request that the SDK made for a document. The SDK's own errors bury the status below
// layers of wording, one of which cannot be unwrapped, so it is noted where the request is made.
type exchange struct {
	token  bool // a session token was asked for, not the document
	status int  // of the answer; 0 if none came
	err    error
}

type exchangeKey struct{}

// withExchange returns a context whose requests are noted, and where.
func withExchange(ctx context.Context) (context.Context, *exchange) {
	e := new(exchange)
	return context.WithValue(ctx, exchangeKey{}, e), e
}

// absent tells whether the service answered that there is no such document.
func (e *exchange) absent() bool {
	return !e.token && e.status == http.StatusNotFound && e.err == nil
}

// cause says in plain words why the request failed; err is what the SDK says, which takes any 2xx for success: EC2 knows
// no empty success, and what it does not say is not read as "nothing is announced".
func (e *exchange) cause(err error) error {
	switch {
	case e.err != nil:
		return e.err
	case e.status == http.StatusForbidden:
		return errors.New("the metadata service refuses to answer (403): it is disabled for this instance, or a proxy stands before it")
	case e.status == http.StatusUnauthorized && !e.token:
		return errors.New("the metadata service does not accept the token that it has just given (401)")
	case e.status != 0 && e.status != http.StatusOK:
		return fmt.Errorf("the metadata service answers %d %s", e.status, http.StatusText(e.status))
	default:
		return err
	}
}

// during names the step in which err happened, if it was not the document itself.
func (e *exchange) during(err error) error {
	if e.token {
		return fmt.Errorf("%w: %w", errToken, err)
	}
	return err
}
