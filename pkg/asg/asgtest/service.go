// Package asgtest simulates Amazon EC2 Auto Scaling for tests: groups, their lifecycle hooks and instances, and the part
// of the query protocol that is about lifecycle actions.
//
//	aws := asgtest.NewServer()
//	defer aws.Close()
//	aws.AddGroup("workers", asgtest.Hook{Name: "drain", HeartbeatTimeout: 30 * time.Second})
//	aws.AddInstance("workers", "i-0123")
//	aws.Terminate("i-0123") // it is Terminating:Wait now
//
// A Service is an http.Handler; a Server is a Service with a port. Hooks time out as they do at AWS: each request, and each method that returns
// something, first ends the actions whose time is over. pkg/internal/querytest records calls and makes requests fail. Everything works on the
// clock of testing/synctest.
package asgtest

import (
	"cmp"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
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
	// GlobalTimeout is the longest wait, whatever the heartbeats. The default is AWS's rule: a hundred times HeartbeatTimeout, 48 hours at most.
	// At AWS it cannot be set; a test may be too short for a hundred heartbeats.
	GlobalTimeout time.Duration
	// DefaultResult is what happens when the hook times out: "ABANDON" by default.
	DefaultResult string
	// NotificationTarget is the ARN of the queue or topic that the hook notifies; none by default.
	NotificationTarget string
}

// Action is a lifecycle action: one hook's wait for one instance.
type Action struct {
	Hook string
	// Token is the action's ID in messages: "token-" with the instance's ID, with "-2" at the end for the instance's second action, and so on.
	Token string
	// Began is when the wait began, and Until when it times out.
	Began, Until time.Time
	// Heartbeats are the times of the heartbeats that were accepted.
	Heartbeats []time.Time
	// Result is CONTINUE or ABANDON once the action has ended, and "" before. Ended is when. TimedOut is set if no request has ended the action.
	Result   string
	Ended    time.Time
	TimedOut bool

	hook Hook
}

// instance is one instance of a group.
type instance struct {
	group, state string
	actions      []*Action
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

// Fault says which requests fail, and how.
type Fault = querytest.Fault

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

// AddGroup adds a group with its hooks, or replaces the hooks of an existing group.
func (s *Service) AddGroup(name string, hooks ...Hook) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.groups[name] = nil
	for _, h := range hooks {
		h.Transition, h.DefaultResult = cmp.Or(h.Transition, Terminating), cmp.Or(h.DefaultResult, "ABANDON")
		h.HeartbeatTimeout = cmp.Or(h.HeartbeatTimeout, time.Hour)
		h.GlobalTimeout = cmp.Or(h.GlobalTimeout, min(100*h.HeartbeatTimeout, 48*time.Hour))
		s.groups[name] = append(s.groups[name], h)
	}
}

// AddInstance adds an instance that is in service.
func (s *Service) AddInstance(group, id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.instances[id] = &instance{group: group, state: "InService"}
}

// Terminate begins the termination of an instance: the instance waits for its group's hooks, or proceeds at once if the group has none.
func (s *Service) Terminate(id string) {
	s.SetState(id, "Terminating:Wait")
}

// waits are the states in which an instance waits, each with the transition of the hooks that it waits for. An instance that returns from service
// to the warm pool waits for the hooks for terminations ("Warm pool example events" in AWS's user guide).
var waits = map[string]string{
	"Terminating:Wait": Terminating, "Warmed:Terminating:Wait": Terminating, "Warmed:Pending:Wait": Terminating,
	"ReplacingRootVolume:Wait": Terminating, "Pending:Wait": Launching,
}

// SetState puts an instance into a state, such as "Terminating" or "Warmed:Terminating:Wait". If the state is one of waits, an action begins for
// each of the group's hooks for this transition. Without such hooks, the instance proceeds at once.
func (s *Service) SetState(id, state string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := s.mustHave(id)
	i.state = state
	if waits[state] == "" {
		return
	}
	now := time.Now()
	for _, h := range s.groups[i.group] {
		if h.Transition == waits[state] {
			token := "token-" + id
			if earlier := len(i.actions); earlier > 0 {
				token += "-" + strconv.Itoa(earlier+1)
			}
			i.actions = append(i.actions, &Action{Hook: h.Name, Token: token, Began: now, Until: now.Add(h.HeartbeatTimeout), hook: h})
		}
	}
	i.proceed()
}

// State returns the state that an instance is in.
func (s *Service) State(id string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire()
	return s.mustHave(id).state
}

// Actions returns copies of an instance's lifecycle actions, in the sequence in which they began.
func (s *Service) Actions(id string) []Action {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire()
	var actions []Action
	for _, a := range s.mustHave(id).actions {
		clone := *a
		clone.Heartbeats = slices.Clone(a.Heartbeats)
		actions = append(actions, clone)
	}
	return actions
}

// mustHave returns an instance. It panics if the instance does not exist: the test is wrong. s.mu is held.
func (s *Service) mustHave(id string) *instance {
	i, found := s.instances[id]
	if !found {
		panic(fmt.Sprintf("there is no instance %q", id))
	}
	return i
}

// expire ends the actions that have timed out. s.mu is held.
func (s *Service) expire() {
	now := time.Now()
	for _, i := range s.instances {
		for _, a := range i.actions {
			if a.Result == "" && !now.Before(a.Until) {
				a.TimedOut = true
				i.end(a, a.hook.DefaultResult, a.Until)
			}
		}
		i.proceed()
	}
}

// end ends an action of the instance. If the result is ABANDON, that ends the instance's other actions, too.
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

// proceed moves an instance from its ":Wait" to its ":Proceed" state, if all its actions have ended.
func (i *instance) proceed() {
	if slices.ContainsFunc(i.actions, func(a *Action) bool { return a.Result == "" }) {
		return
	}
	if waits[i.state] != "" {
		i.state = strings.TrimSuffix(i.state, ":Wait") + ":Proceed"
	}
}

// invalid returns Auto Scaling's answer to an invalid request.
func invalid(format string, args ...any) *querytest.Failure {
	return querytest.Invalid("ValidationError", format, args...)
}

// ServeHTTP answers a request of the query protocol.
func (s *Service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.Serve(w, r, querytest.Query, s.perform)
}

// perform performs a request. Both results are nil if the service does not have the action.
func (s *Service) perform(action string, v url.Values) (any, *querytest.Failure) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire()
	switch action {
	case "DescribeAutoScalingInstances":
		return s.describeInstance(v.Get("InstanceIds.member.1"))
	case "DescribeLifecycleHooks":
		return s.describeHooks(v.Get("AutoScalingGroupName"))
	case "RecordLifecycleActionHeartbeat":
		return s.heartbeat(v)
	case "CompleteLifecycleAction":
		return s.complete(v)
	}
	return nil, nil
}

// describeInstance answers a request for one instance. An unknown instance is an empty list.
func (s *Service) describeInstance(id string) (any, *querytest.Failure) {
	type member struct {
		InstanceID           string `xml:"InstanceId"`
		AutoScalingGroupName string
		LifecycleState       string
	}
	var found struct {
		Members []member `xml:"AutoScalingInstances>member"`
	}
	if i, known := s.instances[id]; known {
		found.Members = append(found.Members, member{id, i.group, i.state})
	}
	return found, nil
}

// describeHooks answers a request for the hooks of a group.
func (s *Service) describeHooks(group string) (any, *querytest.Failure) {
	hooks, known := s.groups[group]
	if !known {
		return nil, invalid("AutoScalingGroup name not found - AutoScalingGroup %s not found", group)
	}
	type member struct {
		LifecycleHookName, LifecycleTransition string
		HeartbeatTimeout                       int
		NotificationTargetARN                  string `xml:",omitempty"`
	}
	var found struct {
		Members []member `xml:"LifecycleHooks>member"`
	}
	for _, h := range hooks {
		found.Members = append(found.Members, member{h.Name, h.Transition, int(h.HeartbeatTimeout.Seconds()), h.NotificationTarget})
	}
	return found, nil
}

// action finds the lifecycle action that a request is about. The Failure says that no such action waits.
func (s *Service) action(v url.Values) (*instance, *Action, *querytest.Failure) {
	group, hook, id := v.Get("AutoScalingGroupName"), v.Get("LifecycleHookName"), v.Get("InstanceId")
	if !slices.ContainsFunc(s.groups[group], func(h Hook) bool { return h.Name == hook }) {
		return nil, nil, invalid("No Lifecycle Hook found with name: %s in group %s", hook, group)
	}
	if i, known := s.instances[id]; known && i.group == group {
		for _, a := range i.actions {
			open := a.Result == ""
			tokenFits := !v.Has("LifecycleActionToken") || v.Get("LifecycleActionToken") == a.Token
			if a.Hook == hook && open && tokenFits {
				return i, a, nil
			}
		}
	}
	return nil, nil, invalid("No active Lifecycle Action found with instance ID %s", id)
}

// heartbeat answers a heartbeat: the action waits for another timeout of its hook, but not beyond the hook's GlobalTimeout.
func (s *Service) heartbeat(v url.Values) (any, *querytest.Failure) {
	_, a, problem := s.action(v)
	if problem != nil {
		return nil, problem
	}
	now := time.Now()
	a.Heartbeats = append(a.Heartbeats, now)
	a.Until = now.Add(a.hook.HeartbeatTimeout)
	if end := a.Began.Add(a.hook.GlobalTimeout); end.Before(a.Until) {
		a.Until = end
	}
	return struct{}{}, nil
}

// complete answers a request to complete an action.
func (s *Service) complete(v url.Values) (any, *querytest.Failure) {
	result := v.Get("LifecycleActionResult")
	if result != "CONTINUE" && result != "ABANDON" {
		return nil, invalid("LifecycleActionResult must be CONTINUE or ABANDON, not %q", result)
	}
	i, a, problem := s.action(v)
	if problem != nil {
		return nil, problem
	}
	i.end(a, result, time.Now())
	i.proceed()
	return struct{}{}, nil
}
