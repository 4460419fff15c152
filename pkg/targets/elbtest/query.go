package elbtest

import (
	"encoding/xml"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	namespace = "http://elasticloadbalancing.amazonaws.com/doc/2015-12-01/"
	version   = "2015-12-01"
	requestID = "7c6e177f-f082-11e1-ac58-3714bEXAMPLE"
)

// failure is an answer that says what is wrong.
type failure struct {
	status        int
	code, message string
}

func invalid(code, format string, args ...any) *failure {
	return &failure{http.StatusBadRequest, code, fmt.Sprintf(format, args...)}
}

// authorization is the header of a request to this service that is signed with version 4.
var authorization = regexp.MustCompile(`^AWS4-HMAC-SHA256 Credential=[A-Z0-9]{16,}/\d{8}/[a-z0-9-]+/elasticloadbalancing/aws4_request, ` +
	`SignedHeaders=[a-z0-9;-]*x-amz-security-token[a-z0-9;-]*, Signature=[0-9a-f]{64}$`)

// ServeHTTP answers a request of the query protocol.
func (s *Service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := r.ParseForm(); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	call := Call{Action: r.PostForm.Get("Action"), At: time.Now(), Values: r.PostForm}
	defer func() { s.keep(call) }()
	var result any
	fault, broken := s.fault(call.Action, call.Values)
	problem := s.admit(r, call)
	switch {
	case broken && fault.Status == 0:
		<-r.Context().Done()
		return
	case broken:
		problem = &failure{fault.Status, fault.Code, "it is a fault"}
	case problem == nil:
		result, problem = s.perform(call.Action, r.PostForm)
	}
	call.Status = http.StatusOK
	if problem != nil {
		call.Status, call.Code = problem.status, problem.code
	}
	answer(w, call.Action, result, problem)
}

// admit checks what comes before the action itself.
func (s *Service) admit(r *http.Request, call Call) *failure {
	if !authorization.MatchString(r.Header.Get("Authorization")) || r.Header.Get("X-Amz-Security-Token") == "" {
		return &failure{http.StatusForbidden, "IncompleteSignature", "the request has no well-formed signature of a role: " + r.Header.Get("Authorization")}
	}
	if got := call.Values.Get("Version"); got != version {
		return invalid("NoSuchVersion", "the version is %s", got)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.denied[call.Action] || s.denied[call.Action+" "+call.Values.Get("TargetGroupArn")] {
		return &failure{http.StatusForbidden, "AccessDenied", fmt.Sprintf("User: arn:aws:sts::123456789012:assumed-role/nodes/i-0123 is not "+
			"authorized to perform: elasticloadbalancing:%s because no identity-based policy allows the elasticloadbalancing:%s action",
			call.Action, call.Action)}
	}
	return nil
}

// perform does what is asked for.
func (s *Service) perform(action string, v url.Values) (any, *failure) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if action == "DescribeTargetGroups" {
		return s.describeGroups(v.Get("Marker")), nil
	}
	e, found := s.groups[v.Get("TargetGroupArn")]
	if !found {
		return nil, invalid("TargetGroupNotFound", "One or more target groups not found")
	}
	e.expire()
	switch action {
	case "DescribeTargetHealth":
		return e.describeHealth(asked(v)), nil
	case "RegisterTargets":
		for _, t := range asked(v) {
			e.register(t.ID, t.Port)
		}
		return struct{}{}, nil
	case "DeregisterTargets":
		for _, t := range asked(v) {
			e.deregister(t.ID, t.Port)
		}
		return struct{}{}, nil
	}
	return nil, invalid("InvalidAction", "there is no action %s", action)
}

// asked are the targets that a request names: Targets.member.1.Id, Targets.member.1.Port, ...
func asked(v url.Values) []Target {
	var all []Target
	for n := 1; v.Has(fmt.Sprintf("Targets.member.%d.Id", n)); n++ {
		port, _ := strconv.Atoi(v.Get(fmt.Sprintf("Targets.member.%d.Port", n))) // none is any
		all = append(all, Target{ID: v.Get(fmt.Sprintf("Targets.member.%d.Id", n)), Port: port})
	}
	return all
}

type healthXML struct {
	HealthCheckPort string
	State           string `xml:"TargetHealth>State"`
	Reason          string `xml:"TargetHealth>Reason,omitempty"`
	Port            int    `xml:"Target>Port"`
	ID              string `xml:"Target>Id"`
}

var reasons = map[string]string{
	"initial": "Elb.RegistrationInProgress", "unhealthy": "Target.FailedHealthChecks", "draining": "Target.DeregistrationInProgress",
	"unhealthy.draining": "Target.DeregistrationInProgress", "unused": "Target.NotInUse", "unavailable": "Target.HealthCheckDisabled",
}

// describeHealth tells of all targets, or of those that are asked for: of one that is not registered, that it is in no use.
func (e *entry) describeHealth(of []Target) any {
	var found struct {
		Members []healthXML `xml:"TargetHealthDescriptions>member"`
	}
	tell := func(t Target, reason string) {
		found.Members = append(found.Members, healthXML{strconv.Itoa(t.Port), t.State, reason, t.Port, t.ID})
	}
	for _, t := range e.targets {
		if of == nil {
			tell(*t, reasons[t.State])
		}
	}
	for _, want := range of {
		i := slices.IndexFunc(e.targets, func(t *Target) bool { return t.ID == want.ID && t.Port == want.Port })
		if i < 0 {
			want.State = "unused"
			tell(want, "Target.NotRegistered")
			continue
		}
		tell(*e.targets[i], reasons[e.targets[i].State])
	}
	return found
}

type groupXML struct {
	ARN  string `xml:"TargetGroupArn"`
	Name string `xml:"TargetGroupName"`
	Type string `xml:"TargetType"`
	VPC  string `xml:"VpcId"`
}

func (s *Service) describeGroups(marker string) any {
	var found struct {
		Members []groupXML `xml:"TargetGroups>member"`
		Next    string     `xml:"NextMarker,omitempty"`
	}
	arns := slices.Sorted(maps.Keys(s.groups))
	from, _ := strconv.Atoi(marker) // none is the first page
	for n := from; n < len(arns) && n < from+s.page; n++ {
		e := s.groups[arns[n]]
		found.Members = append(found.Members, groupXML{arns[n], e.name, e.Type, e.VPC})
	}
	if next := from + s.page; next < len(arns) {
		found.Next = strconv.Itoa(next)
	}
	return found
}

// answer writes the result or the failure as the query protocol has it.
func answer(w http.ResponseWriter, action string, result any, problem *failure) {
	w.Header().Set("Content-Type", "text/xml")
	w.Header().Set("X-Amzn-Requestid", requestID)
	var body strings.Builder
	if problem != nil {
		w.WriteHeader(problem.status)
		_ = xml.EscapeText(&body, []byte(problem.message)) // a Builder takes everything
		_, _ = fmt.Fprintf(w, `<ErrorResponse xmlns=%q><Error><Type>Sender</Type><Code>%s</Code><Message>%s</Message></Error><RequestId>%s</RequestId></ErrorResponse>`,
			namespace, problem.code, body.String(), requestID)
		return
	}
	if err := xml.NewEncoder(&body).EncodeElement(result, xml.StartElement{Name: xml.Name{Local: action + "Result"}}); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	whole := fmt.Sprintf(`<%[1]sResponse xmlns=%[2]q>%[3]s<ResponseMetadata><RequestId>%[4]s</RequestId></ResponseMetadata></%[1]sResponse>`,
		action, namespace, body.String(), requestID)
	w.Header().Set("Content-Length", strconv.Itoa(len(whole)))
	_, _ = w.Write([]byte(whole))
}
