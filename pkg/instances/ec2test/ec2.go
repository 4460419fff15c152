// Package ec2test is an EC2 for tests: it describes instances, by the one filter or the IDs that it is asked with, and capacity
// reservations, in EC2's query protocol, and can be throttled.
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
	mu        sync.Mutex
	instances []Instance
	reserved  []Reservation
	asked     [][]string
	calls     map[string]int
	refuse    int
	denied    []string // the actions; "" is all
	page      int
}

// Reserve adds a capacity reservation, or replaces the one of that ID.
func (s *Service) Reserve(r Reservation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reserved = append(slices.DeleteFunc(s.reserved, func(known Reservation) bool { return known.ID == r.ID }), r)
}

// Calls is how often an action was asked for.
func (s *Service) Calls(action string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[action]
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
func (s *Service) Throttle(requests int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuse = requests
}

// Deny refuses requests for these actions from now on, as EC2 does to whoever has no policy for them; without any, all.
func (s *Service) Deny(actions ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.denied = actions; len(actions) == 0 {
		s.denied = []string{""}
	}
}

// Allow ends that.
func (s *Service) Allow() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.denied = nil
}

// Page makes an answer hold so many instances at most.
func (s *Service) Page(instances int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.page = instances
}

// Asked are the values of the filters of all requests so far.
func (s *Service) Asked() [][]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.asked)
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

// ServeHTTP answers a request.
func (s *Service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := r.ParseForm()
	action := r.PostForm.Get("Action")
	known := action == "DescribeInstances" || action == "DescribeCapacityReservations"
	if err != nil || !known || !strings.HasPrefix(r.Header.Get("Authorization"), "AWS4-HMAC-SHA256 ") {
		refuse(w, http.StatusBadRequest, "InvalidAction")
		return
	}
	if s.calls == nil {
		s.calls = map[string]int{}
	}
	s.calls[action]++
	switch {
	case slices.Contains(s.denied, "") || slices.Contains(s.denied, action):
		refuse(w, http.StatusForbidden, "UnauthorizedOperation")
		return
	case r.PostForm.Get("DryRun") == "true":
		refuse(w, http.StatusPreconditionFailed, "DryRunOperation")
		return
	}
	by, values := r.PostForm.Get("Filter.1.Name"), listed(r.PostForm, "Filter.1.Value")
	if by == "" {
		by, values = "instance-id", listed(r.PostForm, "InstanceId")
	}
	if action == "DescribeInstances" {
		s.asked = append(s.asked, values)
	}
	if s.refuse > 0 {
		s.refuse--
		refuse(w, http.StatusServiceUnavailable, "RequestLimitExceeded")
		return
	}
	if action == "DescribeInstances" {
		s.describe(w, by, values, r.PostForm.Get("NextToken"))
		return
	}
	s.describeReservations(w, listed(r.PostForm, "CapacityReservationId"))
}

func (s *Service) describeReservations(w http.ResponseWriter, ids []string) {
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
		refuse(w, http.StatusBadRequest, "InvalidCapacityReservationId.NotFound")
		return
	}
	send(w, found)
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

func (s *Service) describe(w http.ResponseWriter, filter string, values []string, token string) {
	from, _ := strconv.Atoi(token) // No token is the first page.
	var found answer
	met := 0
	for _, i := range s.instances {
		if !slices.Contains(values, i.filtered(filter)) {
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
	send(w, found)
}

func send(w http.ResponseWriter, found any) {
	text, err := xml.Marshal(found)
	if err != nil {
		panic(fmt.Sprintf("encoding an answer: %v", err)) // a mistake in this package
	}
	_, _ = w.Write(text) // a client that has left needs no answer
}

func refuse(w http.ResponseWriter, status int, code string) {
	w.WriteHeader(status)
	fmt.Fprintf(w, "<Response><Errors><Error><Code>%s</Code><Message>no</Message></Error></Errors><RequestID>1</RequestID></Response>", code)
}
