// Package imdstest simulates EC2's instance metadata service, version 2, for tests and for rehearsals.
//
// A test starts a Server on a free port, as it would with net/http/httptest, lets EC2 announce something, and breaks
// the service where it likes:
//
//	srv := imdstest.NewServer()
//	defer srv.Close()
//	srv.SetSpot("terminate", time.Now().Add(2*time.Minute))
//	srv.Fault(imdstest.Fault{Kind: imdstest.Hang})
//	srv.Lift()
//
// A Simulator is an http.Handler with announcements (announce.go), faults (fault.go) and counts of its requests; the
// documents, the tokens and the protocol are those of pkg/imds/standin. A Server gives it a port, which it can also close
// and reopen. The command nth-imds runs one.
//
// Everything is safe for concurrent use. A change is visible to every request that begins after the call returned.
package imdstest

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"sync"

	"github.com/nth-project/nth/pkg/imds/standin"
)

// Simulator is the metadata service of one instance. It is an http.Handler; Server puts it on a port.
type Simulator struct {
	service *standin.Service
	faults  faults
	traffic traffic

	// announcing serializes changes of more than one document.
	announcing sync.Mutex
	scheduled  []MaintenanceEvent
	history    []MaintenanceEvent

	watching  sync.Mutex
	onChange  func(change string)
	onRequest func(Exchange)
	// onFaults is called after each change of the set of faults, so that a Server can close or open its port.
	onFaults func()
}

// New returns the metadata service of a healthy spot instance for which nothing is announced.
func New() *Simulator {
	s := &Simulator{service: standin.New()}
	s.SetMaintenance()
	s.SetHistory()
	return s
}

// ServeHTTP answers as EC2 would, unless a fault says otherwise.
func (s *Simulator) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// net/http notices that a client has left only once the request's body is read.
	_, _ = io.Copy(io.Discard, io.LimitReader(r.Body, 64<<10))
	_, document := standin.SplitVersion(r.URL.Path)
	s.traffic.begin(r.URL.Path, r.Method == http.MethodPut && document == "api/token")
	defer s.traffic.end()

	exchange := Exchange{Method: r.Method, Path: r.URL.Path}
	if fault, broken := s.faults.match(r); broken {
		exchange.Fault = fault.String()
		exchange.Status = s.inject(fault, w, r)
	} else {
		exchange.Status = s.send(w, s.service.Answer(r))
	}
	s.reportRequest(exchange)
}

// send writes an answer and returns its status.
func (s *Simulator) send(w http.ResponseWriter, a standin.Answer) int {
	s.traffic.answered(a.Status)
	body := a.Header(w)
	w.WriteHeader(a.Status)
	_, _ = w.Write(body) // The client may have left.
	return a.Status
}

// Exchange is one request and its answer.
type Exchange struct {
	Method, Path string
	// Status is the HTTP status of the answer, 0 if there was none.
	Status int
	// Fault describes the fault that the request met, if any.
	Fault string
}

// OnChange sets the function that is called with a sentence for each change of what is served. It must not call the
// Simulator.
func (s *Simulator) OnChange(f func(change string)) {
	s.watching.Lock()
	defer s.watching.Unlock()
	s.onChange = f
}

// OnRequest sets the function that is called after each request. It must not call the Simulator.
func (s *Simulator) OnRequest(f func(Exchange)) {
	s.watching.Lock()
	defer s.watching.Unlock()
	s.onRequest = f
}

func (s *Simulator) reportChange(format string, args ...any) {
	s.watching.Lock()
	defer s.watching.Unlock()
	if s.onChange != nil {
		s.onChange(fmt.Sprintf(format, args...))
	}
}

func (s *Simulator) reportRequest(e Exchange) {
	s.watching.Lock()
	defer s.watching.Unlock()
	if s.onRequest != nil {
		s.onRequest(e)
	}
}

// The machine that every Simulator starts as. Set changes any of it.
const (
	InstanceID       = standin.InstanceID
	InstanceType     = standin.InstanceType
	AvailabilityZone = standin.AvailabilityZone
	Region           = standin.Region
	LocalIPv4        = standin.LocalIPv4
	LocalHostname    = standin.LocalHostname
	// Role is the instance's IAM role. Its credentials are made up and open nothing.
	Role = standin.Role
)

// SetLifeCycle says how the instance was bought: "spot", "on-demand", "scheduled" or "capacity-block". It starts as
// "spot".
func (s *Simulator) SetLifeCycle(lifeCycle string) {
	s.service.Set("meta-data/instance-life-cycle", lifeCycle)
	s.reportChange("instance life cycle: %s", lifeCycle)
}

// Set serves body at a path such as "/latest/meta-data/instance-id" or "meta-data/instance-id". It replaces whatever is
// served there, also an announcement, until that is changed.
func (s *Simulator) Set(path, body string) {
	s.service.Set(path, body)
	s.reportChange("document %s set, %d bytes", standin.DocumentPath(path), len(body))
}

// Unset removes the document at path.
func (s *Simulator) Unset(path string) {
	if s.service.Unset(path) {
		s.reportChange("document %s removed", standin.DocumentPath(path))
	}
}

// ExpireTokens makes every token invalid: requests with one get 401.
func (s *Simulator) ExpireTokens() {
	s.service.ExpireTokens()
	s.reportChange("all tokens expired")
}

// Counts counts the requests to a Simulator since it was made.
type Counts struct {
	// Total counts all requests when they begin, those for tokens included.
	Total int `json:"total"`
	// Tokens counts the requests for a token.
	Tokens int `json:"tokens"`
	// ByPath counts the requests by their path, such as /latest/meta-data/spot/instance-action.
	ByPath map[string]int `json:"byPath"`
	// ByStatus counts the answers by HTTP status. Requests that a fault left without an answer are not in it.
	ByStatus map[int]int `json:"byStatus"`
	// InFlight is the number of requests being answered, and MostInFlight the largest it ever was.
	InFlight     int `json:"inFlight"`
	MostInFlight int `json:"mostInFlight"`
}

// Requests returns the current counts.
func (s *Simulator) Requests() Counts {
	counts, _ := s.traffic.read()
	return counts
}

// Await waits until reached returns true, or returns an error if ctx ends before that.
func (s *Simulator) Await(ctx context.Context, reached func(Counts) bool) error {
	for {
		counts, changed := s.traffic.read()
		if reached(counts) {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("awaiting requests, %d so far: %w", counts.Total, ctx.Err())
		}
	}
}

type traffic struct {
	mu      sync.Mutex
	counts  Counts
	changed chan struct{}
}

func (t *traffic) begin(path string, token bool) {
	t.update(func(c *Counts) {
		c.Total++
		c.ByPath[path]++
		if token {
			c.Tokens++
		}
		c.InFlight++
		c.MostInFlight = max(c.MostInFlight, c.InFlight)
	})
}

// answered is called before the answer is written, so that a client that has read it finds it counted.
func (t *traffic) answered(status int) { t.update(func(c *Counts) { c.ByStatus[status]++ }) }

func (t *traffic) end() { t.update(func(c *Counts) { c.InFlight-- }) }

func (t *traffic) update(change func(*Counts)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ready()
	change(&t.counts)
	close(t.changed)
	t.changed = make(chan struct{})
}

// read returns the counts and a channel that is closed when they change.
func (t *traffic) read() (Counts, <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ready()
	counts := t.counts
	counts.ByPath, counts.ByStatus = maps.Clone(counts.ByPath), maps.Clone(counts.ByStatus)
	return counts, t.changed
}

func (t *traffic) ready() {
	if t.changed == nil {
		t.changed = make(chan struct{})
		t.counts.ByPath, t.counts.ByStatus = map[string]int{}, map[int]int{}
	}
}
