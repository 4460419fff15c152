package queue

import (
	"fmt"
	"time"
)

// silence is how long a receiver may say nothing: far longer than a request for messages, or the longest pause after one
// that failed, can take.
const silence = 90 * time.Second

// begin notes that the receivers begin.
func (q *Queue) begin() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.pulses = make([]time.Time, q.opts.Receivers)
	for i := range q.pulses {
		q.pulses[i] = time.Now()
	}
}

// rest notes that the receivers are asked to end.
func (q *Queue) rest() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.pulses = nil
}

// beat notes that a receiver goes on.
func (q *Queue) beat(number int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if number < len(q.pulses) {
		q.pulses[number] = time.Now()
	}
}

// Stuck tells that a receiver has come to a stop. SQS not answering, or refusing, is trouble, and nothing is stuck.
func (q *Queue) Stuck() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, last := range q.pulses {
		if quiet := time.Since(last); quiet > silence {
			return fmt.Errorf("receiving from the queue: neither an answer nor an error for %s", quiet.Round(time.Second))
		}
	}
	return nil
}

// Standing is how a queue stands.
type Standing struct {
	// Held is how many messages are held, and Oldest when the oldest of them was sent; zero if there is none.
	Held   int
	Oldest time.Time
	// Up tells whether the last request for messages was answered; Answered is when the last one was that was.
	Up       bool
	Answered time.Time
}

// Standing tells how the queue stands now.
func (q *Queue) Standing() Standing {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := Standing{Held: len(q.leases), Up: !q.troubled && !q.answered.IsZero(), Answered: q.answered}
	for _, l := range q.leases {
		if !l.Sent.IsZero() && (now.Oldest.IsZero() || l.Sent.Before(now.Oldest)) {
			now.Oldest = l.Sent
		}
	}
	return now
}

// Whats lists the things that happen to messages.
func Whats() []What {
	return []What{Received, NotOurs, Poisoned, Extended, Lost, Returned, Deleted}
}
