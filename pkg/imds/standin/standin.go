// Package standin answers as EC2's instance metadata service does, version 2: documents, behind session tokens.
//
// It is what a rehearsal and the simulator for tests have in common: "nth rehearse" serves one in its own process, and
// pkg/imds/imdstest adds what only tests and nth-imds need, which is faults, counts, delays and a way to be steered.
// A Service starts as that of a healthy spot instance for which nothing is announced. Everything is safe for concurrent use, and a
// change is visible to every request that begins after the call returned.
package standin

import (
	"fmt"
	"net/http"
	"time"
)

// Service is the metadata service of one instance. It is an http.Handler.
type Service struct {
	documents documents
	tokens    tokens
}

// New returns the metadata service of a healthy spot instance for which nothing is announced.
func New() *Service {
	s := &Service{}
	s.setMachine()
	return s
}

// ServeHTTP answers as EC2 would.
func (s *Service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	answer := s.Answer(r)
	body := answer.Header(w)
	w.WriteHeader(answer.Status)
	_, _ = w.Write(body) // The client may have left; nothing is to be done about that.
}

const (
	spotPath            = "meta-data/spot/instance-action"
	terminationTimePath = "meta-data/spot/termination-time"
)

// SetSpot announces a spot interruption: action is "terminate", "stop" or "hibernate", at is when EC2 acts.
func (s *Service) SetSpot(action string, at time.Time) {
	s.Set(spotPath, fmt.Sprintf(`{"action": %q, "time": %q}`, action, Timestamp(at)))
	if action == "terminate" {
		s.Set(terminationTimePath, Timestamp(at))
	} else {
		s.Unset(terminationTimePath)
	}
}

// ClearSpot withdraws the spot interruption, and tells whether there was one.
func (s *Service) ClearSpot() bool {
	s.Unset(terminationTimePath)
	return s.Unset(spotPath)
}
