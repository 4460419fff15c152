// Package querytest is what the stand-ins for services of AWS have in common: calls are recorded, and requests can be made to fail or be
// refused. Most services speak the query protocol: a request is a form that is signed, an answer is XML.
//
//	type Service struct {
//		querytest.Front // calls, faults, refusals
//		...
//	}
//
//	func (s *Service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
//		querytest.Serve(w, r, &s.Front, querytest.Behind{...}) // what the service itself does
//	}
//
// Everything is safe for concurrent use, and works on the clock of testing/synctest.
package querytest

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"
)

// Call is one request and what it was answered.
type Call struct {
	// Action is what was asked for, such as "CompleteLifecycleAction".
	Action string
	At     time.Time
	Values url.Values
	// Status is the HTTP status of the answer, 0 if there was none, and Code the error's; empty if there was none.
	Status int
	Code   string
	// Credential is the access key that signed the request, where the service looks at it.
	Credential string
}

// String is a call in one line: "DescribeTargetHealth TargetGroupArn=arn:...: Throttling".
func (c Call) String() string {
	var about []string
	for name, values := range c.Values {
		if name != "Action" && name != "Version" {
			about = append(about, " "+name+"="+strings.Join(values, ","))
		}
	}
	slices.Sort(about)
	text := c.Action + strings.Join(about, "")
	if c.Code != "" {
		text += ": " + c.Code
	}
	return text
}

// has reports whether a request has a value.
func (c Call) has(value string) bool {
	for _, values := range c.Values {
		if slices.Contains(values, value) {
			return true
		}
	}
	return false
}

// Fault is how requests are broken.
type Fault struct {
	// Action is what must be asked for, and About a value that must be in the request, such as an ARN; empty is anything.
	Action, About string
	// Times is how many requests are broken; 0 is all until Lift.
	Times int
	// Status and Code are what is answered; 0 hangs until the client gives up, and with 200 the answer is only late.
	Status int
	Code   string
	// After has the request take effect before it is answered so, as when an answer gets lost.
	After bool
	// Delay is how long the answer takes.
	Delay time.Duration
}

// Front is what requests meet before the service itself. The zero value keeps calls, and lets all pass.
type Front struct {
	mu      sync.Mutex
	calls   []Call
	changed chan struct{} // closed with the next call; nil while nobody waits
	faults  []Fault
	denied  map[string]bool // actions, or "action value"; "" is all
}

// Fail breaks requests from now on. Of several faults that meet a request, the one set first breaks it.
func (f *Front) Fail(fault Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.faults = append(f.faults, fault)
}

// Lift ends all faults.
func (f *Front) Lift() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.faults = nil
}

// Deny refuses actions to everybody, as IAM does without a policy; without any, all. One that is followed by a space and a value, such
// as an ARN, is refused where that is asked about.
func (f *Front) Deny(actions ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.denied == nil {
		f.denied = map[string]bool{}
	}
	if len(actions) == 0 {
		actions = []string{""}
	}
	for _, a := range actions {
		f.denied[a] = true
	}
}

// Allow allows actions that were denied; without any, all.
func (f *Front) Allow(actions ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, a := range actions {
		delete(f.denied, a)
	}
	if len(actions) == 0 {
		clear(f.denied)
	}
}

// Calls returns all calls so far for an action; with "" those of all.
func (f *Front) Calls(action string) []Call {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(f.calls), func(c Call) bool { return action != "" && c.Action != action })
}

// Await waits until a condition of the service holds that only calls can bring about, or until ctx ends.
func (f *Front) Await(ctx context.Context, what string, holds func() bool) error {
	for {
		f.mu.Lock()
		if f.changed == nil {
			f.changed = make(chan struct{})
		}
		changed := f.changed
		f.mu.Unlock()
		if holds() {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w; the calls were %v", what, ctx.Err(), f.Calls(""))
		}
	}
}

// keep keeps a call, and wakes those who wait for one.
func (f *Front) keep(c Call) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, c)
	if f.changed != nil {
		close(f.changed)
		f.changed = nil
	}
}

// denies reports whether a call is refused.
func (f *Front) denies(c Call) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for action := range f.denied {
		name, value, narrow := strings.Cut(action, " ")
		if name == "" || name == c.Action && (!narrow || c.has(value)) {
			return true
		}
	}
	return false
}

// fault returns the fault that a call meets.
func (f *Front) fault(c Call) (Fault, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for n, fault := range f.faults {
		if fault.Action != "" && fault.Action != c.Action || fault.About != "" && !c.has(fault.About) {
			continue
		}
		if fault.Times == 1 {
			f.faults = append(f.faults[:n:n], f.faults[n+1:]...)
		} else if fault.Times > 1 {
			f.faults[n].Times--
		}
		return fault, true
	}
	return Fault{}, false
}

// Server is a stand-in on a port of its own.
type Server struct {
	// URL is "http://127.0.0.1:PORT".
	URL string

	http *httptest.Server
}

// Listen gives a stand-in a free port of 127.0.0.1.
func Listen(service http.Handler) *Server {
	server := httptest.NewServer(service)
	return &Server{URL: server.URL, http: server}
}

// Close ends the service: connections are cut, requests that hang as well.
func (s *Server) Close() {
	s.http.CloseClientConnections()
	s.http.Close()
}
