package elbtest

import (
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	"github.com/nth-project/nth/pkg/internal/querytest"
)

var protocol = querytest.Protocol{
	Service: "elasticloadbalancing", Version: "2015-12-01", Namespace: "http://elasticloadbalancing.amazonaws.com/doc/2015-12-01/",
}

// ServeHTTP answers a request of the query protocol.
func (s *Service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	querytest.Serve(w, r, &s.Front, querytest.Behind{Admit: protocol.Admit, Refusal: protocol.Refusal, Perform: s.perform, Answer: protocol.Answer})
}

// perform does what is asked for.
func (s *Service) perform(action string, v url.Values) (any, *querytest.Failure) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if action == "DescribeTargetGroups" {
		return s.describeGroups(v.Get("Marker")), nil
	}
	e, found := s.groups[v.Get("TargetGroupArn")]
	if !found {
		return nil, &querytest.Failure{Status: http.StatusBadRequest, Code: "TargetGroupNotFound", Message: "One or more target groups not found"}
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
	return nil, querytest.Unknown(action)
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
