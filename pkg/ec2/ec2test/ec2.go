// Package ec2test is an EC2 for tests: it describes instances and their status by one filter. Calls are recorded, and requests can be made to
// fail or be refused (pkg/internal/querytest).
package ec2test

import (
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nth-project/nth/pkg/internal/querytest"
)

// Instance is one instance.
type Instance struct {
	ID, State, Address, Reservation string
	Launched                        time.Time
	Tags                            map[string]string
}

// Service is EC2 in one region. The zero value knows no instances.
type Service struct {
	querytest.Front

	mu        sync.Mutex
	instances []Instance
	statuses  map[string]*status
	page      int
}

// Add adds instances, or replaces those of the same IDs.
func (s *Service) Add(instances ...Instance) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, i := range instances {
		s.instances = append(slices.DeleteFunc(s.instances, func(known Instance) bool { return known.ID == i.ID }), i)
	}
}

// Enter changes the state of an instance. One that begins to run is launched now.
func (s *Service) Enter(id, state string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.instances {
		if s.instances[i].ID == id {
			s.instances[i].State = state
			if state == "running" {
				s.instances[i].Launched = time.Now()
			}
		}
	}
}

// Page limits the number of instances in an answer.
func (s *Service) Page(instances int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.page = instances
}

// Asked returns the filter values of all requests for instances that were neither refused nor dry runs.
func (s *Service) Asked() (asked [][]string) {
	for _, c := range s.Calls("DescribeInstances") {
		if c.Status == http.StatusOK {
			_, values := filter(c.Values)
			asked = append(asked, values)
		}
	}
	return asked
}

// filter returns the filter of a request and its values.
func filter(form url.Values) (by string, values []string) {
	for i := 1; form.Has("Filter.1.Value." + strconv.Itoa(i)); i++ {
		values = append(values, form.Get("Filter.1.Value."+strconv.Itoa(i)))
	}
	return form.Get("Filter.1.Name"), values
}

// ServeHTTP answers a request.
func (s *Service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.Serve(w, r, querytest.EC2, s.perform)
}

func (s *Service) perform(action string, form url.Values) (any, *querytest.Failure) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case form.Get("DryRun") == "true":
		return nil, &querytest.Failure{Status: http.StatusPreconditionFailed, Code: "DryRunOperation"}
	case action == "DescribeInstances":
		return s.describe(form), nil
	case action == "DescribeInstanceStatus":
		return s.describeStatus(form), nil
	}
	return nil, nil
}

// page returns the part of a list that a request asks for, and the token of the next one.
func page[T any](s *Service, all []T, form url.Values) (some []T, next string) {
	from, _ := strconv.Atoi(form.Get("NextToken")) // none for the first page
	to := len(all)
	if s.page > 0 && from+s.page < to {
		to = from + s.page
		next = strconv.Itoa(to)
	}
	return all[from:to], next
}

// filtered is the value that a filter compares.
func (i Instance) filtered(by string) string {
	if key, tagged := strings.CutPrefix(by, "tag:"); tagged {
		return i.Tags[key]
	}
	switch by {
	case "capacity-reservation-id":
		return i.Reservation
	case "private-ip-address":
		return i.Address
	}
	return i.ID
}

func (s *Service) describe(form url.Values) any {
	type tag struct {
		Key   string `xml:"key"`
		Value string `xml:"value"`
	}
	type item struct {
		ID       string `xml:"instanceId"`
		State    string `xml:"instanceState>name"`
		Address  string `xml:"privateIpAddress,omitempty"`
		Launched string `xml:"launchTime,omitempty"`
		Tags     []tag  `xml:"tagSet>item"`
	}
	by, values := filter(form)
	var all []item
	for _, i := range s.instances {
		if by != "" && !slices.Contains(values, i.filtered(by)) {
			continue
		}
		one := item{ID: i.ID, State: i.State, Address: i.Address, Launched: inEC2(i.Launched)}
		for key, value := range i.Tags {
			one.Tags = append(one.Tags, tag{key, value})
		}
		all = append(all, one)
	}
	var found struct {
		Instances []item `xml:"reservationSet>item>instancesSet>item"`
		NextToken string `xml:"nextToken,omitempty"`
	}
	found.Instances, found.NextToken = page(s, all, form)
	return found
}

// Planned is an event that is scheduled for an instance. Zero times are left out.
type Planned struct {
	ID, Code, Description string
	NotBefore, NotAfter   time.Time
}

type status struct {
	planned          []Planned
	instance, system time.Time // since when the check fails; zero if it passes
}

// statusOf returns the status of an instance, which the caller may change. s.mu is held.
func (s *Service) statusOf(id string) *status {
	if s.statuses == nil {
		s.statuses = map[string]*status{}
	}
	if s.statuses[id] == nil {
		s.statuses[id] = &status{}
	}
	return s.statuses[id]
}

// Schedule sets the events of an instance, past ones included.
func (s *Service) Schedule(id string, planned ...Planned) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.statusOf(id).planned = planned
}

// Impair makes the status checks of an instance, and of its system, fail since these times; with zero they pass.
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

type check struct {
	Status string `xml:"status"`
	Since  string `xml:"details>item>impairedSince,omitempty"`
}

type statusItem struct {
	ID       string        `xml:"instanceId"`
	Planned  []plannedItem `xml:"eventsSet>item"`
	System   check         `xml:"systemStatus"`
	Instance check         `xml:"instanceStatus"`
}

// inEC2 formats a time as EC2 does.
func inEC2(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02T15:04:05.000Z")
}

func checkOf(since time.Time) check {
	if since.IsZero() {
		return check{"ok", ""}
	}
	return check{"impaired", inEC2(since)}
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
	return false
}

// describeStatus describes instances by a filter. As in EC2, without IncludeAllInstances only those that run are described. s.mu is held.
func (s *Service) describeStatus(form url.Values) any {
	by, values := filter(form)
	var all []statusItem
	for _, i := range s.instances {
		is := s.statusOf(i.ID)
		one := statusItem{ID: i.ID, System: checkOf(is.system), Instance: checkOf(is.instance)}
		for _, p := range is.planned {
			one.Planned = append(one.Planned, plannedItem{p.ID, p.Code, p.Description, inEC2(p.NotBefore), inEC2(p.NotAfter)})
		}
		if one.has(by, values) && (i.State == "running" || form.Get("IncludeAllInstances") == "true") {
			all = append(all, one)
		}
	}
	var found struct {
		Statuses  []statusItem `xml:"instanceStatusSet>item"`
		NextToken string       `xml:"nextToken,omitempty"`
	}
	found.Statuses, found.NextToken = page(s, all, form)
	return found
}
