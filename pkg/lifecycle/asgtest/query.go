package asgtest

import (
	"encoding/xml"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

const (
	namespace = "http://autoscaling.amazonaws.com/doc/2011-01-01/"
	version   = "2011-01-01"
	requestID = "7c6e177f-f082-11e1-ac58-3714bEXAMPLE"
)

// failure is an answer that says what is wrong.
type failure struct {
	status        int
	code, message string
}

func invalid(format string, args ...any) *failure {
	return &failure{http.StatusBadRequest, "ValidationError", fmt.Sprintf(format, args...)}
}

// ServeHTTP answers a request of the query protocol.
func (s *Service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := r.ParseForm(); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	call := Call{Action: r.PostForm.Get("Action"), At: time.Now(), Values: r.PostForm}
	defer func() { s.keep(call) }()
	result, problem := s.admit(r, &call)
	fault, broken := s.fault(call.Action)
	late := broken && fault.Status == http.StatusOK
	if problem == nil && (!broken || fault.After || late) {
		result, problem = s.perform(call.Action, r.PostForm)
	}
	if broken {
		if !sleep(r, fault) {
			return
		}
		if !late {
			problem = &failure{fault.Status, fault.Code, "it is a fault"}
		}
	}
	call.Status = http.StatusOK
	if problem != nil {
		call.Status, call.Code = problem.status, problem.code
	}
	answer(w, call.Action, result, problem)
}

// sleep plays the time that a fault takes. It returns false if there is no answer.
func sleep(r *http.Request, f Fault) bool {
	if f.Status == 0 {
		<-r.Context().Done()
		return false
	}
	time.Sleep(f.Delay)
	return true
}

// admit checks what comes before the action itself.
func (s *Service) admit(r *http.Request, call *Call) (any, *failure) {
	credential, problem := checkSignature(r, time.Now())
	call.Credential = credential
	if problem != nil {
		return nil, problem
	}
	if got := call.Values.Get("Version"); got != version {
		return nil, &failure{http.StatusBadRequest, "NoSuchVersion", "the version is " + got}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.denied[call.Action] {
		return nil, &failure{http.StatusForbidden, "AccessDenied", fmt.Sprintf("User: arn:aws:sts::123456789012:assumed-role/nodes/i-0123 is not "+
			"authorized to perform: autoscaling:%s because no identity-based policy allows the autoscaling:%s action", call.Action, call.Action)}
	}
	return nil, nil
}

// perform does what is asked for.
func (s *Service) perform(action string, v url.Values) (any, *failure) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire()
	switch action {
	case "DescribeAutoScalingInstances":
		return s.describeInstances(members(v, "InstanceIds"))
	case "DescribeLifecycleHooks":
		return s.describeHooks(v.Get("AutoScalingGroupName"), members(v, "LifecycleHookNames"))
	case "DescribeAutoScalingGroups":
		return s.describeGroups(members(v, "AutoScalingGroupNames"))
	case "RecordLifecycleActionHeartbeat":
		return s.heartbeat(v)
	case "CompleteLifecycleAction":
		return s.complete(v)
	}
	return nil, &failure{http.StatusBadRequest, "InvalidAction", "there is no action " + action}
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

func (s *Service) describeInstances(ids []string) (any, *failure) {
	var found struct {
		Members []instanceXML `xml:"AutoScalingInstances>member"`
	}
	for _, id := range ids {
		i, known := s.instances[id]
		if !known {
			continue
		}
		state := i.state
		if i.shown != "" {
			state = i.shown
		}
		found.Members = append(found.Members, instanceXML{id, i.group, "eu-central-1a", state, "HEALTHY", false})
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

func (s *Service) describeHooks(group string, names []string) (any, *failure) {
	hooks, known := s.groups[group]
	if !known {
		return nil, invalid("AutoScalingGroup name not found - AutoScalingGroup %s not found", group)
	}
	var found struct {
		Members []hookXML `xml:"LifecycleHooks>member"`
	}
	for _, h := range hooks {
		if len(names) == 0 || slices.Contains(names, h.Name) {
			found.Members = append(found.Members, hookXML{
				h.Name, group, h.Transition, int(h.HeartbeatTimeout.Seconds()), int(h.global().Seconds()), h.DefaultResult, h.NotificationTarget,
			})
		}
	}
	return found, nil
}

type groupXML struct {
	AutoScalingGroupName    string
	InstanceLifecyclePolicy *policyXML
}

type policyXML struct {
	TerminateHookAbandon string `xml:"RetentionTriggers>TerminateHookAbandon"`
}

func (s *Service) describeGroups(names []string) (any, *failure) {
	var found struct {
		Members []groupXML `xml:"AutoScalingGroups>member"`
	}
	for _, name := range names {
		if _, known := s.groups[name]; !known {
			continue
		}
		g := groupXML{AutoScalingGroupName: name}
		if retain, set := s.retaining[name]; set {
			g.InstanceLifecyclePolicy = &policyXML{map[bool]string{true: "retain", false: "terminate"}[retain]}
		}
		found.Members = append(found.Members, g)
	}
	return found, nil
}

// action finds the lifecycle action that a request is about.
func (s *Service) action(v url.Values) (*instance, *Action, *failure) {
	group, hook, id := v.Get("AutoScalingGroupName"), v.Get("LifecycleHookName"), v.Get("InstanceId")
	if !slices.ContainsFunc(s.groups[group], func(h Hook) bool { return h.Name == hook }) {
		return nil, nil, invalid("No Lifecycle Hook found with name: %s in group %s", hook, group)
	}
	if i, known := s.instances[id]; known && i.group == group {
		if a := i.active(hook); a != nil {
			return i, a, nil
		}
	}
	return nil, nil, invalid("No active Lifecycle Action found with instance ID %s", id)
}

func (s *Service) heartbeat(v url.Values) (any, *failure) {
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

func (s *Service) complete(v url.Values) (any, *failure) {
	result := v.Get("LifecycleActionResult")
	if result != "CONTINUE" && result != "ABANDON" {
		return nil, invalid("LifecycleActionResult must be CONTINUE or ABANDON, not %q", result)
	}
	i, a, problem := s.action(v)
	if problem != nil {
		return nil, problem
	}
	i.end(a, result, time.Now())
	i.proceed(s.retaining[i.group])
	return struct{}{}, nil
}

// answer writes the result or the failure as the query protocol has it.
func answer(w http.ResponseWriter, action string, result any, problem *failure) {
	w.Header().Set("Content-Type", "text/xml")
	w.Header().Set("X-Amzn-Requestid", requestID)
	if problem != nil {
		w.WriteHeader(problem.status)
		_, _ = fmt.Fprintf(w, `<ErrorResponse xmlns=%q><Error><Type>%s</Type><Code>%s</Code><Message>%s</Message></Error><RequestId>%s</RequestId></ErrorResponse>`,
			namespace, whose(problem.status), problem.code, escape(problem.message), requestID)
		return
	}
	var body strings.Builder
	if err := xml.NewEncoder(&body).EncodeElement(result, xml.StartElement{Name: xml.Name{Local: action + "Result"}}); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	_, _ = fmt.Fprintf(w, `<%[1]sResponse xmlns=%[2]q>%[3]s<ResponseMetadata><RequestId>%[4]s</RequestId></ResponseMetadata></%[1]sResponse>`,
		action, namespace, body.String(), requestID)
}

func whose(status int) string {
	if status < http.StatusInternalServerError {
		return "Sender"
	}
	return "Receiver"
}

func escape(text string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(text)) // a Builder takes everything
	return b.String()
}
