package fleet

import (
	"context"
	"sync"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/sqs"
)

// messageWork is what one message asks for. It goes back into the queue if a part of it must wait, and only when every part
// has come to an end: a message cannot be held and given back at once.
type messageWork struct {
	message Message
	// pause is how long what failed is left alone.
	pause time.Duration

	mu    sync.Mutex
	open  int
	later bool
	after time.Duration
}

// task is one part of a message: one notice. One of its methods counts, the first that is called.
type task struct {
	notice  sqs.Notice
	message *messageWork
	once    sync.Once
	// others are of messages that say the same.
	others []*task
	// lost tells that the machine is gone at the end of its time, although people would have it kept, and replaced that its group is asked for
	// another one. The fleet's mutex guards them.
	lost, replaced bool
	// listed tells that EC2 lists what a message told of, so that the message need not wait for its time, and lifts that its event is over
	// for which the node is closed.
	listed, lifts bool

	// held ends with the term, or when nothing needs to be held for the task any more, which release says. limit releases it, if that is
	// known to be the case at some time; the fleet's mutex guards it.
	held    context.Context
	release context.CancelFunc
	limit   *time.Timer
}

// newTask makes a task of a notice in a message.
func (f *Fleet) newTask(notice sqs.Notice, message *messageWork) *task {
	t := &task{notice: notice, message: message}
	t.held, t.release = context.WithCancel(f.term.Load().ctx)
	return t
}

// done says that nothing is left to be done for it.
func (t *task) done() { t.end(false, 0) }

// retryAfter says that it is worth another look after that time.
func (t *task) retryAfter(after time.Duration) { t.end(true, after) }

// retry says that it did not work out this time.
func (t *task) retry() { t.end(true, t.pause()) }

// mergeInto leaves to another task what both are for. What EC2 keeps in mind needs no message beside that, and its plan looks again later.
func (t *task) mergeInto(other *task) {
	switch {
	case t.fromList():
		t.retryAfter(pollInterval)
	case t.listed:
		t.done()
	default:
		other.others = append(other.others, t)
	}
}

// fromList tells whether the task is for an event that EC2 lists, and of no message in the queue.
func (t *task) fromList() bool {
	_, own := t.message.message.(*attempts)
	return own
}

// pause is how long the task is left alone after a failure. What is urgent is not left alone for long, until it is too
// late. It goes back into the queue all the same: another process may have a better way to EC2 and to the API server. A
// message is received some 25 times in a spot interruption's two minutes, and fifty in the ten of a Capacity Block's end, so that
// none is a dead letter for that.
func (t *task) pause() time.Duration {
	if ev := t.notice.Event; isUrgent(ev) {
		return pauseBefore(time.Until(ev.Deadline), t.message.pause)
	}
	return t.message.pause
}

func (t *task) end(later bool, after time.Duration) {
	t.once.Do(func() {
		t.release()
		t.message.ended(later, after)
		for _, other := range t.others {
			other.end(later, after)
		}
	})
}

func (w *messageWork) ended(later bool, after time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if later && (!w.later || after < w.after) {
		w.later, w.after = true, after
	}
	if w.open--; w.open > 0 {
		return
	}
	if w.later {
		w.message.Return(w.after)
	} else {
		w.message.Done()
	}
}

const firstPause, longestPause = 2 * time.Second, time.Minute

// retryPause is how long a message is left alone that has failed so many times.
func retryPause(receives int) time.Duration {
	return min(firstPause<<min(max(receives-1, 0), 10), longestPause)
}

const (
	// pressing is how near a deadline leaves no time to wait in. One that has been over for as long is another matter: the machine is
	// there in spite of it, and may be for days, as those are whose retirement nobody has got to yet.
	urgentWithin = 3 * time.Minute
	// urgentPause is the longest that what failed is left alone with so little time.
	urgentPause = 5 * time.Second
)

// isUrgent tells whether an event leaves no time to wait in, whatever its kind. A spot interruption never does: its instance is gone, or
// about to go.
func isUrgent(ev event.Event) bool {
	if ev.Kind == event.SpotInterruption {
		return true
	}
	left := time.Until(ev.Deadline)
	return !ev.Deadline.IsZero() && left <= urgentWithin && left > -urgentWithin
}

// pauseBefore is how long what failed is left alone with so much time before its deadline, if it would be for that pause else.
func pauseBefore(left, pause time.Duration) time.Duration {
	if left > 0 && left <= urgentWithin {
		return min(pause, urgentPause)
	}
	return pause
}

// isUrgent tells whether a task leaves no time to wait in.
func (t *task) isUrgent() bool { return t.lifts || isUrgent(t.notice.Event) }

// isUrgent tells whether what is done for a node waits behind no other.
func (f *Fleet) isUrgent(node string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.sessions[node]
	return s != nil && s.urgent.Load()
}
