package imds

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/feature/ec2/imds"
)

// How long one document may take, its session token included. The service is on the same host and answers in milliseconds.
//
// A document that has not arrived after the first of these limits is reported as trouble. It is waited for all the same:
// a service that answers in a few seconds still tells of a notice in time, while requests that are given up after one
// second never hear of it. A late urgent request is hedged: others are made beside it, one after the other, so that
// the end of an outage is seen at once, and the first answer counts. Each of them gets urgentLate, or as long as no
// document has been answered. None is made while the service is slow or does not answer: it would not be answered
// either, and a service that answers one request after the other would fall behind (see throttle).
const (
	urgentLate     = time.Second
	regularLate    = 2 * time.Second
	requestTimeout = 15 * time.Second
	checkTimeout   = 10 * time.Second // while somebody waits at a terminal
)

// Result is how a request for a document ended.
type Result string

// The results of a request.
const (
	OK     Result = "ok"     // the document is there and could be read, at least in part
	Absent Result = "absent" // EC2 has no such document for this instance: nothing is announced
	Failed Result = "error"  // anything else
)

// Poll is one request for a document, as Options.Observe gets it.
type Poll struct {
	Document string // its path below /latest/meta-data/
	Result   Result
	Err      error         // set if Result is Failed
	Latency  time.Duration // the session token included
}

// String is a poll in a few words.
func (p Poll) String() string {
	switch p.Result {
	case Failed:
		return p.Err.Error()
	case Absent:
		return fmt.Sprintf("%s: nothing is announced", p.Document)
	default:
		return fmt.Sprintf("%s: read", p.Document)
	}
}

// client reads documents through the SDK, which keeps the session token and renews it.
type client struct {
	sdk *imds.Client
	// hedgeSDK makes the hedging requests; nil if the documents are not urgent. It has a session token of its own, because
	// an SDK client has one request fetch the token and makes the others wait for that.
	hedgeSDK *imds.Client
	priority priority
	// late is when a request counts as trouble, timeout when it is given up.
	late, timeout time.Duration
	throttle      *throttle
	observe       func(Poll)
}

// newClient returns a client that has no token yet. Each poller has its own: an SDK client lets only one request at a
// time fetch a session token and makes the others wait for it, however long that takes.
func (s *Source) newClient(p priority) *client {
	c := &client{
		sdk: s.newSDK(), priority: p, late: regularLate, timeout: requestTimeout, throttle: s.throttle, observe: s.opts.Observe,
	}
	if c.observe == nil {
		c.observe = func(Poll) {}
	}
	if p == urgentPriority {
		c.hedgeSDK, c.late = s.newSDK(), urgentLate
	}
	return c
}

// newOneOffClient returns a client for callers that make a request once and repeat it when they need to: what hangs is
// given up soon, so that the next item or the next attempt has its time, unless the service is known to be slow.
func (s *Source) newOneOffClient() *client {
	c := s.newClient(oneOffPriority)
	if !s.throttle.isSlow() {
		c.timeout = c.late
	}
	return c
}

// newSDK returns a client of the SDK. The only configuration that it reads is the endpoint's environment variable: not
// the shared config files, nor the variable that disables it.
func (s *Source) newSDK() *imds.Client {
	mode := imds.EndpointModeStateUnset
	if strings.EqualFold(s.opts.EndpointMode, modeIPv6) {
		mode = imds.EndpointModeStateIPv6
	}
	return imds.New(imds.Options{
		Endpoint:                 s.opts.Endpoint,
		EndpointMode:             mode,
		HTTPClient:               s.newHTTPClient(),
		ClientEnableState:        imds.ClientEnabled,
		EnableFallback:           aws.FalseTernary,
		Retryer:                  renewToken{},
		DisableDefaultTimeout:    true,
		DisableDefaultMaxBackoff: true,
	})
}

// renewToken is the SDK's retry policy: once, at once, and only for what the SDK marks as retryable, which is an answer
// of 401. By then it has dropped the session token, and the second attempt gets a new one. Every other failure waits for
// the next poll.
type renewToken struct{ aws.NopRetryer }

func (renewToken) MaxAttempts() int                             { return 2 }
func (renewToken) RetryDelay(int, error) (time.Duration, error) { return 0, nil }
func (renewToken) IsErrorRetryable(err error) bool {
	var marked interface{ RetryableError() bool }
	return errors.As(err, &marked) && marked.RetryableError()
}

// Document requests a document once, by its path below /latest/meta-data/, and returns it unchanged. The error is
// fs.ErrNotExist if EC2 has none there.
func (s *Source) Document(ctx context.Context, path string) ([]byte, error) {
	body, present, err := s.newOneOffClient().get(ctx, path)
	if err == nil && !present {
		err = fs.ErrNotExist
	}
	if err != nil {
		return nil, readingError(path, err)
	}
	return body, nil
}

// read requests a document and parses it. An absent document is the zero value of T and no error.
func read[T any](ctx context.Context, c *client, path string, parse func([]byte) (T, error)) (T, error) {
	start := time.Now()
	var value T
	result := Absent
	body, present, err := c.get(ctx, path)
	if err == nil && present {
		result = OK
		value, err = parse(body)
	}
	if err != nil {
		var none T
		value, result = none, Failed
		err = readingError(path, err)
	}
	c.observe(Poll{Document: path, Result: result, Err: err, Latency: time.Since(start)})
	return value, err
}

func readingError(path string, err error) error { return fmt.Errorf("reading %q: %w", path, err) }

// get returns the body of a document, or present = false if EC2 has none. The path is one below /latest/meta-data/, or
// below /latest/ if it begins with "dynamic/". A late answer is reported to the context's withLateReport.
func (c *client) get(ctx context.Context, path string) (body []byte, present bool, err error) {
	waiting, giveUp := context.WithCancel(ctx)
	defer giveUp()
	h := &hedge{client: c, path: path, timeout: c.timeout, cancelFirst: giveUp, done: make(chan struct{})}
	late := time.AfterFunc(c.late, func() { h.run(waiting) })
	got := c.request(waiting, path, &h.first)
	giveUp()
	if !late.Stop() {
		<-h.done
	}
	if h.answer != nil {
		got = *h.answer
	}
	switch {
	case got.timedOut && ctx.Err() != nil: // the caller's deadline, not the request's
		got.err = h.first.during(ctx.Err())
	case got.timedOut:
		got.err = h.first.during(noAnswer(h.timeout))
	}
	return got.body, got.present, got.err
}

// request makes a request for a document when it has got its slot.
func (c *client) request(ctx context.Context, path string, last *exchange) answer {
	release, err := c.throttle.acquire(ctx, c.priority)
	if err != nil {
		return answer{err: err}
	}
	defer release()
	asked := time.Now()
	limited, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	got := c.send(limited, c.sdk, path, last)
	if got.timedOut && c.timeout == requestTimeout {
		c.throttle.noteTimeout(asked)
	}
	return got
}

// answer is how a request for a document ended.
type answer struct {
	body     []byte
	present  bool
	err      error
	timedOut bool
}

func noAnswer(limit time.Duration) error {
	return fmt.Errorf("no answer within %s: %w", limit, context.DeadlineExceeded)
}

// send makes one request for a document, until ctx ends.
func (c *client) send(ctx context.Context, sdk *imds.Client, path string, last *exchange) answer {
	content, err := open(context.WithValue(ctx, exchangeKey{}, last), sdk, path)
	var body []byte
	if err == nil {
		defer func() { _ = content.Close() }()
		body, err = io.ReadAll(content)
	}
	switch {
	case err == nil && last.status == http.StatusOK:
		return answer{body: body, present: true}
	case last.absent():
		return answer{}
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return answer{err: ctx.Err(), timedOut: true}
	default:
		return answer{err: last.during(last.cause(err))}
	}
}

// hedge reports a request that is late, and makes others beside it.
type hedge struct {
	client      *client
	path        string
	first       exchange      // of the late request
	timeout     time.Duration // the limit that was last reported
	cancelFirst func()
	answer      *answer // to another request, which has come first
	done        chan struct{}
}

// run reports the request as late, unless the service is known to be slow, and makes others beside it until one is
// answered or ctx, which is the first request's, ends. An error is no answer, as the first request may still get a good
// one: it is only observed.
func (h *hedge) run(ctx context.Context) {
	defer close(h.done)
	late := h.client.late
	for h.client.throttle.isSlow() {
		if !sleep(ctx, late) {
			return
		}
	}
	if ctx.Err() != nil {
		return
	}
	h.timeout = late
	if report, ok := ctx.Value(lateReportKey{}).(func(error)); ok {
		report(readingError(h.path, h.first.during(noAnswer(late))))
	}
	for h.client.hedgeSDK != nil && ctx.Err() == nil {
		next := time.Now().Add(late)
		if !h.client.throttle.mayBeStrained() {
			timeout := min(max(h.client.throttle.sinceAnswer(), late), requestTimeout)
			if h.answer = h.client.hedgeRequest(ctx, h.path, timeout); h.answer != nil {
				h.cancelFirst()
				return
			}
			next = next.Add(timeout - late)
		}
		_ = sleep(ctx, time.Until(next))
	}
}

// hedgeRequest makes one more request for a document. It returns nil if that brought no good answer.
func (c *client) hedgeRequest(ctx context.Context, path string, timeout time.Duration) *answer {
	asked := time.Now()
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var last exchange
	got := c.send(limited, c.hedgeSDK, path, &last)
	switch {
	case got.timedOut:
		got.err = last.during(noAnswer(timeout))
	case ctx.Err() != nil: // the first request was answered
		return nil
	case got.err == nil:
		return &got
	}
	c.observe(Poll{Document: path, Result: Failed, Err: readingError(path, got.err), Latency: time.Since(asked)})
	return nil
}

type lateReportKey struct{}

// withLateReport returns a context whose requests report that they are late, and go on waiting.
func withLateReport(ctx context.Context, report func(error)) context.Context {
	return context.WithValue(ctx, lateReportKey{}, report)
}

// open calls the SDK's operation for the path.
func open(ctx context.Context, sdk *imds.Client, path string) (io.ReadCloser, error) {
	if dynamic, ok := strings.CutPrefix(path, "dynamic/"); ok {
		out, err := sdk.GetDynamicData(ctx, &imds.GetDynamicDataInput{Path: dynamic})
		if err != nil {
			return nil, err
		}
		return out.Content, nil
	}
	out, err := sdk.GetMetadata(ctx, &imds.GetMetadataInput{Path: path})
	if err != nil {
		return nil, err
	}
	return out.Content, nil
}

// exchange is the last HTTP exchange that the SDK made for a document, noted by the transport. The SDK's own errors bury
// the status below layers of wording, one of which cannot be unwrapped.
type exchange struct {
	token  atomic.Bool // it was for a session token, not the document; read while the request waits
	status int         // of the answer; 0 if none came
	err    error
}

type exchangeKey struct{}

func (e *exchange) begin(token bool) {
	e.token.Store(token)
	e.status, e.err = 0, nil
}

// absent reports whether the service answered that there is no such document.
func (e *exchange) absent() bool {
	return !e.token.Load() && e.status == http.StatusNotFound && e.err == nil
}

// cause says in plain words why the request failed; err is what the SDK says, which takes any 2xx for success: EC2 knows
// no empty success, and only what it says expressly is read as "nothing is announced".
func (e *exchange) cause(err error) error {
	switch {
	case e.err != nil:
		return e.err
	case e.status == http.StatusForbidden:
		return errors.New("the metadata service refuses to answer (403): it is disabled for this instance, or a proxy stands before it")
	case e.status == http.StatusUnauthorized && !e.token.Load():
		return errors.New("the metadata service does not accept the token that it has just given (401)")
	case e.status != 0 && e.status != http.StatusOK:
		return unexpectedStatus(e.status)
	default:
		return err
	}
}

// unexpectedStatus is also reported for session tokens.
func unexpectedStatus(status int) error {
	return fmt.Errorf("the metadata service answers %d %s", status, http.StatusText(status))
}

// errToken marks what went wrong before the document itself was requested.
var errToken = errors.New("asking for a session token")

// during marks err as one of the session token's, if it is.
func (e *exchange) during(err error) error {
	if e.token.Load() {
		return fmt.Errorf("%w: %w", errToken, err)
	}
	return err
}
