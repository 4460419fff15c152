// Package querytest is what the stand-ins for services of AWS have in common: calls are recorded, and requests can be made to fail or be
// refused.
//
//	type Service struct {
//		querytest.Front // calls, faults, refusals
//		...
//	}
//
//	func (s *Service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
//		s.Serve(w, r, querytest.Query, s.perform) // perform does what the service itself does
//	}
//
// Everything is safe for concurrent use, and works on the clock of testing/synctest.
package querytest

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"encoding/xml"
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
	// Status and Code are what is answered; 0 hangs until the client gives up.
	Status int
	Code   string
	// After has the request take effect before it is answered so, as when an answer gets lost.
	After bool
}

// Throttled is the answer to too many requests for an action.
func Throttled(action string, times int) Fault {
	return Fault{Action: action, Times: times, Status: http.StatusBadRequest, Code: "Throttling"}
}

// Failure is an answer that says what is wrong.
type Failure struct {
	Status        int
	Code, Message string
}

// Invalid is the answer to a request with a mistake.
func Invalid(code, format string, args ...any) *Failure {
	return &Failure{http.StatusBadRequest, code, fmt.Sprintf(format, args...)}
}

// Protocol is how a service speaks.
type Protocol int

// The protocols.
const (
	// Query is AWS's query protocol: a request is a form, an answer is XML. EC2 is EC2's dialect of it.
	Query Protocol = iota
	EC2
	// JSON is the protocol of SQS. The header X-Amz-Target names the action.
	JSON
)

// refused is the code of a refusal by IAM.
func (p Protocol) refused() string {
	return map[Protocol]string{Query: "AccessDenied", EC2: "UnauthorizedOperation", JSON: "AccessDeniedException"}[p]
}

// encode returns the body of an answer.
func (p Protocol) encode(action string, result any, problem *Failure) ([]byte, error) {
	switch {
	case p == JSON && problem != nil:
		return json.Marshal(map[string]string{"__type": "com.amazonaws.sqs#" + problem.Code, "message": problem.Message})
	case p == JSON:
		return json.Marshal(result)
	case problem != nil:
		var text strings.Builder
		_ = xml.EscapeText(&text, []byte(problem.Message)) // a Builder takes everything
		form := "<ErrorResponse><Error><Code>%s</Code><Message>%s</Message></Error></ErrorResponse>"
		if p == EC2 {
			form = "<Response><Errors><Error><Code>%s</Code><Message>%s</Message></Error></Errors></Response>"
		}
		return fmt.Appendf(nil, form, problem.Code, &text), nil
	}
	var body bytes.Buffer
	outer, inner := action+"Response", action+"Result"
	if p == EC2 {
		inner = outer
	}
	err := xml.NewEncoder(&body).EncodeElement(result, xml.StartElement{Name: xml.Name{Local: inner}})
	if p == EC2 {
		return body.Bytes(), err
	}
	return fmt.Appendf(nil, "<%[1]s>%[2]s</%[1]s>", outer, &body), err
}

// Front is what requests meet before the service itself. The zero value keeps calls, and lets all pass.
type Front struct {
	mu      sync.Mutex
	calls   []Call
	changed chan struct{} // closed with the next call; nil while nobody waits
	faults  []Fault
	denied  []string // actions, or "action value"; "" is all
}

// Serve answers a request. perform does what is asked for; its result is nil, without a problem, if the service has no such action.
func (f *Front) Serve(w http.ResponseWriter, r *http.Request, p Protocol, perform func(action string, v url.Values) (any, *Failure)) {
	_ = r.ParseForm() // What is no form names no action.
	_, target, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
	call := Call{Action: cmp.Or(r.PostForm.Get("Action"), target), At: time.Now(), Values: r.PostForm}
	defer func() { f.keep(call) }()
	fault, broken := f.fault(call)
	var result any
	var problem *Failure
	switch {
	case f.denies(call):
		problem = &Failure{http.StatusForbidden, p.refused(), "no identity-based policy allows the action"}
	case !broken || fault.After:
		if result, problem = perform(call.Action, r.PostForm); result == nil && problem == nil {
			problem = Invalid("InvalidAction", "there is no action %s", call.Action)
		}
	}
	if broken && fault.Status == 0 {
		<-r.Context().Done()
		return
	}
	if broken {
		problem = &Failure{fault.Status, fault.Code, "it is a fault"}
	}
	call.Status = http.StatusOK
	if problem != nil {
		call.Status, call.Code = problem.Status, problem.Code
	}
	body, err := p.encode(call.Action, result, problem)
	if err != nil {
		panic(fmt.Sprintf("encoding an answer: %v", err)) // a mistake in the stand-in
	}
	w.WriteHeader(call.Status)
	_, _ = w.Write(body) // a client that has left needs no answer
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
	if len(actions) == 0 {
		actions = []string{""}
	}
	f.denied = append(f.denied, actions...)
}

// Allow ends all refusals.
func (f *Front) Allow() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.denied = nil
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
	return slices.ContainsFunc(f.denied, func(denied string) bool {
		action, value, narrow := strings.Cut(denied, " ")
		return action == "" || action == c.Action && (!narrow || c.has(value))
	})
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
