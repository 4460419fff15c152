package imds

import (
	"context"
	"fmt"
	"sync"
	"time"
)

const (
	// fastAnswer is the longest that a healthy service takes to answer. It is on the same host and needs milliseconds.
	fastAnswer = 500 * time.Millisecond
	// slowFor is for how long the service counts as slow after a slow answer. It is longer than any request waits for its
	// answer, so that a service that answers at all does not count as healthy in between.
	slowFor = 2 * requestTimeout
	// hangFactor is how many times as long as the last slow answer a request must take to count as hanging: it may need a
	// token, too, and queue behind another request.
	hangFactor = 4
	// slotTimeout is how long a request waits for its slot. It is short enough that no poller counts as stuck.
	slotTimeout = time.Minute
	// slotInterval is how often a waiting request checks whether it still needs a slot.
	slotInterval = 100 * time.Millisecond
)

// throttle limits how many requests a slow service gets at once. All clients of a source share it.
//
// A slow service may be one that answers one request after the other, also those that nobody waits for any more. Each
// that queues there delays the others, until none is answered before it is given up. So a service that is slow, or does
// not answer, gets two requests at once: one for an urgent document and one for any other.
type throttle struct {
	mu           sync.Mutex
	answered     bool          // at least once
	lastAnswer   time.Time     //
	lastSlow     time.Time     // the last slow answer
	slowLatency  time.Duration // its latency
	unresponsive bool          // a request timed out, and none has been answered since it was made
	cooldown     time.Time     // no regular request is made before that

	// Each holds one request. A regular request takes regularQueue before otherSlot, so that the others of its kind wait
	// for the cooldown there, and a one-off request goes before them.
	urgentSlot, otherSlot, regularQueue chan struct{}
}

func newThrottle() *throttle {
	return &throttle{
		urgentSlot: make(chan struct{}, 1), otherSlot: make(chan struct{}, 1), regularQueue: make(chan struct{}, 1),
	}
}

// noteAnswer notes how long an answer has taken.
func (t *throttle) noteAnswer(latency time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.answered, t.unresponsive, t.lastAnswer = true, false, time.Now()
	if latency > fastAnswer {
		t.lastSlow, t.slowLatency = time.Now(), latency
	}
}

// noteTimeout notes that a request has timed out. If others were answered meanwhile, only its document hangs.
func (t *throttle) noteTimeout(asked time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.unresponsive = t.lastAnswer.Before(asked)
}

func (t *throttle) sinceAnswer() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return time.Since(t.lastAnswer)
}

// isSlow reports whether the service has been slow lately. Answers are waited for then, and requests not repeated.
func (t *throttle) isSlow() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.slow()
}

func (t *throttle) slow() bool { return !t.lastSlow.IsZero() && time.Since(t.lastSlow) < slowFor }

// isStrained reports whether the service is slow or does not answer.
func (t *throttle) isStrained() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.unresponsive || t.slow()
}

// mayBeStrained reports whether it is, or has not answered yet, so that nobody knows.
func (t *throttle) mayBeStrained() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return !t.answered || t.unresponsive || t.slow()
}

// priority says how a request waits for its slot.
type priority int

const (
	urgentPriority  priority = iota
	regularPriority          // polled again and again, but not urgent
	oneOffPriority           // not urgent, but somebody waits for it
)

// acquire waits for a request's slot, if it needs one, and returns the function that frees it.
func (t *throttle) acquire(ctx context.Context, p priority) (release func(), err error) {
	limited, cancel := context.WithTimeout(ctx, slotTimeout)
	defer cancel()
	var ok bool
	if p == urgentPriority {
		release, ok = t.acquireUrgent(limited)
	} else {
		release, ok = t.acquireOther(limited, p)
	}
	switch {
	case ok:
		return release, nil
	case ctx.Err() != nil:
		return nil, ctx.Err()
	default:
		return nil, fmt.Errorf("the metadata service is too slow to be asked for all at once: not asked within %s", slotTimeout)
	}
}

// enter waits for a place in slot as long as one is needed, and returns the function that gives it back.
func enter(ctx context.Context, slot chan struct{}, needed func() bool) (leave func(), ok bool) {
	for needed() {
		select {
		case slot <- struct{}{}:
			return func() { <-slot }, true
		case <-ctx.Done():
			return nil, false
		case <-time.After(slotInterval):
		}
	}
	return func() {}, true
}

// acquireUrgent needs no slot until the service is known to be strained, so that at the start each urgent document is
// asked for at once. The slot is freed before the request ends if that takes much longer than others: then it is the
// document that hangs, and the other one may be a notice.
func (t *throttle) acquireUrgent(ctx context.Context) (release func(), ok bool) {
	leave, ok := enter(ctx, t.urgentSlot, t.isStrained)
	if !ok {
		return nil, false
	}
	leave = sync.OnceFunc(leave)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.unresponsive { // The service may be overrun just as well as the document may hang.
		return leave, true
	}
	hanging := time.AfterFunc(max(hangFactor*t.slowLatency, fastAnswer), leave)
	return func() {
		hanging.Stop()
		leave()
	}, true
}

// acquireOther gives the urgent documents as much time after each other one as that has taken: if the service answers
// one request after the other, they queue behind it.
func (t *throttle) acquireOther(ctx context.Context, p priority) (release func(), ok bool) {
	leaveQueue := func() {}
	if p == regularPriority {
		if leaveQueue, ok = enter(ctx, t.regularQueue, t.mayBeStrained); !ok {
			return nil, false
		}
		for t.mayBeStrained() && t.coolingDown() {
			if !sleep(ctx, slotInterval) {
				leaveQueue()
				return nil, false
			}
		}
	}
	leaveSlot, ok := enter(ctx, t.otherSlot, t.mayBeStrained)
	if !ok {
		leaveQueue()
		return nil, false
	}
	began := time.Now()
	return func() {
		t.coolDown(time.Since(began))
		leaveSlot()
		leaveQueue()
	}, true
}

func (t *throttle) coolDown(d time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cooldown = time.Now().Add(d)
}

func (t *throttle) coolingDown() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return time.Until(t.cooldown) > 0
}
