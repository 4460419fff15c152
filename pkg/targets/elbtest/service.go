package elbtest

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/nth-project/nth/pkg/internal/querytest"
)

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

type entry struct {
	Group
	name    string
	targets []*Target
}

// Call is one request and what it was answered.
type Call = querytest.Call

// Fault is how requests are broken.
type Fault = querytest.Fault

// Throttled is the answer to one who asks too much.
func Throttled(times int) Fault {
	return Fault{Times: times, Status: http.StatusBadRequest, Code: "Throttling"}
}

// Silent is no answer at all.
func Silent() Fault { return Fault{} }

// Service is Elastic Load Balancing in one region. Make one with New.
type Service struct {
	querytest.Front

	mu     sync.Mutex
	groups map[string]*entry // by ARN
	page   int
}

// New returns a service with no groups.
func New() *Service {
	return &Service{groups: map[string]*entry{}, page: 400}
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
	e := s.mustHave(arn)
	e.targets = slices.DeleteFunc(e.targets, func(t *Target) bool { return t.ID == id && t.Port == port })
	e.targets = append(e.targets, &Target{ID: id, Port: port, State: "healthy"})
}

// Deregister has a target leave all groups that it is in.
func (s *Service) Deregister(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.groups {
		for _, t := range e.targets {
			if t.ID == id && t.gone.IsZero() {
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

// Page makes an answer hold so many groups at most.
func (s *Service) Page(groups int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.page = groups
}
