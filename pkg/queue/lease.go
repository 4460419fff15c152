package queue

import (
	"time"
)

// Lease is a message that is held while its work is done. Either Done or Return ends it, once.
type Lease struct {
	// ID is the message's, Sent when it was put into the queue, and Receives how often it has been received so far.
	ID       string
	Sent     time.Time
	Receives int
	// Notices are what it says.
	Notices []Notice

	queue *Queue
	// The queue's mutex guards what follows.
	handle string
	// until is when others may see the message again, as far as is known.
	until time.Time
	wants want
	// after is how long others shall not see it once it is given back.
	after time.Duration
	// busy tells that a request for it is under way. again is when the next may be made after failures of them.
	busy     bool
	again    time.Time
	failures int
	// lost tells that it cannot be extended any more.
	lost bool
}

// want is what is wanted for a message.
type want int

const (
	keeping want = iota
	returning
	deletion
)

// Done says that all work for the message is done, or is none of ours: it is deleted, sooner or later.
func (l *Lease) Done() {
	q := l.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	q.finished.add(l.ID)
	if q.opts.DryRun {
		delete(q.leases, l.ID)
		return
	}
	l.wants, l.again = deletion, time.Time{}
	q.nudge()
}

// Return says that work is left that must wait: whoever receives the message after that time does it. The time is
// counted in whole seconds.
func (l *Lease) Return(after time.Duration) {
	q := l.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	l.wants, l.after, l.again = returning, min(max(after, 0), longestReturn), time.Time{}
	q.nudge()
}

// longestReturn is a little less than the twelve hours that SQS hides a message for, at most.
const longestReturn = 12*time.Hour - 10*time.Minute

func (l *Lease) report(what What, why string) Report {
	return Report{What: what, Message: l.ID, Why: why, Sent: l.Sent, Receives: l.Receives}
}

// due is when the next request for the message is to be made; zero if none is.
func (l *Lease) due(visibility time.Duration) time.Time {
	switch {
	case l.busy, l.wants == keeping && l.lost:
		return time.Time{}
	case l.wants == keeping:
		return latest(l.until.Add(-visibility*2/3), l.again)
	}
	return latest(time.Unix(1, 0), l.again)
}

func latest(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}
