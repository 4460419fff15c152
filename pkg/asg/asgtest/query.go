package asgtest

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/nth-project/nth/pkg/internal/querytest"
)

var protocol = querytest.Protocol{Service: "autoscaling", Version: "2011-01-01", Namespace: "http://autoscaling.amazonaws.com/doc/2011-01-01/"}

func invalid(format string, args ...any) *querytest.Failure {
	return &querytest.Failure{Status: http.StatusBadRequest, Code: "ValidationError", Message: fmt.Sprintf(format, args...)}
}

// ServeHTTP answers a request of the query protocol.
func (s *Service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	querytest.Serve(w, r, &s.Front, querytest.Behind{Admit: protocol.Admit, Refusal: protocol.Refusal, Perform: s.perform, Answer: protocol.Answer})
}

// perform does what is asked for.
func (s *Service) perform(action string, v url.Values) (any, *querytest.Failure) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire()
	switch action {
	case "DescribeAutoScalingInstances":
		return s.describeInstances(members(v, "InstanceIds"))
	case "DescribeLifecycleHooks":
		return s.describeHooks(v.Get("AutoScalingGroupName"))
	case "RecordLifecycleActionHeartbeat":
		return s.heartbeat(v)
	case "CompleteLifecycleAction":
		return s.complete(v)
	}
	return nil, querytest.Unknown(action)
}

// members returns a list of the query protocol: Name.member.1, Name.member.2, ...
func members(v url.Values, name string) []string {
	var list []string
	for n := 1; v.Has(fmt.Sprintf("%s.member.%d", name, n)); n++ {
		list = append(list, v.Get(fmt.Sprintf("%s.member.%d", name, n)))
	}
	return list
}

type instanceXML struct {
	InstanceID           string `xml:"InstanceId"`
	AutoScalingGroupName string
	AvailabilityZone     string
	LifecycleState       string
	HealthStatus         string
	ProtectedFromScaleIn bool
}

func (s *Service) describeInstances(ids []string) (any, *querytest.Failure) {
	var found struct {
		Members []instanceXML `xml:"AutoScalingInstances>member"`
	}
	for _, id := range ids {
		if i, known := s.instances[id]; known {
			found.Members = append(found.Members, instanceXML{id, i.group, "eu-central-1a", i.state, "HEALTHY", false})
		}
	}
	return found, nil
}

type hookXML struct {
	LifecycleHookName     string
	AutoScalingGroupName  string
	LifecycleTransition   string
	HeartbeatTimeout      int
	GlobalTimeout         int
	DefaultResult         string
	NotificationTargetARN string `xml:",omitempty"`
}

func (s *Service) describeHooks(group string) (any, *querytest.Failure) {
	hooks, known := s.groups[group]
	if !known {
		return nil, invalid("AutoScalingGroup name not found - AutoScalingGroup %s not found", group)
	}
	var found struct {
		Members []hookXML `xml:"LifecycleHooks>member"`
	}
	for _, h := range hooks {
		found.Members = append(found.Members, hookXML{
			h.Name, group, h.Transition, int(h.HeartbeatTimeout.Seconds()), int(h.global().Seconds()), h.DefaultResult, h.NotificationTarget,
		})
	}
	return found, nil
}

// action finds the lifecycle action that a request is about.
func (s *Service) action(v url.Values) (*instance, *Action, *querytest.Failure) {
	group, hook, id := v.Get("AutoScalingGroupName"), v.Get("LifecycleHookName"), v.Get("InstanceId")
	if !slices.ContainsFunc(s.groups[group], func(h Hook) bool { return h.Name == hook }) {
		return nil, nil, invalid("No Lifecycle Hook found with name: %s in group %s", hook, group)
	}
	if i, known := s.instances[id]; known && i.group == group {
		if a := i.active(hook); a != nil && (!v.Has("LifecycleActionToken") || v.Get("LifecycleActionToken") == a.Token) {
			return i, a, nil
		}
	}
	return nil, nil, invalid("No active Lifecycle Action found with instance ID %s", id)
}

func (s *Service) heartbeat(v url.Values) (any, *querytest.Failure) {
	i, a, problem := s.action(v)
	if problem != nil {
		return nil, problem
	}
	h, now := s.hook(i.group, a.Hook), time.Now()
	a.Heartbeats = append(a.Heartbeats, now)
	a.Until = now.Add(h.HeartbeatTimeout)
	if end := a.Began.Add(h.global()); end.Before(a.Until) {
		a.Until = end
	}
	return struct{}{}, nil
}

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
