package fleet

import (
	"context"
	"sync"
	"time"

	"github.com/nth-project/nth/pkg/sqs"
)

// work is what one message asks for. It goes back into the queue if a part of it must wait, and only when every part
// has come to an end: a message cannot be held and given back at once.
type work struct {
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
	notice sqs.Notice
	work   *work
	once   sync.Once
	// others are of messages that say the same.
	others []*task
	// lost tells that the machine is gone at the end of its time, although people would have it kept, and replaced that its group is asked for
	// another one. The fleet's mutex guards them.
	lost, replaced bool
	// listed tells that EC2 lists what a message told of, so that the message need not wait for its time, and lifts that its event is over
	// for which the node is closed.
	listed, lifts bool

	mu       sync.Mutex
	released bool
	letGo    context.CancelFunc // ends what is held for it; nil if nothing is
	limit    *time.Timer        // releases it; nil if nothing does
}

// releasedBy says how to end what is held for the task, unless nothing needs to be held any more.
func (t *task) releasedBy(letGo context.CancelFunc) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.letGo = letGo
	return !t.released
}

// release ends what is held for the task.
func (t *task) release() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.released = true
	if t.letGo != nil {
		t.letGo()
	}
	if t.limit != nil {
		t.limit.Stop()
	}
}

// releaseAfter ends what is held for the task after that time, unless that has ended before.
func (t *task) releaseAfter(left time.Duration) {
	if left <= 0 {
		t.release()
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.limit != nil {
		t.limit.Stop()
	}
	if !t.released {
		t.limit = time.AfterFunc(left, t.release)
	}
}

// isReleased tells whether nothing needs to be held for the task any more.
func (t *task) isReleased() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.released
}

// done says that nothing is left to be done for it.
func (t *task) done() { t.end(false, 0) }

// again says that it is worth another look after that time.
func (t *task) again(after time.Duration) { t.end(true, after) }

// failed says that it did not work out this time.
func (t *task) failed() { t.end(true, t.pause()) }

// follow leaves to another task what both are for. What EC2 keeps in mind needs no message beside that, and its plan looks again later.
func (t *task) follow(other *task) {
	_, own := t.work.message.(*plan)
	switch {
	case own:
		t.again(lookPause)
	case t.listed:
		t.done()
	default:
		other.others = append(other.others, t)
	}
}

// pause is how long the task is left alone after a failure. What is urgent is not left alone for long, until it is too
// late. It goes back into the queue all the same: another process may have a better way to EC2 and to the API server. A
// message is received some 25 times in a spot interruption's two minutes, and fifty in the ten of a Capacity Block's end, so that
// none is a dead letter for that.
func (t *task) pause() time.Duration {
	if ev := t.notice.Event; urgent(ev) {
		return pauseBefore(time.Until(ev.Deadline), t.work.pause)
	}
	return t.work.pause
}

func (t *task) end(later bool, after time.Duration) {
	t.once.Do(func() {
		t.release()
		t.work.ended(later, after)
		for _, other := range t.others {
			other.end(later, after)
		}
	})
}

func (w *work) ended(later bool, after time.Duration) {
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
