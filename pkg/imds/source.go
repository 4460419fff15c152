// Package imds is the event source over EC2's instance metadata service: it reads the documents in which EC2 announces what will happen to the
// instance, and turns them into events.
//
//	spot/instance-action                    spot-interruption         every 500 ms
//	autoscaling/target-lifecycle-state      asg-termination           every 2 s
//	events/recommendations/rebalance        rebalance-recommendation  every 5 s
//	events/maintenance/{scheduled,history}  scheduled-maintenance     every 30 s
//
// A look is one reading of the documents for a kind of event. Each kind has a poller of its own, which looks at an interval, and a reader
// with a client and a session token of its own. So a document that hangs delays no other. documents.go reads the documents; docs/events.md says
// how it reads odd ones.
//
// A look is good if the service has answered with a readable document, or with 404: then nothing is announced. A good look delivers a snapshot.
// Any other look delivers trouble, and never an empty snapshot.
//
// Newcomers begin with Source.Run.
//
// Only version 2 of the service (IMDSv2, with session tokens) is used, and nothing is ever written to it.
package imds

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/feature/ec2/imds"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/loop"
	"github.com/nth-project/nth/pkg/text"
)

// The interval for another kind of event is this many times Options.Interval: other kinds are announced minutes or days ahead.
const (
	targetStateRatio = 4
	rebalanceRatio   = 10
	maintenanceRatio = 60
)

// Options say what a Source polls, and how often.
type Options struct {
	// Endpoint is the service's URL. It ends after the host or port: the SDK drops a path. Empty means the URL in the environment variable
	// AWS_EC2_METADATA_SERVICE_ENDPOINT, or else EC2's own.
	Endpoint string
	// EndpointMode says which of EC2's own addresses is used: "IPv4" or "IPv6", in any case. Empty means IPv4. It has no effect if an
	// endpoint is given.
	EndpointMode string
	// Interval is the time between two looks for a spot notice. The intervals for the other kinds are 4, 10 and 60 times as long. Run requires
	// it.
	Interval time.Duration
	// Kinds are the kinds of events to poll. Kinds that are not in event.PolledKinds are ignored.
	Kinds []event.Kind
	// BootID identifies this boot of the machine. It is part of the ID of an ASG termination, whose document has no ID.
	BootID string
	// WasInService says that the target state has been InService before, in this boot. Otherwise InService, if set, is called once, when that
	// is first so. From then on, most other target states mean that the instance leaves.
	WasInService bool
	InService    func()
	// TargetState, if set, is called when the group's target state for the instance changes; state is "" if there is none.
	TargetState func(state string)
	// Observe, if set, is called after each request for a document, from several goroutines at once.
	Observe func(Poll)
}

// Source looks at the metadata service. Make one with New.
type Source struct {
	opts Options
	mode imds.EndpointModeState
	dial func(ctx context.Context, network, address string) (net.Conn, error)
	// targetStates follows the target state of this boot. It outlives a call of Run.
	targetStates *targetStates

	mu      sync.Mutex
	pollers []*poller // those of the current Run, for Stalled
}

// New returns a Source. It makes no request. The error says that there is no such EndpointMode.
func New(opts Options) (*Source, error) {
	s := &Source{
		opts: opts, targetStates: &targetStates{opts: opts, served: opts.WasInService},
		dial: (&net.Dialer{Timeout: dialTimeout, KeepAlive: -1}).DialContext,
	}
	if err := s.mode.SetFromString(opts.EndpointMode); err != nil {
		return nil, fmt.Errorf("the environment variable %s is %q, but must be IPv4 or IPv6", EndpointModeVariable, opts.EndpointMode)
	}
	return s, nil
}

// EndpointModeVariable is the environment variable from which AWS's SDKs take the endpoint mode.
const EndpointModeVariable = "AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE"

// dialTimeout is short because the service is on the same host: if there is no connection after that time, a packet was lost.
const dialTimeout = 500 * time.Millisecond

// Run looks for events and delivers snapshots to the sink until ctx ends. Then it waits for its pollers. Run never gives up: it reports a missing
// or broken service to the sink, and tries again. Call Run once at a time.
func (s *Source) Run(ctx context.Context, sink event.Sink) {
	var pollers sync.WaitGroup
	for _, p := range s.newPollers() {
		pollers.Go(func() { p.run(ctx, sink) })
	}
	<-ctx.Done() // also if nothing is polled
	pollers.Wait()
}

// polledKinds returns those of Options.Kinds that the metadata service announces.
func (s *Source) polledKinds() []event.Kind {
	return slices.DeleteFunc(event.PolledKinds(), func(k event.Kind) bool { return !slices.Contains(s.opts.Kinds, k) })
}

// pollersOfAllKinds returns a poller for each kind that the service announces, without readers.
func (s *Source) pollersOfAllKinds(states *targetStates) []*poller {
	return []*poller{
		{kind: event.SpotInterruption, interval: s.opts.Interval, look: lookAt(spotPath, shortDocument, parseSpot)},
		{kind: event.ASGTermination, interval: targetStateRatio * s.opts.Interval, look: states.look},
		{kind: event.RebalanceRecommendation, interval: rebalanceRatio * s.opts.Interval, look: lookAt(rebalancePath, shortDocument, parseRebalance)},
		{kind: event.ScheduledMaintenance, interval: maintenanceRatio * s.opts.Interval, look: (&maintenance{}).look},
	}
}

// newPollers returns a new poller for each kind that is polled, and stores the pollers for Stalled.
func (s *Source) newPollers() []*poller {
	all := slices.DeleteFunc(s.pollersOfAllKinds(s.targetStates), func(p *poller) bool { return !slices.Contains(s.opts.Kinds, p.kind) })
	for _, p := range all {
		p.reader = s.newReader()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pollers = all
	return all
}

// Stalled returns an error if a poller hangs: it has neither begun nor ended a look for far longer than its interval and its limits allow. If the
// service does not answer, no poller hangs: each request has a limit.
func (s *Source) Stalled() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.pollers {
		if err := p.stuck(); err != nil {
			return err
		}
	}
	return nil
}

// found is the result of a good look.
type found struct {
	events []event.Event
	// partial says which part of the documents could not be read; nil if all could be read. The events of the other parts are in events.
	partial error
}

// poller looks for events of one kind, again and again, in one goroutine.
type poller struct {
	kind     event.Kind
	interval time.Duration // from the start of one look to the start of the next
	look     func(context.Context, *reader) (found, error)
	reader   *reader
	// alive is when a look last began or ended; nil while the poller does not run.
	alive atomic.Pointer[time.Time]
}

// run looks until ctx ends. It delivers each look's events to the sink as a snapshot, and each look's error as trouble. After an error the
// interval stays the same, so that a notice is seen as soon as the service is back.
func (p *poller) run(ctx context.Context, sink event.Sink) {
	defer p.alive.Store(nil)
	for {
		start := time.Now()
		p.alive.Store(&start)
		result, err := p.look(ctx, p.reader)
		if ctx.Err() != nil { // The end of ctx may have canceled the look: its result does not count.
			return
		}
		if err == nil {
			s := event.Snapshot{Kind: p.kind, Events: result.events}
			if seen := p.reader.seen; !seen.date.IsZero() { // The service dates its answers in whole seconds, and an answer takes some time.
				s.Clock, s.Within = seen.date.Add(time.Since(seen.at)), time.Second+seen.took
			}
			sink.Snapshot(s)
			err = result.partial
		}
		if err != nil {
			sink.Trouble(p.kind, err)
		}
		end := time.Now()
		p.alive.Store(&end)
		// The interval varies by a twentieth, so that pollers of a machine, and machines that were started together, do not look at the same moment.
		next := start.Add(wait.Jitter(p.interval*19/20, 2.0/19))
		if !loop.Await(ctx, nil, time.Until(next)) {
			return
		}
	}
}

// minSilence is how long a poller may neither begin nor end a look, whatever the interval. A machine without free processor time needs far less.
// It is short enough for systemd to restart nth within a spot notice.
const minSilence = time.Minute

// stuck returns an error if the poller runs, and has neither begun nor ended a look for longer than its interval and the limits allow.
func (p *poller) stuck() error {
	longest := max(minSilence, 3*(p.interval+limit)) // A look at maintenance makes up to three requests. Three intervals are ample.
	if last := p.alive.Load(); last != nil && time.Since(*last) > longest {
		return fmt.Errorf("the poller of %s hangs: no response and no error for %s", p.kind, time.Since(*last).Round(time.Second))
	}
	return nil
}

// limit is how long a request for a document may take, with the request for the session token. The service is on the same host and answers in
// milliseconds. If it takes seconds, a notice still comes in time.
//
// EC2 drops what an instance sends above 1,024 packets a second to this service, its resolver and its clock together
// (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-retrieval.html, "Query throttling"). Some 170
// requests a minute of ten packets each are 3 % of that, so there is no limit to their number here.
const limit = 10 * time.Second

// The most that is read, in bytes.
const (
	longDocument  = 64 << 10 // The longest document is the history of maintenance, with about 250 bytes for each event of the instance.
	shortDocument = 4 << 10
	headerLimit   = 16 << 10
)

// requestBuffer is enough for most requests, in bytes. Each connection serves one.
const requestBuffer = 512

// Result is how a request for a document ended. Its text never changes: metrics have it as a label.
type Result string

// The results of a request.
const (
	OK     Result = "ok"     // the document exists and could be read, at least in part
	Absent Result = "absent" // the service has no such document: EC2 announces nothing
	Failed Result = "error"  // there was no answer, another answer, or a document that could not be read
)

// Poll is one request for a document, as Options.Observe gets it.
type Poll struct {
	Document string // its path below /latest/meta-data/
	Result   Result
	Err      error // set if Result is Failed
}

// String describes the poll in a few words, for "nth check" and logs.
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

// reader reads documents, one after the other; one goroutine uses it. Each reader has its own client of the SDK with its own session token. If
// readers shared a client, the SDK would let one request fetch a token and make the others wait, longer than their limits.
//
// A reader sends requests to the metadata service alone. It uses no proxy and follows no redirect, which could carry the session token
// elsewhere. Each request has its own connection, as EC2 closes that after the answer.
type reader struct {
	sdk       *imds.Client
	transport *http.Transport
	observe   func(Poll)
	answer    answer // how the last HTTP request ended
	seen      seen   // what the answers so far say about the service
}

// answer is how an HTTP request ended. The SDK's errors do not say that plainly, and some cannot be unwrapped.
type answer struct {
	token  bool // the request was for a session token, not for the document
	size   int  // the largest document that get accepts, in bytes
	status int  // the HTTP status; 0 if no whole answer came
	body   []byte
	err    error // why no whole answer came
}

// seen is what a reader knows about the service from the answers so far.
type seen struct {
	endpoint string        // where the last answer came from, such as "http://169.254.169.254"
	date     time.Time     // the Date header, the service's clock, of the last answer with this header; zero before the first
	at       time.Time     // when that answer came, by the machine's clock
	took     time.Duration // how long that answer took
}

// newReader returns a reader that has made no request. Readers share nothing.
func (s *Source) newReader() *reader {
	r := &reader{observe: s.opts.Observe, transport: &http.Transport{
		DialContext: s.dial, DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: headerLimit,
		WriteBufferSize: requestBuffer,
	}}
	if r.observe == nil {
		r.observe = func(Poll) {}
	}
	// With these options, the SDK reads no configuration but the endpoint's environment variable. In particular, it reads no config files, nor
	// the variable that disables the metadata service.
	r.sdk = imds.New(imds.Options{
		Endpoint:          s.opts.Endpoint,
		EndpointMode:      s.mode,
		HTTPClient:        r,
		ClientEnableState: imds.ClientEnabled,
		EnableFallback:    aws.FalseTernary, // The SDK must not fall back to version 1 of the service.
		Retryer:           aws.NopRetryer{}, // The next look tries again.
		// get has the only limit.
		DisableDefaultTimeout: true, DisableDefaultMaxBackoff: true,
	})
	return r
}

// Document requests a document once, by its path below /latest/meta-data/, and returns it unchanged. The error wraps fs.ErrNotExist if the
// service has no document there.
func (s *Source) Document(ctx context.Context, path string) ([]byte, error) {
	body, present, err := s.newReader().get(ctx, path, longDocument)
	if err == nil && !present {
		err = fs.ErrNotExist
	}
	if err != nil {
		return nil, readingError(path, err)
	}
	return body, nil
}

// read requests a document of at most size bytes, parses it, and calls the reader's observe. If the service has no such document, read returns
// the zero value of T and no error. All looks use it.
func read[T any](ctx context.Context, r *reader, path string, size int, parse func([]byte) (T, error)) (T, error) {
	var value T
	result := Absent
	body, present, err := r.get(ctx, path, size)
	if err == nil && present {
		result = OK
		value, err = parse(body)
	}
	if err != nil {
		var zero T // What parse returned with an error does not count.
		value, result = zero, Failed
		err = readingError(path, err)
	}
	r.observe(Poll{Document: path, Result: result, Err: err})
	return value, err
}

// readingError adds to an error which document was being read.
func readingError(path string, err error) error {
	return fmt.Errorf("reading metadata %q: %w", path, err)
}

// get requests a document of at most size bytes and returns its body. present is false if the service answers 404: it has no such document. Any
// other answer than 200 and 404 is an error, which wraps errToken if it came from the request for the session token.
func (r *reader) get(ctx context.Context, path string, size int) (body []byte, present bool, err error) {
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	r.answer = answer{size: size}
	// The SDK calls r.Do: first for a session token, if it has none, and then for the document. Do sets r.answer.
	_, err = r.sdk.GetMetadata(limited, &imds.GetMetadataInput{Path: path})
	present = r.answer.status == http.StatusOK
	absent := r.answer.status == http.StatusNotFound
	switch {
	case !r.answer.token && (present || absent): // The service has said whether it has the document.
		return r.answer.body, present, nil
	case ctx.Err() != nil: // The caller's context has ended.
		err = ctx.Err()
	case limited.Err() != nil: // The limit is over.
		err = fmt.Errorf("no answer within %s%.0w", limit, context.DeadlineExceeded) // %.0w wraps it without its text.
	default:
		err = r.answer.explain(err)
	}
	if r.answer.token {
		err = fmt.Errorf("%w: %w", errToken, err)
	}
	return nil, false, err
}

// errToken marks an error of the request for a session token, which comes before the request for the document.
var errToken = errors.New("asking for a session token")

// explain returns why a request failed, in plain words. err is the SDK's error; explain returns err itself if the answer says no more. err is nil
// for an answer such as 204: the SDK takes any 2xx for success, and get only a 200.
func (a answer) explain(err error) error {
	switch {
	case a.err != nil:
		return a.err
	case a.status == http.StatusForbidden:
		return errors.New("the metadata service refuses to answer (403): it is disabled for this instance, or a proxy stands before it")
	case a.status == http.StatusUnauthorized && !a.token:
		return errors.New("the metadata service does not accept the session token (401)")
	case a.token && a.status == http.StatusOK: // The SDK refuses a token if the answer's header does not say how long the token is valid.
		return errors.New("the metadata service returned a session token without a valid TTL header (X-Aws-Ec2-Metadata-Token-Ttl-Seconds)")
	case a.status != 0 && a.status != http.StatusOK: // An answer came. get handles 404 for a document.
		return fmt.Errorf("the metadata service answers %d %s", a.status, http.StatusText(a.status))
	default:
		return err
	}
}

// Do implements imds.HTTPClient: the SDK calls it in GetMetadata, for session tokens (PUT) and documents (GET). It reads and checks the whole answer.
// It stores in r.answer how the request ended, for get.
func (r *reader) Do(request *http.Request) (_ *http.Response, err error) {
	r.answer = answer{token: request.Method == http.MethodPut, size: r.answer.size} // get has set size.
	defer func() { r.answer.err = err }()
	asked := time.Now()
	response, err := r.transport.RoundTrip(request)
	if err != nil {
		return nil, withoutAddresses(err)
	}
	defer func() { _ = response.Body.Close() }()
	r.seen.record(response, time.Since(asked))
	size := r.answer.size
	if r.answer.token {
		size = shortDocument
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, int64(size)+1))
	if err != nil {
		return nil, withoutAddresses(err)
	}
	if len(body) > size {
		return nil, fmt.Errorf("the answer is longer than %d KiB", size>>10)
	}
	givesToken := r.answer.token && response.StatusCode == http.StatusOK
	if givesToken && (len(body) == 0 || !isLine(string(body))) {
		// The SDK would keep such a token, and could not send it in a header. So no request would get the 401 that renews the token.
		return nil, fmt.Errorf("the metadata service returned an invalid session token (%s)", text.Count(len(body), "byte"))
	}
	r.answer.status, r.answer.body = response.StatusCode, body
	response.Body = io.NopCloser(bytes.NewReader(body))
	return response, nil
}

// record takes what an answer says about the service. took is the time from the request to the answer's header.
func (s *seen) record(response *http.Response, took time.Duration) {
	s.endpoint = response.Request.URL.Scheme + "://" + response.Request.URL.Host
	if date, err := http.ParseTime(response.Header.Get("Date")); err == nil {
		s.date, s.at, s.took = date, time.Now(), took
	}
}

// withoutAddresses removes the addresses from a network error, and returns other errors as they are. The local port differs each time, and the
// same trouble should have the same message.
func withoutAddresses(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		return fmt.Errorf("%s: %w", op.Op, op.Err)
	}
	return err
}
