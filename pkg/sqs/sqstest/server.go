// Package sqstest simulates SQS for tests: one standard queue, in SQS's JSON protocol.
//
// It supports what a consumer needs: receiving with long polling, deleting and changing visibility in batches, attributes. It keeps SQS's rules:
//   - A message that is not deleted becomes visible again after its visibility timeout.
//   - The visibility timeout of a visible message cannot be changed.
//   - A receipt handle is invalid once the message has been received again.
//   - An invalid request receives no message.
//
// pkg/internal/querytest records calls, and makes requests fail or be refused. Everything works on the clock of testing/synctest.
package sqstest

import (
	"context"
	"crypto/md5"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/nth-project/nth/pkg/internal/querytest"
)

// Server is a Service on a port of its own.
type Server struct {
	*Service
	*querytest.Server
}

// NewServer starts a Server with an empty queue on a free port of 127.0.0.1.
func NewServer() *Server {
	s := New()
	return &Server{s, querytest.Listen(s)}
}

// QueueURL is the URL of a server's queue.
func (s *Server) QueueURL() string { return s.URL + Path }

// Path is the path of the queue's URL.
const Path = "/123456789012/interruptions"

// Fault says which requests fail, and how.
type Fault = querytest.Fault

// Service is an SQS with one queue.
type Service struct {
	querytest.Front

	mu       sync.Mutex
	messages []*message
	sent     int           // how many messages were ever put into the queue
	changed  chan struct{} // closed, and replaced, when a message may have become visible
	// attributes are the queue's attributes, without the numbers of messages.
	attributes map[string]string
}

// message is one message in the queue.
type message struct {
	id, body, handle string // handle is the receipt handle of the last receipt
	sent             time.Time
	visibleAt        time.Time // zero before the first receipt
	receives         int
}

// New returns a service with an empty queue.
func New() *Service {
	return &Service{changed: make(chan struct{}), attributes: maps.Clone(defaultAttributes)}
}

// Send puts messages into the queue and returns their IDs.
func (s *Service) Send(bodies ...string) []string {
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

// Visible counts the visible messages.
func (s *Service) Visible() int { visible, _ := s.count(); return visible }

// InFlight counts the messages that have been received and are not visible.
func (s *Service) InFlight() int { _, inFlight := s.count(); return inFlight }

// count counts the messages that are visible, and those that are not.
func (s *Service) count() (visible, inFlight int) {
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

// Reveal makes a message visible at once.
func (s *Service) Reveal(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.messages {
		if m.id == id {
			m.visibleAt = time.Time{}
		}
	}
	s.notify()
}

// Steal receives a message for another consumer, which hides it for ten minutes. All earlier receipt handles are stale then.
func (s *Service) Steal(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.messages {
		if m.id == id {
			m.receives++
			m.handle, m.visibleAt = "stolen", time.Now().Add(10*time.Minute)
		}
	}
}

// notify wakes the requests that wait for messages. s.mu is held.
func (s *Service) notify() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// ServeHTTP answers a request of the JSON protocol.
func (s *Service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var in request
	_ = json.NewDecoder(r.Body).Decode(&in) // The SDK sends nothing but JSON.
	s.Serve(w, r, querytest.JSON, func(action string, _ url.Values) (any, *querytest.Failure) {
		switch action {
		case "ReceiveMessage":
			return s.receive(r.Context(), in)
		case "DeleteMessageBatch":
			return s.each(in, s.delete), nil
		case "ChangeMessageVisibilityBatch":
			return s.each(in, s.change), nil
		case "GetQueueAttributes":
			return map[string]any{"Attributes": s.describe()}, nil
		}
		return nil, nil
	})
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

// receive answers a request for messages. If no message is visible, it waits for as long as the request says.
func (s *Service) receive(ctx context.Context, in request) (any, *querytest.Failure) {
	if in.MaxNumberOfMessages > 10 || in.VisibilityTimeout < 0 || in.WaitTimeSeconds < 0 {
		return nil, querytest.Invalid("InvalidParameterValue", "out of range")
	}
	end := time.After(time.Duration(in.WaitTimeSeconds) * time.Second)
	for {
		found, changed, next := s.take(in)
		if len(found) > 0 {
			return map[string]any{"Messages": found}, nil
		}
		select {
		case <-ctx.Done():
			return map[string]any{}, nil
		case <-end:
			return map[string]any{}, nil
		case <-changed:
		case <-time.After(next):
		}
	}
}

// take receives the visible messages, as many as the request asks for. If there are none, one may become visible when changed is closed, or after
// the time next.
func (s *Service) take(in request) (found []map[string]any, changed <-chan struct{}, next time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	next = time.Minute
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

// each calls do with each entry of a batch, and returns the answer to the request. s.mu is held for do.
func (s *Service) each(in request, do func(entry) *failure) any {
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
	return map[string]any{"Successful": successful, "Failed": failed}
}

// delete deletes the message with the entry's receipt handle. It returns nil if it did.
func (s *Service) delete(e entry) *failure {
	i := slices.IndexFunc(s.messages, func(m *message) bool { return m.handle == e.ReceiptHandle })
	if i < 0 {
		return &failure{Code: "ReceiptHandleIsInvalid", Message: "the receipt handle is not the message's last one"}
	}
	s.messages = slices.Delete(s.messages, i, i+1)
	return nil
}

// change sets the visibility timeout of the message with the entry's receipt handle. It returns nil if it did.
func (s *Service) change(e entry) *failure {
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

// defaultAttributes are the attributes of a queue that packaging/aws has made.
var defaultAttributes = map[string]string{
	"MessageRetentionPeriod": "1209600", "ReceiveMessageWaitTimeSeconds": "20", "VisibilityTimeout": "20", "DelaySeconds": "0",
	"SqsManagedSseEnabled": "true", "Policy": `{"Version":"2012-10-17","Statement":[]}`,
	"RedrivePolicy": `{"deadLetterTargetArn":"arn:aws:sqs:eu-central-1:123456789012:dead-letters","maxReceiveCount":100}`,
}

// Say sets an attribute that the service says the queue has. It does not change how the queue works. With the value "", the queue does not have it.
func (s *Service) Say(attribute, value string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.attributes[attribute] = value
}

// describe returns all attributes of the queue.
func (s *Service) describe() map[string]string {
	visible, inFlight := s.count()
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[string]string{
		"ApproximateNumberOfMessages": fmt.Sprint(visible), "ApproximateNumberOfMessagesNotVisible": fmt.Sprint(inFlight),
	}
	maps.Copy(all, s.attributes)
	maps.DeleteFunc(all, func(_, value string) bool { return value == "" })
	return all
}
