package imds

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/feature/ec2/imds"
)

// The limits of one look, from the outside in: each contains those below it.
//
//	the silence of a loop           minSilence, 1 min or more: a look, its pause, and up to three documents
//	a document                      firstLimit to longestLimit, 2 s to 20 s, its session token included
//	a connection                    dialTimeout, 0.5 s, for each of the service's two addresses
//
// The service is on the same host and answers in milliseconds, so a document that has not come after two seconds is trouble. One that
// takes a few seconds still tells of a notice in time: after each time-out the limit becomes longer, and once there is an answer, it
// is four times what that took, as others may ask as well. Who looks for several documents asks for one after the other.
//
// EC2 drops what an instance sends above 1,024 packets a second to this service, its resolver and its clock together
// (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-retrieval.html, "Query throttling"). Some 170
// requests a minute of ten packets each are 3 % of that, so there is no limit to their number here.
const (
	firstLimit   = 2 * time.Second
	longestLimit = 20 * time.Second
	checkLimit   = 10 * time.Second // while somebody waits at a terminal
	growth       = 5                // after a time-out
	roomFor      = 4                // answers
	// dialTimeout is short because the service is on the same host: if there is no connection by then, a packet was lost.
	dialTimeout = 500 * time.Millisecond
)

// The most that is read, in bytes. The longest document is the history of maintenance, with about 250 bytes for each event that the
// instance ever had.
const (
	longDocument  = 64 << 10
	shortDocument = 4 << 10
	headerLimit   = 16 << 10
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

// patience is how long an answer is waited for. It grows after a time-out and shrinks with the next answer.
type patience struct {
	mu    sync.Mutex
	limit time.Duration
	fixed bool
}

func (p *patience) now() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.limit
}

func (p *patience) set(limit time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.fixed {
		p.limit = min(max(limit, firstLimit), longestLimit)
	}
}

// reader reads documents, one after the other. Each has a client of the SDK of its own, which lets only one request at a time fetch a
// session token, and has the others wait whatever their limits. What they share is the token (transport.go).
type reader struct {
	sdk      *imds.Client
	patience *patience
	observe  func(Poll)
	answers  answers
}

// answers is what answers have said besides what was asked for.
type answers struct {
	endpoint string        // where the last one came from
	slowest  time.Duration // the longest that one took
	date     time.Time     // the service's clock, by the last one that said so; zero if none did
	at       time.Time     // when that came
	took     time.Duration
}

// newReader returns a reader that nobody else uses.
func (s *Source) newReader(p *patience) *reader {
	observe := s.opts.Observe
	if observe == nil {
		observe = func(Poll) {}
	}
	return &reader{sdk: s.newSDK(), patience: p, observe: observe}
}

// Document requests a document once, by its path below /latest/meta-data/, and returns it unchanged. The error is
// fs.ErrNotExist if EC2 has none there.
func (s *Source) Document(ctx context.Context, path string) ([]byte, error) {
	body, present, err := s.newReader(s.oneOff).get(ctx, path, longDocument)
	if err == nil && !present {
		err = fs.ErrNotExist
	}
	if err != nil {
		return nil, readingError(path, err)
	}
	return body, nil
}

// read requests a document of that size at most and parses it. An absent document is the zero value of T and no error.
func read[T any](ctx context.Context, r *reader, path string, size int64, parse func([]byte) (T, error)) (T, error) {
	start := time.Now()
	var value T
	result := Absent
	body, present, err := r.get(ctx, path, size)
	if err == nil && present {
		result = OK
		value, err = parse(body)
	}
	if err != nil {
		var none T
		value, result = none, Failed
		err = readingError(path, err)
	}
	r.observe(Poll{Document: path, Result: result, Err: err, Latency: time.Since(start)})
	return value, err
}

func readingError(path string, err error) error { return fmt.Errorf("reading %q: %w", path, err) }

// get returns the body of a document, or present = false if EC2 has none. The path is one below /latest/meta-data/, or
// below /latest/ if it begins with "dynamic/".
func (r *reader) get(ctx context.Context, path string, size int64) (body []byte, present bool, err error) {
	limit := r.patience.now()
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	last := &exchange{size: size, answers: &r.answers}
	asked := time.Now()
	content, err := open(context.WithValue(limited, exchangeKey{}, last), r.sdk, path)
	if err == nil {
		defer func() { _ = content.Close() }()
		body, err = io.ReadAll(content)
	}
	switch {
	case err == nil && last.status == http.StatusOK:
		present = true
	case last.absent():
		body = nil
	case ctx.Err() != nil: // the caller's deadline, not the document's
		return nil, false, last.during(ctx.Err())
	case limited.Err() != nil:
		r.patience.set(growth * limit)
		return nil, false, last.during(fmt.Errorf("no answer within %s: %w", limit, context.DeadlineExceeded))
	default:
		return nil, false, last.during(last.cause(err))
	}
	r.patience.set(roomFor * time.Since(asked))
	return body, present, nil
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

// newSDK returns a client of the SDK. The only configuration that it reads is the endpoint's environment variable: not the shared config
// files, nor the variable that disables it.
func (s *Source) newSDK() *imds.Client {
	mode := imds.EndpointModeStateUnset
	if strings.EqualFold(s.opts.EndpointMode, modeIPv6) {
		mode = imds.EndpointModeStateIPv6
	}
	return imds.New(imds.Options{
		Endpoint:          s.opts.Endpoint,
		EndpointMode:      mode,
		HTTPClient:        s.newHTTPClient(),
		ClientEnableState: imds.ClientEnabled,
		EnableFallback:    aws.FalseTernary,
		Retryer:           renewToken{},
		// The limits are ours.
		DisableDefaultTimeout: true, DisableDefaultMaxBackoff: true,
	})
}

// renewToken is the SDK's retry policy: once, at once, and only for what the SDK marks as retryable, which is an answer
// of 401. By then it has dropped the session token, and the second attempt gets a new one. Every other failure waits for
// the next look.
type renewToken struct{ aws.NopRetryer }

func (renewToken) MaxAttempts() int                             { return 2 }
func (renewToken) RetryDelay(int, error) (time.Duration, error) { return 0, nil }
func (renewToken) IsErrorRetryable(err error) bool {
	var marked interface{ RetryableError() bool }
	return errors.As(err, &marked) && marked.RetryableError()
}

// exchange is the last HTTP exchange that the SDK made for a document, noted by httpClient. The SDK's own errors bury the status below
// layers of wording, one of which cannot be unwrapped.
type exchange struct {
	size    int64
	answers *answers
	token   bool // it was for a session token, not the document
	status  int  // of the answer; 0 if none came
	err     error
}

type exchangeKey struct{}

// absent reports whether the service answered that there is no such document.
func (e *exchange) absent() bool { return !e.token && e.status == http.StatusNotFound && e.err == nil }

// cause says in plain words why the request failed; err is what the SDK says, which takes any 2xx for success: EC2 knows
// no empty success, and only what it says expressly is read as "nothing is announced".
func (e *exchange) cause(err error) error {
	switch {
	case e.err != nil:
		return e.err
	case e.status == http.StatusForbidden:
		return errors.New("the metadata service refuses to answer (403): it is disabled for this instance, or a proxy stands before it")
	case e.status == http.StatusUnauthorized && !e.token:
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
	if e.token {
		return fmt.Errorf("%w: %w", errToken, err)
	}
	return err
}
