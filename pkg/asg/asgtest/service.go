package asgtest

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nth-project/nth/pkg/internal/querytest"
)

// The transitions of a hook.
const (
	Terminating = "autoscaling:EC2_INSTANCE_TERMINATING"
	Launching   = "autoscaling:EC2_INSTANCE_LAUNCHING"
)

// Hook is a lifecycle hook of a group. Zero fields have AWS's defaults.
type Hook struct {
	Name string
	// Transition is Terminating by default.
	Transition string
	// HeartbeatTimeout is an hour by default.
	HeartbeatTimeout time.Duration
	// GlobalTimeout is the longest wait in all: a hundred times HeartbeatTimeout by default, and 48 hours at most. AWS lets
	// nobody set it; a test may be too short for a hundred heartbeats.
	GlobalTimeout time.Duration
	// DefaultResult is what happens when the hook times out: "ABANDON" by default.
	DefaultResult string
	// NotificationTarget is the ARN of the queue or topic that is notified; none by default.
	NotificationTarget string
}

func (h Hook) withDefaults() Hook {
	if h.Transition == "" {
		h.Transition = Terminating
	}
	if h.HeartbeatTimeout == 0 {
		h.HeartbeatTimeout = time.Hour
	}
	if h.DefaultResult == "" {
		h.DefaultResult = "ABANDON"
	}
	return h
}

func (h Hook) global() time.Duration {
	return cmp.Or(h.GlobalTimeout, min(100*h.HeartbeatTimeout, 48*time.Hour))
}

// Action is what became of one hook of one instance.
type Action struct {
	Hook string
	// Token is what messages name it by: "token-" with the instance's ID, and "-2" after that if it is the hook's second, and so on.
	Token string
	// Began is when the waiting began, and Until when it times out.
	Began, Until time.Time
	// Heartbeats are the times of those that were accepted.
	Heartbeats []time.Time
	// Result is CONTINUE or ABANDON once it has ended, and Ended when. TimedOut tells that nobody said so.
	Result   string
	Ended    time.Time
	TimedOut bool
}

// instance is one instance of a group.
type instance struct {
	group   string
	state   string
	served  bool // it is on its way out of service
	actions []*Action
}

// Server is a Service on a port of its own.
type Server struct {
	*Service
	*querytest.Server
}

// NewServer starts a Server on a free port of 127.0.0.1.
func NewServer() *Server {
	s := New()
	return &Server{s, querytest.Listen(s)}
}

// Call is one request and what it was answered.
type Call = querytest.Call

// Fault is how requests are broken.
type Fault = querytest.Fault

// Throttled is the answer to one who asks too much.
func Throttled(action string, times int) Fault {
	return Fault{Action: action, Times: times, Status: http.StatusBadRequest, Code: "Throttling"}
}

// Service is Auto Scaling in one region. Make one with New.
type Service struct {
	querytest.Front

	mu        sync.Mutex
	groups    map[string][]Hook
	instances map[string]*instance
}

// New returns a service with no groups.
func New() *Service {
	return &Service{groups: map[string][]Hook{}, instances: map[string]*instance{}}
}

// AddGroup adds a group with its hooks, or replaces the hooks of one that is there.
func (s *Service) AddGroup(name string, hooks ...Hook) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.groups[name] = nil
	for _, h := range hooks {
		s.groups[name] = append(s.groups[name], h.withDefaults())
	}
}

// AddInstance adds an instance that is in service.
func (s *Service) AddInstance(group, id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.instances[id] = &instance{group: group, state: "InService", served: true}
}

// Terminate ends an instance: it waits for its group's hooks or, without any, proceeds.
func (s *Service) Terminate(id string) {
	s.SetState(id, "Terminating:Wait")
}

// waits are the states of waiting, and which hooks an instance waits for in them.
var waits = map[string]string{
	"Terminating:Wait": Terminating, "Warmed:Terminating:Wait": Terminating, "ReplacingRootVolume:Wait": Terminating, "Pending:Wait": Launching,
	"Warmed:Pending:Wait": Launching,
}

// returns reports whether an instance that comes to a state comes back to the warm pool from service: it waits for the hooks of
// terminations then ("Warm pool example events" in the user guide).
func (i *instance) returns(state string) bool {
	return state == "Warmed:Pending:Wait" && (i.state == "InService" || i.served && i.state == "Warmed:Pending")
}

// SetState puts an instance into a state, such as "Terminating" or "Warmed:Terminating:Wait". In a state of waiting, the
// actions of its group's hooks begin; without such hooks it proceeds at once.
func (s *Service) SetState(id, state string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.enter(id, state)
}

// enter puts an instance into a state. s.mu is held.
func (s *Service) enter(id, state string) {
	i := s.mustHave(id)
	transition, waiting := waits[state]
	if i.returns(state) {
		transition = Terminating
	}
	i.served = state == "InService" || i.served && state == "Warmed:Pending"
	i.state = state
	if !waiting {
		return
	}
	now := time.Now()
	for _, h := range s.groups[i.group] {
		if h.Transition == transition {
			i.actions = append(i.actions, &Action{Hook: h.Name, Token: i.token(id, h.Name), Began: now, Until: now.Add(h.HeartbeatTimeout)})
		}
	}
	i.proceed()
}

// token names the next action of an instance at a hook.
func (i *instance) token(id, hook string) string {
	number := 1
	for _, a := range i.actions {
		if a.Hook == hook {
			number++
		}
	}
	if number == 1 {
		return "token-" + id
	}
	return fmt.Sprintf("token-%s-%d", id, number)
}

// State returns the state that an instance is in.
func (s *Service) State(id string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire()
	return s.mustHave(id).state
}

// Actions returns what became of the hooks of an instance, those first that began first.
func (s *Service) Actions(id string) []Action {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire()
	var actions []Action
	for _, a := range s.mustHave(id).actions {
		c := *a
		c.Heartbeats = slices.Clone(a.Heartbeats)
		actions = append(actions, c)
	}
	return actions
}

// mustHave returns an instance. A test that names one that is not there is wrong.
func (s *Service) mustHave(id string) *instance {
	i, found := s.instances[id]
	if !found {
		panic(fmt.Sprintf("there is no instance %q", id))
	}
	return i
}

// expire ends what has timed out.
func (s *Service) expire() {
	now := time.Now()
	for _, i := range s.instances {
		for _, a := range i.actions {
			if a.Result == "" && !now.Before(a.Until) {
				h := s.hook(i.group, a.Hook)
				i.end(a, h.DefaultResult, a.Until)
				a.TimedOut = true
			}
		}
		i.proceed()
	}
}

func (s *Service) hook(group, name string) Hook {
	for _, h := range s.groups[group] {
		if h.Name == name {
			return h
		}
	}
	return Hook{}.withDefaults()
}

// active returns the action of a hook that has not ended; nil if there is none.
func (i *instance) active(hook string) *Action {
	for _, a := range i.actions {
		if a.Hook == hook && a.Result == "" {
			return a
		}
	}
	return nil
}

// end ends an action. To abandon one ends them all.
func (i *instance) end(a *Action, result string, at time.Time) {
	a.Result, a.Ended = result, at
	if result != "ABANDON" {
		return
	}
	for _, other := range i.actions {
		if other.Result == "" {
			other.Result, other.Ended = "ABANDON", at
		}
	}
}

// proceed lets an instance proceed that waits for nothing more.
func (i *instance) proceed() {
	if slices.ContainsFunc(i.actions, func(a *Action) bool { return a.Result == "" }) {
		return
	}
	before, waiting := strings.CutSuffix(i.state, ":Wait")
	if !waiting || waits[i.state] == "" {
		return
	}
	i.state = before + ":Proceed"
}

// Forget ends the actions of an instance as if somebody else had completed them.
func (s *Service) Forget(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range s.mustHave(id).actions {
		if a.Result == "" {
			a.Result, a.Ended = "CONTINUE", time.Now()
		}
	}
}
