package asgtest

import (
	"context"
	"fmt"
	"net/url"
	"slices"
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
	// Credential is the access key that signed the request.
	Credential string
}

// String is a call in a few words.
func (c Call) String() string {
	text := c.Action
	if hook := c.Values.Get("LifecycleHookName"); hook != "" {
		text += " " + hook
	}
	if result := c.Values.Get("LifecycleActionResult"); result != "" {
		text += " " + result
	}
	if c.Code != "" {
		text += ": " + c.Code
	}
	return text
}

// Calls returns all calls so far for an action; with "" those of all.
func (s *Service) Calls(action string) []Call {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(s.calls), func(c Call) bool { return action != "" && c.Action != action })
}

// Await waits until a condition of the service holds that only calls can bring about, or until ctx ends.
func (s *Service) Await(ctx context.Context, what string, holds func() bool) error {
	for {
		s.mu.Lock()
		changed := s.changed
		s.mu.Unlock()
		if holds() {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w; the calls were %v", what, ctx.Err(), s.Calls(""))
		}
	}
}

// keep keeps a call, and wakes those who wait for one.
func (s *Service) keep(c Call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, c)
	close(s.changed)
	s.changed = make(chan struct{})
}
