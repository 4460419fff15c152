// Package sqstest is an SQS for tests: one standard queue, over real HTTP, in SQS's JSON protocol.
//
// It knows what a consumer asks: receive with long polling, delete and change visibility in batches, attributes. It
// keeps the rules that matter to one: a message that is not deleted is seen again when its visibility is over, the
// visibility of a message that others may see cannot be changed, a receipt handle is of no use once the message has been
// received again, and a request that asks for what SQS does not give gets nothing. Time is the test's own (the system's,
// or a bubble's).
package sqstest

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"time"
)

// Server is the stand-in.
type Server struct {
	http *httptest.Server

	mu       sync.Mutex
	messages []*message
	sent     int
	requests map[string]int
	faults   map[string]Fault
	dead     int // after how many receives a message goes to the dead-letter queue; 0 is never
	letters  []string
	changed  chan struct{}
	// attributes are what it says of the queue beside how many messages there are.
	attributes map[string]string
}

// message is one message in the queue.
type message struct {
	id, body, handle string
	sent             time.Time
	hidden           time.Time // until when nobody sees it
	receives         int
}

// Fault answers a request instead of the server. If it returns false, the server answers by itself.
type Fault func(w http.ResponseWriter, r *http.Request) bool

// New starts a server with an empty queue. Close ends it.
func New() *Server {
	s := &Server{
		requests: map[string]int{}, faults: map[string]Fault{}, changed: make(chan struct{}), attributes: maps.Clone(attributes),
	}
	s.http = httptest.NewServer(s)
	return s
}

// Close ends the server.
func (s *Server) Close() {
	s.http.CloseClientConnections()
	s.http.Close()
}

// Endpoint is where the server listens, and URL the queue's.
func (s *Server) Endpoint() string { return s.http.URL }

// URL is the queue's.
func (s *Server) URL() string { return s.http.URL + "/123456789012/interruptions" }

// Send puts messages into the queue and returns their IDs.
func (s *Server) Send(bodies ...string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var ids []string
	for _, body := range bodies {
		s.sent++
		m := &message{id: fmt.Sprintf("message-%d", s.sent), body: body, sent: time.Now()}
		s.messages = append(s.messages, m)
		ids = append(ids, m.id)
	}
	s.happened()
	return ids
}

// DeadAfter makes messages go to the dead-letter queue when they have been received so many times.
func (s *Server) DeadAfter(receives int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dead = receives
}

// DeadLetters are the bodies of the messages in the dead-letter queue.
func (s *Server) DeadLetters() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.letters)
}

// Visible and InFlight count the messages that wait, and those that somebody works on.
func (s *Server) Visible() int { visible, _ := s.count(); return visible }

// InFlight counts the messages that somebody works on.
func (s *Server) InFlight() int { _, inFlight := s.count(); return inFlight }

func (s *Server) count() (visible, inFlight int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.messages {
		if m.hidden.After(time.Now()) {
			inFlight++
		} else {
			visible++
		}
	}
	return visible, inFlight
}

// Requests counts the requests for an action, such as "ReceiveMessage".
func (s *Server) Requests(action string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests[action]
}

// Always makes all requests for an action be answered so; with nil, by the server itself again.
func (s *Server) Always(action string, fault Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults[action] = fault
}

// Reveal lets others see a message at once, as if its visibility had been lost.
func (s *Server) Reveal(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.messages {
		if m.id == id {
			m.hidden = time.Time{}
		}
	}
	s.happened()
}

// Steal receives a message for somebody who does nothing with it: the receipt handle that others have is stale.
func (s *Server) Steal(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.messages {
		if m.id == id {
			m.receives++
			m.handle, m.hidden = "stolen", time.Now().Add(time.Hour)
		}
	}
}

func (s *Server) happened() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// ServeHTTP answers a request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, action, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
	s.mu.Lock()
	s.requests[action]++
	fault := s.faults[action]
	s.mu.Unlock()
	if fault != nil && fault(w, r) {
		return
	}
	var in request
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		Refuse("SerializationException", err.Error())(w, r)
		return
	}
	switch action {
	case "ReceiveMessage":
		s.receive(w, r, in)
	case "DeleteMessageBatch":
		s.each(w, in, s.delete)
	case "ChangeMessageVisibilityBatch":
		s.each(w, in, s.change)
	case "GetQueueAttributes":
		answer(w, map[string]any{"Attributes": s.describe()})
	default:
		Refuse("InvalidAction", action)(w, r)
	}
}
