package elbtest

import (
	"context"
	"fmt"
	"maps"
	"net/http/httptest"
	"net/url"
	"slices"
	"sync"
	"time"
)

// Server is a Service on a port of its own.
type Server struct {
	*Service
	// URL is "http://127.0.0.1:PORT".
	URL string

	http *httptest.Server
}

// NewServer starts a Server on a free port of 127.0.0.1.
func NewServer() *Server {
	s := &Server{Service: New()}
	s.http = httptest.NewServer(s.Service)
	s.URL = s.http.URL
	return s
}

// Close ends the service: connections are cut, requests that hang as well.
func (s *Server) Close() {
	s.http.CloseClientConnections()
	s.http.Close()
}

// VPC is the one that groups are in unless they say otherwise. imdstest's instance is in it.
const VPC = "vpc-0a1b2c3d4e5f60718"

// Group is a target group.
type Group struct {
	// Type is "instance" by default; in one of the type "ip" addresses are registered.
	Type string
	// Delay is how long a target drains once it is deregistered; AWS's own default is five minutes, 0 is none.
	Delay time.Duration
	// VPC is where it is.
	VPC string
}

// Target is what is registered in a group.
type Target struct {
	ID   string
	Port int
	// State is "initial", "healthy", "unhealthy", "draining", "unhealthy.draining", "unused" or "unavailable".
	State string

	gone time.Time // when it will have drained
}

// Open tells whether a load balancer sends new requests to the target.
func (t Target) Open() bool { return t.State == "healthy" }

type entry struct {
	Group
	name    string
	targets []*Target
}

// Call is one request and what it was answered.
type Call struct {
	// Action is what was asked for, such as "DescribeTargetHealth".
	Action string
	At     time.Time
	Values url.Values
	// Status is the HTTP status of the answer, 0 if there was none, and Code the error's; empty if there was none.
	Status int
	Code   string
}

// Fault is how requests are broken.
type Fault struct {
	// Action is what must be asked for; empty is anything. About is a value that must be in the request, such as a group's ARN; empty
	// is any.
	Action, About string
	// Times is how many requests are broken; 0 is all until Lift.
	Times int
	// Status and Code are what is answered; 0 hangs until the client gives up.
	Status int
	Code   string
}

// Throttled is the answer to one who asks too much.
func Throttled(times int) Fault { return Fault{Times: times, Status: 400, Code: "Throttling"} }

// Silent is no answer at all.
func Silent() Fault { return Fault{} }

// Service is Elastic Load Balancing in one region. Make one with New.
type Service struct {
	mu      sync.Mutex
	groups  map[string]*entry // by ARN
	calls   []Call
	changed chan struct{} // closed with the next call
	faults  []Fault
	denied  map[string]bool // actions, or "action ARN"
	page    int
}

// New returns a service with no groups.
func New() *Service {
	return &Service{groups: map[string]*entry{}, denied: map[string]bool{}, changed: make(chan struct{}), page: 400}
}

// AddGroup adds a group, and returns its ARN.
func (s *Service) AddGroup(name string, g Group) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if g.Type == "" {
		g.Type = "instance"
	}
	if g.VPC == "" {
		g.VPC = VPC
	}
	arn := fmt.Sprintf("arn:aws:elasticloadbalancing:eu-central-1:123456789012:targetgroup/%s/%016x", name, len(s.groups)+1)
	s.groups[arn] = &entry{Group: g, name: name}
	return arn
}

// RemoveGroup removes a group with its targets.
func (s *Service) RemoveGroup(arn string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.groups, arn)
}

// Register adds a target, which is healthy at once.
func (s *Service) Register(arn, id string, port int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mustHave(arn).register(id, port)
}

func (e *entry) register(id string, port int) {
	e.targets = slices.DeleteFunc(e.targets, func(t *Target) bool { return t.ID == id && t.Port == port })
	e.targets = append(e.targets, &Target{ID: id, Port: port, State: "healthy"})
}

// Deregister has a target leave all groups that it is in.
func (s *Service) Deregister(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.groups {
		e.deregister(id, 0)
	}
}

// deregister has a target leave that is registered with that port; 0 is any.
func (e *entry) deregister(id string, port int) {
	for _, t := range e.targets {
		if t.ID == id && (port == 0 || port == t.Port) && t.gone.IsZero() {
			t.gone = time.Now().Add(e.Delay)
			if t.State == "unhealthy" {
				t.State = "unhealthy.draining"
			} else {
				t.State = "draining"
			}
		}
	}
	e.expire()
}

// SetState puts a target into a state in all groups that it is in.
func (s *Service) SetState(id, state string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.groups {
		for _, t := range e.targets {
			if t.ID == id {
				t.State = state
			}
		}
	}
}

// Targets returns what is registered in a group, or drains.
func (s *Service) Targets(arn string) []Target {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.mustHave(arn)
	e.expire()
	var all []Target
	for _, t := range e.targets {
		all = append(all, *t)
	}
	return all
}

// mustHave returns a group. A test that names one that is not there is wrong.
func (s *Service) mustHave(arn string) *entry {
	e, found := s.groups[arn]
	if !found {
		panic(fmt.Sprintf("there is no target group %q among %v", arn, slices.Sorted(maps.Keys(s.groups))))
	}
	return e
}

// expire removes what has drained.
func (e *entry) expire() {
	now := time.Now()
	e.targets = slices.DeleteFunc(e.targets, func(t *Target) bool { return !t.gone.IsZero() && !now.Before(t.gone) })
}

// Fail breaks requests from now on. Of several faults that meet a request, the one set first breaks it.
func (s *Service) Fail(f Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, f)
}

// Lift ends all faults.
func (s *Service) Lift() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = nil
}

// Deny refuses actions to everybody, as IAM does without a policy. One that is followed by a space and an ARN is refused for that
// group alone.
func (s *Service) Deny(actions ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range actions {
		s.denied[a] = true
	}
}

// Page makes an answer hold so many groups at most.
func (s *Service) Page(groups int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.page = groups
}

// Calls returns all calls so far for an action; with "" those of all.
func (s *Service) Calls(action string) []Call {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(s.calls), func(c Call) bool { return action != "" && c.Action != action })
}

// Await waits until a condition of the service holds that only calls can bring about, or until ctx ends.
func (s *Service) Await(ctx context.Context, what string, holds func() bool) error {
	for {
		s.mu.Lock()
		changed := s.changed
		s.mu.Unlock()
		if holds() {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w; the calls were %v", what, ctx.Err(), s.Calls(""))
		}
	}
}

// keep keeps a call, and wakes those who wait for one.
func (s *Service) keep(c Call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, c)
	close(s.changed)
	s.changed = make(chan struct{})
}

// fault returns the fault that a request for an action meets.
func (s *Service) fault(action string, v url.Values) (Fault, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	has := func(value string) bool {
		for _, values := range v {
			if slices.Contains(values, value) {
				return true
			}
		}
		return false
	}
	for n, f := range s.faults {
		if f.Action != "" && f.Action != action || f.About != "" && !has(f.About) {
			continue
		}
		if f.Times == 1 {
			s.faults = append(s.faults[:n:n], s.faults[n+1:]...)
		} else if f.Times > 1 {
			s.faults[n].Times--
		}
		return f, true
	}
	return Fault{}, false
}
