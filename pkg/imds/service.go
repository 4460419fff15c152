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
	// muchLonger is how many times as long as the last answer that was not brisk a document must take to be one that hangs: it may need
	// a token, too, and wait behind another request.
	muchLonger = 4
	// turnLimit is how long the turn of a request is waited for. It is short enough that no loop is taken for stuck.
	turnLimit = time.Minute
	// glance is how often it is looked, while a turn is waited for, whether turns are needed still.
	glance = 100 * time.Millisecond
)

// service is what all clients of a source know of the service: how fast it answers, and where.
//
// A service that is slow may be one that answers one request after the other, also those that nobody waits for any more. Each that
// waits there makes the others wait longer, until none is answered before it is given up. So of a service that is slow, or answers
// nothing, two documents are asked for at once: one of those that are urgent and one of the others.
type service struct {
	addresses *addresses // nil if there is only one

	mu     sync.Mutex
	heard  bool          // it has answered
	answer time.Time     // when it has last
	slow   time.Time     // when an answer that was not brisk has last come
	took   time.Duration // how long that took
	silent bool          // a request was given up, and none has been answered since it was made
	rested time.Time     // when the next document may be asked for that is not urgent

	// urgent and others have room for one request each, and resting for the one that is the next of the others, if it rests.
	urgent, others, resting chan struct{}
}

func newService(a *addresses) *service {
	return &service{addresses: a, urgent: make(chan struct{}, 1), others: make(chan struct{}, 1), resting: make(chan struct{}, 1)}
}

// answered notes how long an answer has taken.
func (s *service) answered(took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.heard, s.silent, s.answer = true, false, time.Now()
	if took > brisk {
		s.slow, s.took = time.Now(), took
	}
}

// givenUp notes that a request has not been answered for as long as any is waited for. If others were, it is the document that hangs.
func (s *service) givenUp(asked time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.silent = s.answer.Before(asked)
}

// silence is how long ago it has answered.
func (s *service) silence() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Since(s.answer)
}

// isSlow tells whether the service has been slow of late. An answer is waited for then, and not asked for again.
func (s *service) isSlow() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.slow.IsZero() && time.Since(s.slow) < slowMemory
}

// isStrained tells whether the service is slow, or answers nothing.
func (s *service) isStrained() bool {
	s.mu.Lock()
	silent := s.silent
	s.mu.Unlock()
	return silent || s.isSlow()
}

// mayBeStrained tells whether it is, or nobody knows yet as it has not answered.
func (s *service) mayBeStrained() bool {
	s.mu.Lock()
	heard := s.heard
	s.mu.Unlock()
	return !heard || s.isStrained()
}

// await waits for the turn of a request, if turns are needed, and returns what ends it.
func (s *service) await(ctx context.Context, who turn) (over func(), err error) {
	limited, cancel := context.WithTimeout(ctx, turnLimit)
	defer cancel()
	var ours bool
	if who == urgently {
		over, ours = s.joinUrgent(limited)
	} else {
		over, ours = s.joinOthers(limited, who)
	}
	if !ours {
		return nil, noTurn(ctx)
	}
	return over, nil
}

// join waits for the one place in a line, as long as turns are needed, and returns what gives it back.
func (s *service) join(ctx context.Context, line chan struct{}, needed func() bool) (leave func(), ours bool) {
	for needed() {
		select {
		case line <- struct{}{}:
			return func() { <-line }, true
		case <-ctx.Done():
			return nil, false
		case <-time.After(glance):
		}
	}
	return func() {}, true
}

// joinUrgent waits for the turn of a document that is urgent. At the start, each of those is asked for at once. A turn ends before its
// request does where that takes much longer than others: it is the document that hangs, and the other may be a notice.
func (s *service) joinUrgent(ctx context.Context) (over func(), ours bool) {
	leave, ours := s.join(ctx, s.urgent, s.isStrained)
	if !ours {
		return nil, false
	}
	once := sync.OnceFunc(leave)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.silent { // It may be that it hangs, or that it falls behind.
		return once, true
	}
	late := time.AfterFunc(max(muchLonger*s.took, brisk), once)
	return func() {
		late.Stop()
		once()
	}, true
}

// joinOthers waits for the turn of a document that is not urgent. After one of those as much time is left to those that are: they wait
// behind it, if the service answers one after the other. Those that rest do so in a line of their own, so that whoever is waited for
// goes before them.
func (s *service) joinOthers(ctx context.Context, who turn) (over func(), ours bool) {
	rested := func() {}
	if who == regularly {
		if rested, ours = s.join(ctx, s.resting, s.mayBeStrained); !ours {
			return nil, false
		}
		for s.mayBeStrained() && time.Until(s.rests()) > 0 {
			if !sleep(ctx, glance) {
				rested()
				return nil, false
			}
		}
	}
	leave, ours := s.join(ctx, s.others, s.mayBeStrained)
	if !ours {
		rested()
		return nil, false
	}
	began := time.Now()
	return func() {
		s.rest(time.Since(began))
		leave()
		rested()
	}, true
}

// rest lets the documents that are not urgent rest for so long.
func (s *service) rest(long time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rested = time.Now().Add(long)
}

func (s *service) rests() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rested
}

// noTurn is why a request was not made.
func noTurn(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return fmt.Errorf("the metadata service is too slow to be asked for all at once: not asked within %s", turnLimit)
}

// turn says how a request waits for its turn.
type turn int

const (
	urgently  turn = iota // for a document that is urgent
	regularly             // for one that is not, again and again
	once                  // for somebody who waits for it
)

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
