package faultproxy

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// play lets a request meet a fault that concerns single calls.
func (p *Proxy) play(f Fault, entry int, w http.ResponseWriter, r *http.Request) {
	switch f.Kind {
	case Latency:
		select {
		case <-time.After(f.Delay):
			p.forward.ServeHTTP(w, r)
		case <-r.Context().Done():
		}
	case Reset:
		if f.After <= 0 {
			connectionOf(r.Context()).reset()
			return
		}
		p.forward.ServeHTTP(w, r)
	case WatchClose:
		p.forward.ServeHTTP(w, r)
	case WatchGone:
		event := map[string]any{"type": "ERROR", "object": failure(http.StatusGone, "too old resource version", 0)}
		p.answer(w, entry, http.StatusOK, event)
	case Garbage:
		p.journal.answered(entry, http.StatusOK)
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, "\x80\x00<!doctype garbage>") // the client may have left
	default:
		seconds := int32((f.RetryAfter + time.Second - 1) / time.Second)
		if seconds > 0 {
			w.Header().Set("Retry-After", strconv.Itoa(int(seconds)))
		}
		p.answer(w, entry, f.Status, failure(f.Status, f.Message, seconds))
	}
}

func (p *Proxy) answer(w http.ResponseWriter, entry, status int, body any) {
	p.journal.answered(entry, status)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // the client may have left
}

// failure is what the API server says when it refuses.
func failure(code int, message string, retryAfter int32) metav1.Status {
	if message == "" {
		message = fmt.Sprintf("a fault of the lab: %d", code)
	}
	s := metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure, Code: int32(code), Message: message, Reason: reasons[code],
	}
	if retryAfter > 0 {
		s.Details = &metav1.StatusDetails{RetryAfterSeconds: retryAfter}
	}
	return s
}

var reasons = map[int]metav1.StatusReason{
	http.StatusUnauthorized:        metav1.StatusReasonUnauthorized,
	http.StatusForbidden:           metav1.StatusReasonForbidden,
	http.StatusGone:                metav1.StatusReasonExpired,
	http.StatusTooManyRequests:     metav1.StatusReasonTooManyRequests,
	http.StatusInternalServerError: metav1.StatusReasonInternalError,
	http.StatusServiceUnavailable:  metav1.StatusReasonServiceUnavailable,
}

// A passage is what a request takes along to its answer.
type passage struct {
	entry int
	fault Fault
}

type passageKey struct{}

func withPassage(ctx context.Context, p passage) context.Context {
	return context.WithValue(ctx, passageKey{}, p)
}

// observe notes what the API server answers, and has the answer end as the request's fault wants it.
func (p *Proxy) observe(answer *http.Response) error {
	ctx := answer.Request.Context()
	passage, _ := ctx.Value(passageKey{}).(passage)
	p.journal.answered(passage.entry, answer.StatusCode)
	if passage.fault.Kind == Reset {
		answer.Body = &short{ReadCloser: answer.Body, left: passage.fault.After, over: connectionOf(ctx).reset}
	}
	if callOf(answer.Request) == WatchPods {
		s := &stream{ReadCloser: answer.Body}
		answer.Body = s
		p.streams.add(s)
		if passage.fault.Kind == WatchClose {
			s.end()
		}
	}
	return nil
}

// short is a body that is cut off.
type short struct {
	io.ReadCloser
	left int64
	over func()
}

func (s *short) Read(b []byte) (int, error) {
	if s.left <= 0 {
		s.over()
		return 0, io.ErrUnexpectedEOF
	}
	n, err := s.ReadCloser.Read(b[:min(int64(len(b)), s.left)])
	s.left -= int64(n)
	if err != nil { // it was shorter than the fault
		s.over()
	}
	return n, err
}

// streams are the watches that are open.
type streams struct {
	mu   sync.Mutex
	open []*stream
}

func (s *streams) add(one *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open = append(s.open, one)
}

func (s *streams) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range s.open {
		one.end()
	}
	s.open = nil
}

// stream is the body of a watch, which can be ended as if the API server had done it.
type stream struct {
	io.ReadCloser
	mu    sync.Mutex
	ended bool
}

func (s *stream) Read(b []byte) (int, error) {
	n, err := s.ReadCloser.Read(b)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return 0, io.EOF
	}
	return n, err
}

func (s *stream) end() {
	s.mu.Lock()
	s.ended = true
	s.mu.Unlock()
	_ = s.Close() // wakes a Read that waits
}
