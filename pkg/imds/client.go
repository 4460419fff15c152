package imds

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/feature/ec2/imds"
)

// How long one document may take, its session token included. The service is on the same host and answers in milliseconds.
//
// One that has not answered by the first two limits is trouble, and that is said. It is waited for all the same: a
// service that answers in a few seconds tells of a notice in time, where requests that are given up after one never
// hear of it. Beside an urgent request that waits others are made, one after the other, so that the end of an outage is seen
// at once; whoever is answered first counts. Each is waited for urgentLimit, or as long as nothing has been answered of any
// document. None are made while the service is slow or answers nothing: they would not be answered either, and one that answers
// one request after the other would fall behind (see service).
const (
	urgentLimit  = time.Second
	patientLimit = 2 * time.Second
	answerLimit  = 15 * time.Second
	checkLimit   = 10 * time.Second // of one for somebody who sits before a terminal
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
	sdk *imds.Client
	// second makes the requests beside one that waits; nil if the documents are not urgent. It has a session token of its
	// own: an SDK client lets one request ask for a token, and the others wait for that.
	second *imds.Client
	// turn is how its requests wait for theirs, patience after how long one that waits is trouble, and limit when it is given up.
	turn            turn
	patience, limit time.Duration
	service         *service
	observe         func(Poll)
}

// newClient returns a client that has no token yet, for documents that are urgent or not.
func newClient(opts Options, urgent bool, dial dialer, svc *service) *client {
	c := &client{
		sdk: newSDK(opts, dial, svc), turn: regularly, patience: patientLimit, limit: answerLimit, service: svc, observe: opts.Observe,
	}
	if c.observe == nil {
		c.observe = func(Poll) {}
	}
	if urgent {
		c.second, c.turn, c.patience = newSDK(opts, dial, svc), urgently, urgentLimit
	}
	return c
}

// newSDK returns a client of the SDK. It reads no configuration here but the endpoint's environment variable: not the
// shared config files, nor the variable that disables it.
func newSDK(opts Options, dial dialer, svc *service) *imds.Client {
	mode := imds.EndpointModeStateUnset
	if strings.EqualFold(opts.EndpointMode, modeIPv6) {
		mode = imds.EndpointModeStateIPv6
	}
	return imds.New(imds.Options{
		Endpoint:                 opts.Endpoint,
		EndpointMode:             mode,
		HTTPClient:               newHTTPClient(dial, svc, opts.Renewed),
		ClientEnableState:        imds.ClientEnabled,
		EnableFallback:           aws.FalseTernary,
		Retryer:                  renewal{},
		DisableDefaultTimeout:    true,
		DisableDefaultMaxBackoff: true,
	})
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
		err = about(path, err)
	}
	c.observe(Poll{Document: path, Result: result, Err: err, Latency: time.Since(start)})
	return value, err
}

// get returns the body of a document, or found = false if EC2 has none. The path is one below /latest/meta-data/, or
// below /latest/ if it begins with "dynamic/". Trouble that is known before it returns is told by the context's lateness.
func (c *client) get(ctx context.Context, path string) (body []byte, found bool, err error) {
	waiting, giveUp := context.WithCancel(ctx)
	defer giveUp()
	w := &wait{client: c, path: path, limit: c.limit, giveUp: giveUp, over: make(chan struct{})}
	late := time.AfterFunc(c.patience, func() { w.late(waiting) })
	first := c.inTurn(waiting, path, &w.first)
	giveUp()
	if !late.Stop() {
		<-w.over
	}
	if w.second != nil {
		first = *w.second
	}
	switch {
	case first.timedOut && ctx.Err() != nil: // the caller's time was over, not the request's
		first.err = w.first.during(ctx.Err())
	case first.timedOut:
		first.err = w.first.during(noAnswer(w.limit))
	}
	return first.body, first.found, first.err
}

// inTurn makes a request for a document when its turn has come.
func (c *client) inTurn(ctx context.Context, path string, last *exchange) answer {
	over, err := c.service.await(ctx, c.turn)
	if err != nil {
		return answer{err: err}
	}
	defer over()
	asked := time.Now()
	limited, cancel := context.WithTimeout(ctx, c.limit)
	defer cancel()
	got := c.ask(limited, c.sdk, path, last)
	if got.timedOut && c.limit == answerLimit {
		c.service.givenUp(asked)
	}
	return got
}

// answer is how a request for a document ended.
type answer struct {
	body     []byte
	found    bool
	err      error
	timedOut bool
}

// noAnswer is the trouble with a request that was not answered in time.
func noAnswer(limit time.Duration) error {
	return fmt.Errorf("no answer within %s: %w", limit, context.DeadlineExceeded)
}

// ask makes one request for a document. Its time is that of the context.
func (c *client) ask(ctx context.Context, sdk *imds.Client, path string, last *exchange) answer {
	content, err := open(context.WithValue(ctx, exchangeKey{}, last), sdk, path)
	var body []byte
	if err == nil {
		defer func() { _ = content.Close() }()
		body, err = io.ReadAll(content)
	}
	switch {
	case err == nil && last.status == http.StatusOK:
		return answer{body: body, found: true}
	case last.absent():
		return answer{}
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return answer{err: ctx.Err(), timedOut: true}
	default:
		return answer{err: last.during(last.cause(err))}
	}
}

// wait is a request that has not been answered.
type wait struct {
	client *client
	path   string
	first  exchange      // of the request
	limit  time.Duration // the one that was told to have passed
	giveUp func()        // ends the request
	second *answer       // to another that was made beside it, which has come first
	over   chan struct{}
}

// late says that the request waits, unless the service is known to be slow, and makes others beside it until one is answered or ctx,
// which is the request's, ends. What another request fails with is no answer to the first, for which that may be good still: it is only
// noted.
func (w *wait) late(ctx context.Context) {
	defer close(w.over)
	patience := w.client.patience
	for w.client.service.isSlow() {
		if !sleep(ctx, patience) {
			return
		}
	}
	if ctx.Err() != nil {
		return
	}
	w.limit = patience
	if tell, wanted := ctx.Value(latenessKey{}).(func(error)); wanted {
		tell(about(w.path, w.first.during(noAnswer(patience))))
	}
	for w.client.second != nil && ctx.Err() == nil {
		next := time.Now().Add(patience)
		if !w.client.service.mayBeStrained() {
			long := min(max(w.client.service.silence(), patience), answerLimit)
			if w.second = w.client.hurry(ctx, w.path, long); w.second != nil {
				w.giveUp()
				return
			}
			next = next.Add(long - patience)
		}
		_ = sleep(ctx, time.Until(next))
	}
}

// hurry makes another request for a document, for so long, and returns what it has found, or not found; nil if it was not answered so.
func (c *client) hurry(ctx context.Context, path string, long time.Duration) *answer {
	asked := time.Now()
	hasty, cancel := context.WithTimeout(ctx, long)
	defer cancel()
	var last exchange
	got := c.ask(hasty, c.second, path, &last)
	switch {
	case got.timedOut:
		got.err = last.during(noAnswer(long))
	case ctx.Err() != nil: // the one that waited was answered
		return nil
	case got.err == nil:
		return &got
	}
	c.observe(Poll{Document: path, Result: Failed, Err: about(path, got.err), Latency: time.Since(asked)})
	return nil
}

// about says what err is about.
func about(path string, err error) error { return fmt.Errorf("reading %q: %w", path, err) }

type latenessKey struct{}

// withLateness returns a context whose requests tell of trouble as soon as it is one, and are then waited for.
func withLateness(ctx context.Context, tell func(error)) context.Context {
	return context.WithValue(ctx, latenessKey{}, tell)
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

// exchange is the last HTTP request that the SDK made for a document. The SDK's own errors bury the status below
// layers of wording, one of which cannot be unwrapped, so it is noted where the request is made.
type exchange struct {
	token  atomic.Bool // a session token was asked for, not the document; it is looked at while the request waits
	status int         // of the answer; 0 if none came
	err    error
}

type exchangeKey struct{}

// begin notes that another request is made.
func (e *exchange) begin(token bool) {
	e.token.Store(token)
	e.status, e.err = 0, nil
}

// absent tells whether the service answered that there is no such document.
func (e *exchange) absent() bool {
	return !e.token.Load() && e.status == http.StatusNotFound && e.err == nil
}

// cause says in plain words why the request failed; err is what the SDK says, which takes any 2xx for success: EC2 knows
// no empty success, and what it does not say is not read as "nothing is announced".
func (e *exchange) cause(err error) error {
	switch {
	case e.err != nil:
		return e.err
	case e.status == http.StatusForbidden:
		return errors.New("the metadata service refuses to answer (403): it is disabled for this instance, or a proxy stands before it")
	case e.status == http.StatusUnauthorized && !e.token.Load():
		return errors.New("the metadata service does not accept the token that it has just given (401)")
	case e.status != 0 && e.status != http.StatusOK:
		return fmt.Errorf("the metadata service answers %d %s", e.status, http.StatusText(e.status))
	default:
		return err
	}
}

// during names the step in which err happened, if it was not the document itself.
func (e *exchange) during(err error) error {
	if e.token.Load() {
		return fmt.Errorf("%w: %w", errToken, err)
	}
	return err
}
