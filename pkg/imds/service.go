package imds

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"
)

// The numbers of a service that is slow.
const (
	// brisk is the longest that an answer takes of a service that is well. It is on the same host and needs milliseconds.
	brisk = 500 * time.Millisecond
	// slowMemory is for how long a service counts as slow after an answer that was not brisk. It is longer than anybody
	// waits for an answer, so that a service that answers at all is not taken for well in between.
	slowMemory = 2 * answerLimit
)

// service is what all clients of a source know of the service: how fast it answers, and where.
type service struct {
	addresses *addresses // nil if there is only one

	mu    sync.Mutex
	slow  time.Time // when an answer that was not brisk has last come
	asked time.Time // for the first time
	heard bool      // it has answered

	// turn has room for one request of a document that is not urgent, while the service is slow. A slow service may be one
	// that answers one request after the other: each that waits there makes the urgent ones wait longer.
	turn chan struct{}
}

func newService(a *addresses) *service { return &service{addresses: a, turn: make(chan struct{}, 1)} }

// asking notes that it is asked.
func (s *service) asking() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.asked.IsZero() {
		s.asked = time.Now()
	}
}

// answered notes how long an answer has taken.
func (s *service) answered(took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.heard = true
	if took > brisk {
		s.slow = time.Now()
	}
}

// mayBeSlow tells whether the service has been slow of late, or nobody knows yet as it has not answered.
func (s *service) mayBeSlow() bool {
	s.mu.Lock()
	heard := s.heard || time.Since(s.asked) > answerLimit
	s.mu.Unlock()
	return !heard || s.isSlow()
}

// isSlow tells whether the service has been slow of late. An answer is waited for then, and not asked for again.
func (s *service) isSlow() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.slow.IsZero() && time.Since(s.slow) < slowMemory
}

// await waits for the turn of a request that is not urgent, and returns what ends it.
func (s *service) await(ctx context.Context) (over func(), err error) {
	if !s.isSlow() {
		return func() {}, nil
	}
	select {
	case s.turn <- struct{}{}:
		return func() { <-s.turn }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// The service's own addresses. The second is there on instances of the Nitro system where HttpProtocolIpv6 is enabled, and
// is the only one that an instance in a subnet without IPv4 can reach.
const (
	addressIPv4 = "169.254.169.254"
	addressIPv6 = "[fd00:ec2::254]"
)

// stay is for how long no connection can have been made to an address before the other is tried again. An outage is no
// reason to move.
const stay = 10 * time.Second

// addresses are the service's two, and which of them has answered.
type addresses struct {
	mu    sync.Mutex
	kept  string    // has answered; "" if none has
	since time.Time // from when on no connection could be made to it; zero if one could
}

// order returns the addresses in the order in which they are to be tried.
func (a *addresses) order() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch lost := !a.since.IsZero() && time.Since(a.since) >= stay; {
	case a.kept == "":
		return []string{addressIPv4, addressIPv6}
	case !lost:
		return []string{a.kept}
	case a.kept == addressIPv4:
		return []string{addressIPv4, addressIPv6}
	default:
		return []string{addressIPv6, addressIPv4}
	}
}

// tried notes whether the address has answered.
func (a *addresses) tried(address string, answered bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case answered:
		a.kept, a.since = address, time.Time{}
	case address == a.kept && a.since.IsZero():
		a.since = time.Now()
	}
}

// either makes requests to the service's own address at whichever of the two it is reached. Another endpoint is left as it is.
type either struct {
	next      http.RoundTripper
	addresses *addresses
}

// RoundTrip implements http.RoundTripper.
func (e either) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Host != addressIPv4 {
		return e.next.RoundTrip(r)
	}
	var unreached []string
	for _, address := range e.addresses.order() {
		there := r.Clone(r.Context())
		there.URL.Host, there.Host = address, address
		resp, err := e.next.RoundTrip(there)
		if err == nil {
			e.addresses.tried(address, true)
			return resp, nil
		}
		if lost := new(connectError); !errors.As(err, &lost) || r.Context().Err() != nil {
			return nil, err
		}
		e.addresses.tried(address, false)
		unreached = append(unreached, fmt.Sprintf("%s (%s)", address, steady(err)))
	}
	return nil, fmt.Errorf("the metadata service cannot be reached at %s", strings.Join(unreached, ", nor at "))
}

// timed tells how long answers take.
type timed struct {
	next    http.RoundTripper
	service *service
}

// RoundTrip implements http.RoundTripper.
func (t timed) RoundTrip(r *http.Request) (*http.Response, error) {
	asked := time.Now()
	t.service.asking()
	resp, err := t.next.RoundTrip(r)
	if err == nil {
		t.service.answered(time.Since(asked))
	}
	return resp, err
}

// connectError tells that there is no connection to the service.
type connectError struct{ error }

// Unwrap returns why.
func (e *connectError) Unwrap() error { return e.error }
