// Package ec2test is an EC2 for tests: it describes instances, by the one filter that it is asked with, in EC2's query
// protocol, and can be throttled.
package ec2test

import (
	"encoding/xml"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Instance is one instance.
type Instance struct {
	ID, State, DNS, Reservation string
	Tags                        map[string]string
}

// Service is EC2 in one region. The zero value knows no instances.
type Service struct {
	mu        sync.Mutex
	instances []Instance
	asked     [][]string
	refuse    int
	denied    bool
	page      int
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

// Deny refuses all requests from now on, as EC2 does to whoever has no policy for them.
func (s *Service) Deny() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.denied = true
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
	ID    string `xml:"instanceId"`
	State string `xml:"instanceState>name"`
	DNS   string `xml:"privateDnsName"`
	Tags  []tag  `xml:"tagSet>item"`
}

type reservation struct {
	Instances []item `xml:"instancesSet>item"`
}

type answer struct {
	XMLName      xml.Name      `xml:"DescribeInstancesResponse"`
	Reservations []reservation `xml:"reservationSet>item"`
	NextToken    string        `xml:"nextToken,omitempty"`
}

// ServeHTTP answers a request.
func (s *Service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := r.ParseForm(); err != nil || r.PostForm.Get("Action") != "DescribeInstances" ||
		!strings.HasPrefix(r.Header.Get("Authorization"), "AWS4-HMAC-SHA256 ") {
		refuse(w, http.StatusBadRequest, "InvalidAction")
		return
	}
	switch {
	case s.denied:
		refuse(w, http.StatusForbidden, "UnauthorizedOperation")
		return
	case r.PostForm.Get("DryRun") == "true":
		refuse(w, http.StatusPreconditionFailed, "DryRunOperation")
		return
	}
	var values []string
	for i := 1; r.PostForm.Has("Filter.1.Value." + strconv.Itoa(i)); i++ {
		values = append(values, r.PostForm.Get("Filter.1.Value."+strconv.Itoa(i)))
	}
	s.asked = append(s.asked, values)
	if s.refuse > 0 {
		s.refuse--
		refuse(w, http.StatusServiceUnavailable, "RequestLimitExceeded")
		return
	}
	s.describe(w, r.PostForm.Get("Filter.1.Name"), values, r.PostForm.Get("NextToken"))
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
		one := item{ID: i.ID, State: i.State, DNS: i.DNS}
		for key, value := range i.Tags {
			one.Tags = append(one.Tags, tag{key, value})
		}
		found.Reservations = append(found.Reservations, reservation{[]item{one}})
	}
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
