// Package elbtest simulates Elastic Load Balancing (version 2) for tests: target groups, what is registered in them, and
// the part of the query protocol that is about that.
//
//	aws := elbtest.New()
//	web := aws.AddGroup("web", elbtest.Group{Delay: 3 * time.Second})
//	aws.Register(web, "i-0123", 30080)
//	aws.Deregister("i-0123") // it is draining now, and gone in three seconds
//
// A Service is an http.Handler. Targets drain as they do at AWS: by the clock, as seen by the next who asks. How calls are kept, and how
// requests are made to fail, is in pkg/internal/querytest. Everything works on the clock of testing/synctest.
package elbtest

import (
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
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

// Fault is how requests are broken.
type Fault = querytest.Fault

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

// ServeHTTP answers a request of the query protocol.
func (s *Service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.Serve(w, r, querytest.Query, s.perform)
}

// perform does what is asked for.
func (s *Service) perform(action string, v url.Values) (any, *querytest.Failure) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if action == "DescribeTargetGroups" {
		return s.describeGroups(v.Get("Marker")), nil
	}
	if action != "DescribeTargetHealth" {
		return nil, nil
	}
	e, found := s.groups[v.Get("TargetGroupArn")]
	if !found {
		return nil, querytest.Invalid("TargetGroupNotFound", "One or more target groups not found")
	}
	e.expire()
	return e.describeHealth(), nil
}

func (e *entry) describeHealth() any {
	type member struct {
		State string `xml:"TargetHealth>State"`
		Port  int    `xml:"Target>Port"`
		ID    string `xml:"Target>Id"`
	}
	var found struct {
		Members []member `xml:"TargetHealthDescriptions>member"`
	}
	for _, t := range e.targets {
		found.Members = append(found.Members, member{t.State, t.Port, t.ID})
	}
	return found
}

func (s *Service) describeGroups(marker string) any {
	type member struct {
		ARN  string `xml:"TargetGroupArn"`
		Name string `xml:"TargetGroupName"`
		Type string `xml:"TargetType"`
		VPC  string `xml:"VpcId"`
	}
	var found struct {
		Members []member `xml:"TargetGroups>member"`
		Next    string   `xml:"NextMarker,omitempty"`
	}
	arns := slices.Sorted(maps.Keys(s.groups))
	from, _ := strconv.Atoi(marker) // none is the first page
	for n := from; n < len(arns) && n < from+s.page; n++ {
		e := s.groups[arns[n]]
		found.Members = append(found.Members, member{arns[n], e.name, e.Type, e.VPC})
	}
	if next := from + s.page; next < len(arns) {
		found.Next = strconv.Itoa(next)
	}
	return found
}
