package fleet

import (
	"context"
	"sync"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/sqs"
)

// messageWork is the work that one message asks for, in as many tasks as the message has notices. Only when all of them have ended is the
// message deleted, or returned if one of them has to wait or has failed.
type messageWork struct {
	message Message
	// pause is the delay after a failure.
	pause time.Duration

	mu    sync.Mutex
	open  int
	later bool
	after time.Duration
}

// task is the work for one notice. It ends when done, retry or retryAfter is called for the first time.
type task struct {
	notice  sqs.Notice
	message *messageWork
	once    sync.Once
	// term is that in which the message came; in a later one it comes again.
	term *leaseTerm
	// others are tasks of other messages about the same event, which end with this one.
	others []*task
	// lost is set if Auto Scaling terminates the machine when the budget is used up, although the budget is soft. replaced is set while
	// Options.Replace is being called. The fleet's mutex guards them.
	lost, replaced bool
	// listed is set if EC2 lists the message's event, so that the message need not be kept until the event's time. lifts is set if the
	// task is to take back what was done for an event that is over.
	listed, lifts bool

	// held is the context in which the lifecycle action is held for the task: until the term or the task ends, or release is called. limit
	// calls release when the event's budget is used up; the fleet's mutex guards it.
	held    context.Context
	release context.CancelFunc
	limit   *time.Timer
}

// newTask returns the task of a notice.
func (f *Fleet) newTask(notice sqs.Notice, message *messageWork) *task {
	t := &task{notice: notice, message: message, term: f.term.Load()}
	t.held, t.release = context.WithCancel(t.term.ctx)
	return t
}

// done ends the task: nothing is left to be done for it.
func (t *task) done() { t.end(false, 0) }

// retryAfter ends the task: its message is worth another look after that time.
func (t *task) retryAfter(after time.Duration) { t.end(true, after) }

// retry ends the task after a failure.
func (t *task) retry() { t.end(true, t.pause()) }

// mergeInto makes the task end with another one for the same event. A task for an event that EC2 lists ends now: the event is not
// forgotten without it.
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

// fromList reports whether the task was begun because EC2 lists its event, and not by a message.
func (t *task) fromList() bool {
	_, own := t.message.message.(*attempts)
	return own
}

// pause is how long to wait after a failure. The message is returned to the queue even if the time is short, because another process may
// be able to reach EC2 and the API server. An urgent one comes back quickly until its deadline is over: some 25 times in the two minutes
// of a spot interruption, and fifty times in the ten of a Capacity Block, which is too few to become a dead letter.
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

// retryPause is the delay after a message has failed that many times.
func retryPause(receives int) time.Duration {
	return min(firstPause<<min(max(receives-1, 0), 10), longestPause)
}

const (
	// urgentWithin is how close a deadline has to be for its event to be urgent. It is not urgent any more when the deadline has been over
	// for as long: a machine that still runs then, such as one that is to be retired, may do so for days.
	urgentWithin = 3 * time.Minute
	// urgentPause is the longest delay after a failure for an urgent event.
	urgentPause = 5 * time.Second
)

// isUrgent reports whether an event leaves no time to wait in. A spot interruption never does: its instance is gone, or about to go.
func isUrgent(ev event.Event) bool {
	if ev.Kind == event.SpotInterruption {
		return true
	}
	left := time.Until(ev.Deadline)
	return !ev.Deadline.IsZero() && left <= urgentWithin && left > -urgentWithin
}

// pauseBefore shortens the delay after a failure if so little time is left before the deadline.
func pauseBefore(left, pause time.Duration) time.Duration {
	if left > 0 && left <= urgentWithin {
		return min(pause, urgentPause)
	}
	return pause
}

// isUrgent reports whether the task must not wait for its turn.
func (t *task) isUrgent() bool { return t.lifts || isUrgent(t.notice.Event) }

// isUrgent reports whether requests about a node go before those about others.
func (f *Fleet) isUrgent(node string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.sessions[node]
	return s != nil && s.urgent.Load()
}
