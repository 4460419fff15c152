package ec2test

import (
	"encoding/xml"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/nth-project/nth/pkg/internal/querytest"
)

// Planned is an event that is scheduled for an instance. Zero times are left out.
type Planned struct {
	ID, Code, Description string
	NotBefore, NotAfter   time.Time
}

// status is how an instance stands beside its state.
type status struct {
	planned          []Planned
	instance, system time.Time // since when the check fails; zero if it passes
}

// statusOf returns the status of an instance, to change it. s.mu is held.
func (s *Service) statusOf(id string) *status {
	if s.statuses == nil {
		s.statuses = map[string]*status{}
	}
	if s.statuses[id] == nil {
		s.statuses[id] = &status{}
	}
	return s.statuses[id]
}

// Schedule makes these the events of an instance, those included that are over.
func (s *Service) Schedule(id string, planned ...Planned) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.statusOf(id).planned = planned
}

// Impair makes the status checks of an instance, and of the system below it, fail since those times; with zero they pass.
func (s *Service) Impair(id string, instance, system time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	is := s.statusOf(id)
	is.instance, is.system = instance, system
}

type plannedItem struct {
	ID          string `xml:"instanceEventId"`
	Code        string `xml:"code"`
	Description string `xml:"description"`
	NotBefore   string `xml:"notBefore,omitempty"`
	NotAfter    string `xml:"notAfter,omitempty"`
}

type detail struct {
	Name   string `xml:"name"`
	Status string `xml:"status"`
	Since  string `xml:"impairedSince,omitempty"`
}

type check struct {
	Status  string   `xml:"status"`
	Details []detail `xml:"details>item"`
}

type statusItem struct {
	ID       string        `xml:"instanceId"`
	State    string        `xml:"instanceState>name"`
	Planned  []plannedItem `xml:"eventsSet>item"`
	System   check         `xml:"systemStatus"`
	Instance check         `xml:"instanceStatus"`
}

type statuses struct {
	XMLName   xml.Name     `xml:"DescribeInstanceStatusResponse"`
	All       []statusItem `xml:"instanceStatusSet>item"`
	NextToken string       `xml:"nextToken,omitempty"`
}

// inEC2 is how EC2 writes a time.
func inEC2(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02T15:04:05.000Z")
}

func checkOf(since time.Time) check {
	if since.IsZero() {
		return check{"ok", []detail{{"reachability", "passed", ""}}}
	}
	return check{"impaired", []detail{{"reachability", "failed", inEC2(since)}}}
}

func (i statusItem) has(by string, values []string) bool {
	switch by {
	case "event.code":
		return slices.ContainsFunc(i.Planned, func(p plannedItem) bool { return slices.Contains(values, p.Code) })
	case "instance-status.status":
		return slices.Contains(values, i.Instance.Status)
	case "system-status.status":
		return slices.Contains(values, i.System.Status)
	}
	return slices.Contains(values, i.ID)
}

// describeStatus describes the status of instances that are named, or that a filter lets through. As in EC2, up to 100 may be named,
// one that is not known makes a request fail, and only those that run are described unless all are asked for. s.mu is held.
func (s *Service) describeStatus(form url.Values) (any, *querytest.Failure) {
	invalid := func(code string) (any, *querytest.Failure) {
		return nil, &querytest.Failure{Status: http.StatusBadRequest, Code: code}
	}
	by, values := filter(form)
	if named := listed(form, "InstanceId"); len(named) > 0 {
		if form.Has("MaxResults") {
			return invalid("InvalidParameterCombination")
		}
		if len(named) > 100 {
			return invalid("InvalidParameterValue")
		}
		for _, id := range named {
			if !slices.ContainsFunc(s.instances, func(i Instance) bool { return i.ID == id }) {
				return invalid("InvalidInstanceID.NotFound")
			}
		}
	}
	from, _ := strconv.Atoi(form.Get("NextToken")) // No token is the first page.
	var found statuses
	met := 0
	for _, i := range s.instances {
		is := s.statusOf(i.ID)
		one := statusItem{ID: i.ID, State: i.State, System: checkOf(is.system), Instance: checkOf(is.instance)}
		for _, p := range is.planned {
			one.Planned = append(one.Planned, plannedItem{p.ID, p.Code, p.Description, inEC2(p.NotBefore), inEC2(p.NotAfter)})
		}
		if !one.has(by, values) || i.State != "running" && form.Get("IncludeAllInstances") != "true" {
			continue
		}
		if met++; met <= from {
			continue
		}
		if s.page > 0 && len(found.All) == s.page {
			found.NextToken = strconv.Itoa(from + s.page)
			break
		}
		found.All = append(found.All, one)
	}
	return found, nil
}
