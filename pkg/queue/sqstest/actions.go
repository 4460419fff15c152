package sqstest

import (
	"crypto/md5"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"
)

// request is the union of what the actions are asked with.
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

// failure is one message in a batch for which it did not work.
type failure struct {
	ID          string `json:"Id"`
	Code        string
	Message     string
	SenderFault bool
}

// Refuse is the answer to a request that is wrong, or not allowed.
func Refuse(code, text string) Fault {
	return func(w http.ResponseWriter, _ *http.Request) bool {
		write(w, http.StatusBadRequest, map[string]string{"__type": "com.amazonaws.sqs#" + code, "message": text})
		return true
	}
}

// Unavailable is the answer of a service that is not well.
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

// Deny is the answer to whoever lacks a right.
func Deny() Fault {
	return func(w http.ResponseWriter, _ *http.Request) bool {
		w.Header().Set("X-Amzn-Query-Error", "AccessDenied;Sender")
		write(w, http.StatusForbidden, map[string]string{"__type": "com.amazon.coral.service#AccessDeniedException", "message": "no policy allows it"})
		return true
	}
}

// receive waits for messages for as long as it is asked to.
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

// take receives what can be seen. Without any, it says when that may change.
func (s *Server) take(in request) (found []map[string]any, changed <-chan struct{}, next time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	next = time.Minute
	s.bury(now)
	for _, m := range s.messages {
		if left := m.hidden.Sub(now); left > 0 {
			next = min(next, left)
			continue
		}
		if len(found) == max(in.MaxNumberOfMessages, 1) {
			break
		}
		m.receives++
		m.handle = fmt.Sprintf("%s-%d", m.id, m.receives)
		m.hidden = now.Add(time.Duration(in.VisibilityTimeout) * time.Second)
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

// bury moves what has been received too often to the dead-letter queue.
func (s *Server) bury(now time.Time) {
	s.messages = slices.DeleteFunc(s.messages, func(m *message) bool {
		dead := s.dead > 0 && m.receives >= s.dead && !m.hidden.After(now)
		if dead {
			s.letters = append(s.letters, m.body)
		}
		return dead
	})
}

// each does one thing for each message in a batch.
func (s *Server) each(w http.ResponseWriter, in request, do func(entry) *failure) {
	s.mu.Lock()
	defer s.mu.Unlock()
	failed, well := []failure{}, []map[string]string{}
	for _, e := range in.Entries {
		if f := do(e); f != nil {
			f.ID, f.SenderFault = e.ID, true
			failed = append(failed, *f)
		} else {
			well = append(well, map[string]string{"Id": e.ID})
		}
	}
	s.happened()
	answer(w, map[string]any{"Successful": well, "Failed": failed})
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
		if !m.hidden.After(time.Now()) {
			return &failure{Code: "InvalidParameterValue", Message: "the message is not in flight"}
		}
		m.hidden = time.Now().Add(time.Duration(e.VisibilityTimeout) * time.Second)
		return nil
	}
	return &failure{Code: "ReceiptHandleIsInvalid", Message: "the receipt handle is not the message's last one"}
}
