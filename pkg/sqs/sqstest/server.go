// Package sqstest is an SQS for tests: one standard queue, over real HTTP, in SQS's JSON protocol.
//
// It supports what a consumer needs: receiving with long polling, deleting and changing visibility in batches, attributes.
// It keeps the rules that matter: a message that is not deleted becomes visible again after its visibility timeout, that of
// a visible message cannot be changed, a receipt handle is invalid once the message has been received again, and an invalid
// request gets nothing. Time is the test's own (the system's, or a bubble's).
package sqstest

import (
	"crypto/md5"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Server is an SQS with one queue.
type Server struct {
	http *httptest.Server

	mu          sync.Mutex
	messages    []*message
	sent        int
	requests    map[string]int
	faults      map[string]Fault
	maxReceives int // then a message goes to the dead-letter queue; 0 is never
	deadLetters []string
	changed     chan struct{}
	// attributes are the queue's, without the numbers of messages.
	attributes map[string]string
}

// message is one message in the queue.
type message struct {
	id, body, handle string
	sent             time.Time
	visibleAt        time.Time
	receives         int
}

// Fault answers a request instead of the server, unless it returns false.
type Fault func(w http.ResponseWriter, r *http.Request) bool

// New starts a server with an empty queue. Close ends it.
func New() *Server {
	s := &Server{
		requests: map[string]int{}, faults: map[string]Fault{}, changed: make(chan struct{}), attributes: maps.Clone(defaultAttributes),
	}
	s.http = httptest.NewServer(s)
	return s
}

// Close ends the server.
func (s *Server) Close() {
	s.http.CloseClientConnections()
	s.http.Close()
}

// Endpoint is the URL of the server.
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
	s.notify()
	return ids
}

// DeadAfter sets after how many receives messages go to the dead-letter queue.
func (s *Server) DeadAfter(receives int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.maxReceives = receives
}

// DeadLetters are the bodies of the messages in the dead-letter queue.
func (s *Server) DeadLetters() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.deadLetters)
}

// Visible counts the visible messages.
func (s *Server) Visible() int { visible, _ := s.count(); return visible }

// InFlight counts the messages that have been received and are not visible.
func (s *Server) InFlight() int { _, inFlight := s.count(); return inFlight }

func (s *Server) count() (visible, inFlight int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.messages {
		if m.visibleAt.After(time.Now()) {
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

// Always sets the fault that answers all requests for an action; nil removes it.
func (s *Server) Always(action string, fault Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults[action] = fault
}

// Reveal makes a message visible at once.
func (s *Server) Reveal(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.messages {
		if m.id == id {
			m.visibleAt = time.Time{}
		}
	}
	s.notify()
}

// Steal receives a message for another consumer: all earlier receipt handles are stale.
func (s *Server) Steal(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.messages {
		if m.id == id {
			m.receives++
			m.handle, m.visibleAt = "stolen", time.Now().Add(time.Hour)
		}
	}
}

func (s *Server) notify() {
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

// request has the parameters of all actions.
type request struct {
	MaxNumberOfMessages int
	VisibilityTimeout   int
	WaitTimeSeconds     int
	Entries             []entry
}

// entry is one message in a batch.
type entry struct {
	ID                string `json:"Id"`
	ReceiptHandle     string
	VisibilityTimeout int
}

// failure is the error of one message in a batch.
type failure struct {
	ID          string `json:"Id"`
	Code        string
	Message     string
	SenderFault bool
}

// Refuse answers with an error.
func Refuse(code, text string) Fault {
	return func(w http.ResponseWriter, _ *http.Request) bool {
		write(w, http.StatusBadRequest, map[string]string{"__type": "com.amazonaws.sqs#" + code, "message": text})
		return true
	}
}

// Unavailable answers 503.
func Unavailable() Fault {
	return func(w http.ResponseWriter, _ *http.Request) bool {
		write(w, http.StatusServiceUnavailable, map[string]string{"__type": "com.amazonaws.sqs#ServiceUnavailable", "message": "not now"})
		return true
	}
}

func answer(w http.ResponseWriter, body any) { write(w, http.StatusOK, body) }

func write(w http.ResponseWriter, code int, body any) {
	text, err := json.Marshal(body)
	if err != nil {
		panic(fmt.Sprintf("encoding an answer: %v", err)) // a mistake in this package
	}
	w.Header().Set("Content-Type", "application/x-amz-json-1.0")
	w.WriteHeader(code)
	_, _ = w.Write(text) // a client that has left needs no answer
}

// Deny answers that a right is missing.
func Deny() Fault {
	return func(w http.ResponseWriter, _ *http.Request) bool {
		w.Header().Set("X-Amzn-Query-Error", "AccessDenied;Sender")
		write(w, http.StatusForbidden, map[string]string{"__type": "com.amazon.coral.service#AccessDeniedException", "message": "no policy allows it"})
		return true
	}
}

// receive polls for as long as the request asks for.
func (s *Server) receive(w http.ResponseWriter, r *http.Request, in request) {
	if in.MaxNumberOfMessages > 10 || in.VisibilityTimeout < 0 || in.WaitTimeSeconds < 0 {
		Refuse("InvalidParameterValue", "out of range")(w, r)
		return
	}
	end := time.After(time.Duration(in.WaitTimeSeconds) * time.Second)
	for {
		found, changed, next := s.take(in)
		if len(found) > 0 {
			answer(w, map[string]any{"Messages": found})
			return
		}
		reveal := time.NewTimer(next)
		select {
		case <-r.Context().Done():
			reveal.Stop()
			return
		case <-end:
			reveal.Stop()
			answer(w, map[string]any{})
			return
		case <-changed:
		case <-reveal.C:
		}
		reveal.Stop()
	}
}

// take receives the visible messages. If there are none, it says when that may change.
func (s *Server) take(in request) (found []map[string]any, changed <-chan struct{}, next time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	next = time.Minute
	s.moveDeadLetters(now)
	for _, m := range s.messages {
		if left := m.visibleAt.Sub(now); left > 0 {
			next = min(next, left)
			continue
		}
		if len(found) == max(in.MaxNumberOfMessages, 1) {
			break
		}
		m.receives++
		m.handle = fmt.Sprintf("%s-%d", m.id, m.receives)
		m.visibleAt = now.Add(time.Duration(in.VisibilityTimeout) * time.Second)
		sum := md5.Sum([]byte(m.body))
		found = append(found, map[string]any{
			"MessageId": m.id, "Body": m.body, "ReceiptHandle": m.handle, "MD5OfBody": hex.EncodeToString(sum[:]),
			"Attributes": map[string]string{
				"SentTimestamp":           strconv.FormatInt(m.sent.UnixMilli(), 10),
				"ApproximateReceiveCount": strconv.Itoa(m.receives),
			},
		})
	}
	return found, s.changed, next
}

// moveDeadLetters moves what has been received too often to the dead-letter queue.
func (s *Server) moveDeadLetters(now time.Time) {
	s.messages = slices.DeleteFunc(s.messages, func(m *message) bool {
		dead := s.maxReceives > 0 && m.receives >= s.maxReceives && !m.visibleAt.After(now)
		if dead {
			s.deadLetters = append(s.deadLetters, m.body)
		}
		return dead
	})
}

// each applies an action to each message in a batch.
func (s *Server) each(w http.ResponseWriter, in request, do func(entry) *failure) {
	s.mu.Lock()
	defer s.mu.Unlock()
	failed, successful := []failure{}, []map[string]string{}
	for _, e := range in.Entries {
		if f := do(e); f != nil {
			f.ID, f.SenderFault = e.ID, true
			failed = append(failed, *f)
		} else {
			successful = append(successful, map[string]string{"Id": e.ID})
		}
	}
	s.notify()
	answer(w, map[string]any{"Successful": successful, "Failed": failed})
}

func (s *Server) delete(e entry) *failure {
	i := slices.IndexFunc(s.messages, func(m *message) bool { return m.handle == e.ReceiptHandle })
	if i < 0 {
		return &failure{Code: "ReceiptHandleIsInvalid", Message: "the receipt handle is not the message's last one"}
	}
	s.messages = slices.Delete(s.messages, i, i+1)
	return nil
}

func (s *Server) change(e entry) *failure {
	for _, m := range s.messages {
		if m.handle != e.ReceiptHandle {
			continue
		}
		if !m.visibleAt.After(time.Now()) {
			return &failure{Code: "InvalidParameterValue", Message: "the message is not in flight"}
		}
		m.visibleAt = time.Now().Add(time.Duration(e.VisibilityTimeout) * time.Second)
		return nil
	}
	return &failure{Code: "ReceiptHandleIsInvalid", Message: "the receipt handle is not the message's last one"}
}

// defaultAttributes are those of a queue that packaging/aws has made.
var defaultAttributes = map[string]string{
	"MessageRetentionPeriod": "1209600", "ReceiveMessageWaitTimeSeconds": "20", "VisibilityTimeout": "20", "DelaySeconds": "0",
	"SqsManagedSseEnabled": "true", "Policy": `{"Version":"2012-10-17","Statement":[]}`,
	"RedrivePolicy": `{"deadLetterTargetArn":"arn:aws:sqs:eu-central-1:123456789012:dead-letters","maxReceiveCount":100}`,
}

// Say sets an attribute of the queue, without effect on how the queue works. One without a value is left out.
func (s *Server) Say(attribute, value string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.attributes[attribute] = value
}

func (s *Server) describe() map[string]string {
	visible, inFlight := s.count()
	s.mu.Lock()
	defer s.mu.Unlock()
	said := map[string]string{
		"ApproximateNumberOfMessages": fmt.Sprint(visible), "ApproximateNumberOfMessagesNotVisible": fmt.Sprint(inFlight),
	}
	maps.Copy(said, s.attributes)
	maps.DeleteFunc(said, func(_, value string) bool { return value == "" })
	return said
}
