// Package ec2test is an EC2 for tests: it describes instances, by the one filter or the IDs that it is asked with, their status, and
// capacity reservations, in EC2's query protocol. Calls are kept, and requests can be made to fail or refused (pkg/internal/querytest).
package ec2test

import (
	"cmp"
	"encoding/xml"
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

// Instance is one instance.
type Instance struct {
	ID, State, DNS, Reservation string
	Tags                        map[string]string
}

// Reservation is one capacity reservation.
type Reservation struct {
	// ID is its ID, and InstanceType what it is of.
	ID, InstanceType string
	// Block tells that it is a Capacity Block, and Interruptible that its owner may take it back.
	Block, Interruptible bool
	// State is how it stands; "" is "active".
	State string
	// End is its end; zero if it has none.
	End time.Time
}

// Service is EC2 in one region. The zero value knows no instances.
type Service struct {
	querytest.Front

	mu        sync.Mutex
	instances []Instance
	reserved  []Reservation
	statuses  map[string]*status
	page      int
}

// Reserve adds a capacity reservation, or replaces the one of that ID.
func (s *Service) Reserve(r Reservation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reserved = append(slices.DeleteFunc(s.reserved, func(known Reservation) bool { return known.ID == r.ID }), r)
}

// Add adds instances.
func (s *Service) Add(instances ...Instance) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.instances = append(s.instances, instances...)
}

// Enter lets an instance that is known enter another state.
func (s *Service) Enter(id, state string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.instances {
		if s.instances[i].ID == id {
			s.instances[i].State = state
		}
	}
}

// Throttle refuses the next requests.
func (s *Service) Throttle(requests int) { s.throttle("", requests) }

// ThrottleInstances refuses the next requests that ask for instances, and lets those for their status pass.
func (s *Service) ThrottleInstances(requests int) { s.throttle("DescribeInstances", requests) }

func (s *Service) throttle(action string, requests int) {
	s.Lift()
	if requests > 0 {
		s.Fail(querytest.Fault{Action: action, Times: requests, Status: http.StatusServiceUnavailable, Code: "RequestLimitExceeded"})
	}
}

// Page makes an answer hold so many instances at most.
func (s *Service) Page(instances int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.page = instances
}

// Asked are the values by which instances were asked for so far, by whoever may.
func (s *Service) Asked() [][]string {
	var asked [][]string
	for _, c := range s.Calls("DescribeInstances") {
		if c.Code != unauthorized && c.Code != dryRun {
			_, values := filter(c.Values)
			asked = append(asked, values)
		}
	}
	return asked
}

// filter is what instances are asked for by, and its values.
func filter(form url.Values) (by string, values []string) {
	if by = form.Get("Filter.1.Name"); by == "" {
		return "instance-id", listed(form, "InstanceId")
	}
	return by, listed(form, "Filter.1.Value")
}

type tag struct {
	Key   string `xml:"key"`
	Value string `xml:"value"`
}

type item struct {
	ID       string `xml:"instanceId"`
	State    string `xml:"instanceState>name"`
	DNS      string `xml:"privateDnsName"`
	Reserved string `xml:"capacityReservationId,omitempty"`
	Tags     []tag  `xml:"tagSet>item"`
}

type reservation struct {
	Instances []item `xml:"instancesSet>item"`
}

type answer struct {
	XMLName      xml.Name      `xml:"DescribeInstancesResponse"`
	Reservations []reservation `xml:"reservationSet>item"`
	NextToken    string        `xml:"nextToken,omitempty"`
}

type reserved struct {
	ID            string `xml:"capacityReservationId"`
	InstanceType  string `xml:"instanceType"`
	Type          string `xml:"reservationType"`
	State         string `xml:"state"`
	Interruptible bool   `xml:"interruptible"`
	EndType       string `xml:"endDateType"`
	End           string `xml:"endDate,omitempty"`
}

type reservations struct {
	XMLName xml.Name   `xml:"DescribeCapacityReservationsResponse"`
	All     []reserved `xml:"capacityReservationSet>item"`
}

// listed are the values of a list in a request.
func listed(form url.Values, name string) []string {
	var values []string
	for i := 1; form.Has(name + "." + strconv.Itoa(i)); i++ {
		values = append(values, form.Get(name+"."+strconv.Itoa(i)))
	}
	return values
}

// unauthorized is how EC2 refuses, and dryRun says that it would not.
const unauthorized, dryRun = "UnauthorizedOperation", "DryRunOperation"

// ServeHTTP answers a request.
func (s *Service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	querytest.Serve(w, r, &s.Front, querytest.Behind{Admit: admit, Refusal: refusal, Perform: s.perform, Answer: send})
}

func admit(r *http.Request, call *querytest.Call) *querytest.Failure {
	known := []string{"DescribeInstances", "DescribeInstanceStatus", "DescribeCapacityReservations"}
	if !slices.Contains(known, call.Action) || !strings.HasPrefix(r.Header.Get("Authorization"), "AWS4-HMAC-SHA256 ") {
		return querytest.Unknown(call.Action)
	}
	return nil
}

func refusal(string) *querytest.Failure {
	return &querytest.Failure{Status: http.StatusForbidden, Code: unauthorized}
}

// perform does what is asked for.
func (s *Service) perform(action string, form url.Values) (any, *querytest.Failure) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case form.Get("DryRun") == "true":
		return nil, &querytest.Failure{Status: http.StatusPreconditionFailed, Code: dryRun}
	case action == "DescribeInstances":
		by, values := filter(form)
		return s.describe(by, values, form.Get("NextToken")), nil
	case action == "DescribeInstanceStatus":
		return s.describeStatus(form)
	}
	return s.describeReservations(listed(form, "CapacityReservationId"))
}

func (s *Service) describeReservations(ids []string) (any, *querytest.Failure) {
	var found reservations
	for _, r := range s.reserved {
		if !slices.Contains(ids, r.ID) {
			continue
		}
		one := reserved{
			ID: r.ID, InstanceType: r.InstanceType, Type: "default", State: cmp.Or(r.State, "active"), Interruptible: r.Interruptible, EndType: "unlimited",
		}
		if r.Block {
			one.Type = "capacity-block"
		}
		if !r.End.IsZero() {
			one.EndType, one.End = "limited", r.End.UTC().Format("2006-01-02T15:04:05.000Z")
		}
		found.All = append(found.All, one)
	}
	if len(found.All) < len(ids) {
		return nil, &querytest.Failure{Status: http.StatusBadRequest, Code: "InvalidCapacityReservationId.NotFound"}
	}
	return found, nil
}

// filtered is what a filter looks at.
func (i Instance) filtered(by string) string {
	if key, tagged := strings.CutPrefix(by, "tag:"); tagged {
		return i.Tags[key]
	}
	if by == "capacity-reservation-id" {
		return i.Reservation
	}
	return i.ID
}

func (s *Service) describe(by string, values []string, token string) any {
	from, _ := strconv.Atoi(token) // No token is the first page.
	var found answer
	met := 0
	for _, i := range s.instances {
		if !slices.Contains(values, i.filtered(by)) {
			continue
		}
		if met++; met <= from {
			continue
		}
		if s.page > 0 && len(found.Reservations) == s.page {
			found.NextToken = strconv.Itoa(from + s.page)
			break
		}
		one := item{ID: i.ID, State: i.State, DNS: i.DNS, Reserved: i.Reservation}
		for key, value := range i.Tags {
			one.Tags = append(one.Tags, tag{key, value})
		}
		found.Reservations = append(found.Reservations, reservation{[]item{one}})
	}
	return found
}

// send writes an answer in EC2's form of the protocol.
func send(w http.ResponseWriter, _ string, found any, problem *querytest.Failure) {
	if problem != nil {
		w.WriteHeader(problem.Status)
		fmt.Fprintf(w, "<Response><Errors><Error><Code>%s</Code><Message>no</Message></Error></Errors><RequestID>1</RequestID></Response>", problem.Code)
		return
	}
	text, err := xml.Marshal(found)
	if err != nil {
		panic(fmt.Sprintf("encoding an answer: %v", err)) // a mistake in this package
	}
	_, _ = w.Write(text) // a client that has left needs no answer
}
