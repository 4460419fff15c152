package elbtest

import (
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
	if action == "DescribeTargetHealth" {
		return e.describeHealth(), nil
	}
	return nil, querytest.Unknown(action)
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

func (e *entry) describeHealth() any {
	var found struct {
		Members []healthXML `xml:"TargetHealthDescriptions>member"`
	}
	for _, t := range e.targets {
		found.Members = append(found.Members, healthXML{strconv.Itoa(t.Port), t.State, reasons[t.State], t.Port, t.ID})
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
