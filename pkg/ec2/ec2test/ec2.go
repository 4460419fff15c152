// Package ec2test simulates EC2 for tests: it describes instances and their status, by one filter, and reboots, stops, starts and terminates one.
// pkg/internal/querytest records calls, and makes requests fail or be refused.
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
	Lifecycle, RootDevice           string // "spot", "instance-store"; "" is on-demand, and EBS
	Launched                        time.Time
	Tags                            map[string]string
}

// Service is EC2 in one region. The zero value knows no instances.
type Service struct {
	querytest.Front

	mu        sync.Mutex
	instances []Instance
	statuses  map[string]*status // by the instance's ID
	page      int                // the most instances in an answer; 0 is no limit
}

// Add adds instances. It replaces instances of the same IDs.
func (s *Service) Add(instances ...Instance) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, i := range instances {
		s.instances = append(slices.DeleteFunc(s.instances, func(known Instance) bool { return known.ID == i.ID }), i)
	}
}

// Enter changes the state of an instance. If the state is "running", the instance is launched now.
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

// filter returns the name and the values of a request's first filter; "" and none if the request has no filter.
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

// perform performs a request. Both results are nil if the service does not have the action.
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
	case states[action] != "":
		return s.change(action, form.Get("InstanceId.1")), nil
	}
	return nil, nil
}

// states has the state of an instance after an action.
var states = map[string]string{
	"RebootInstances": "running", "StopInstances": "stopped", "StartInstances": "running", "TerminateInstances": "terminated",
}

// change performs an action with an instance, at once. s.mu is held.
func (s *Service) change(action, id string) any {
	for i := range s.instances {
		if s.instances[i].ID == id {
			s.instances[i].State = states[action]
		}
	}
	return struct{}{}
}

// page returns the page of a list that a request asks for, and the token of the next page; "" after the last. s.mu is held.
func page[T any](s *Service, all []T, form url.Values) (some []T, next string) {
	from, _ := strconv.Atoi(form.Get("NextToken")) // A request for the first page has no token.
	to := len(all)
	if s.page > 0 && from+s.page < to {
		to = from + s.page
		next = strconv.Itoa(to)
	}
	return all[from:to], next
}

// filtered returns the value of the instance that a filter compares.
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

// describe describes the instances that a request's filter matches, or all without a filter. s.mu is held.
func (s *Service) describe(form url.Values) any {
	type tag struct {
		Key   string `xml:"key"`
		Value string `xml:"value"`
	}
	type item struct {
		ID       string `xml:"instanceId"`
		State    string `xml:"instanceState>name"`
		Life     string `xml:"instanceLifecycle,omitempty"`
		Root     string `xml:"rootDeviceType,omitempty"`
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
		one := item{ID: i.ID, State: i.State, Life: i.Lifecycle, Root: i.RootDevice, Address: i.Address, Launched: inEC2(i.Launched)}
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

// status is the status of an instance.
type status struct {
	planned          []Planned
	instance, system time.Time // since when the instance's and the system's check fail; zero if the check passes
}

// statusOf returns the status of an instance. The caller may change the status. s.mu is held.
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
	changed := s.statusOf(id)
	changed.instance, changed.system = instance, system
}

// plannedItem, check and statusItem are parts of an answer, as EC2 has them.
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

// inEC2 formats a time as EC2 does. The zero time is empty.
func inEC2(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02T15:04:05.000Z")
}

// checkOf describes a check that fails since a time; it passes if the time is zero.
func checkOf(since time.Time) check {
	if since.IsZero() {
		return check{"ok", ""}
	}
	return check{"impaired", inEC2(since)}
}

// has reports whether a filter matches the status.
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

// describeStatus describes the status of the instances that a request's filter matches. As in EC2, only instances that run are described, unless
// the request has IncludeAllInstances. s.mu is held.
func (s *Service) describeStatus(form url.Values) any {
	by, values := filter(form)
	var all []statusItem
	for _, i := range s.instances {
		current := s.statusOf(i.ID)
		one := statusItem{ID: i.ID, System: checkOf(current.system), Instance: checkOf(current.instance)}
		for _, p := range current.planned {
			one.Planned = append(one.Planned, plannedItem{p.ID, p.Code, p.Description, inEC2(p.NotBefore), inEC2(p.NotAfter)})
		}
		included := i.State == "running" || form.Get("IncludeAllInstances") == "true"
		if included && one.has(by, values) {
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
