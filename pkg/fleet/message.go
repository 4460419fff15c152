package fleet

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/loop"
	"github.com/nth-project/nth/pkg/sqs"
)

// Message is a message that is in flight while its work is done. Exactly one of its methods is called, once.
type Message interface {
	// Done deletes the message: nothing is left to be done for it.
	Done()
	// Return puts the message back into the queue, to be received again after that time.
	Return(after time.Duration)
}

// Take works on a message in the background: it has the instance of the message's notice n looked at, or all instances of the reservation. When
// nothing is left to be done for the notice, the message is deleted or returned to the queue. While this process does not lead, Take returns the
// message to the queue at once.
func (f *Fleet) Take(n sqs.Notice, m Message) {
	t := f.term.Load()
	if t == nil {
		m.Return(0)
		return
	}
	d := &delivery{message: m, open: 1, back: forGood}
	switch {
	case n.About == sqs.Running:
		t.noteStart(n)
		t.settle(d, forGood)
	case n.Reservation == "":
		t.addHint(n, d)
	default:
		t.mu.Lock() // serveTerm waits for t.work after it has had the mutex.
		isOver := t.ctx.Err() != nil
		if !isOver {
			t.work.Go(func() { t.expandReservation(n, d) })
		}
		t.mu.Unlock()
		if isOver {
			t.settle(d, 0)
		}
	}
}

// delivery is a message, and how many notices of the message are not settled yet: its own, and one for each instance of its reservation. When
// all are settled, the message is deleted, or returned to the queue if one notice asks for that.
type delivery struct {
	message Message

	// The term's mutex guards what follows.
	open int           // notices that are not settled yet
	back time.Duration // the time after which the message is received again; forGood if it is to be deleted
}

// forGood stands in the place of the time after which a message is received again. It means that the message is to be deleted.
const forGood time.Duration = -1

// settle settles one notice of a message. The message is to be deleted if back is forGood, and otherwise received again after the time back. That
// is done when the last of the message's notices is settled. If the notices differ, the shortest time wins.
func (t *term) settle(d *delivery, back time.Duration) {
	t.mu.Lock()
	if back != forGood && (d.back == forGood || back < d.back) {
		d.back = back
	}
	d.open--
	open, back := d.open, d.back
	t.mu.Unlock()
	switch {
	case open > 0: // Other notices of the message are not settled yet.
	case back == forGood:
		d.message.Done()
	default:
		d.message.Return(back)
	}
}

// hint is what one notice says of an instance, until the hint is settled. Messages about the same event share a hint.
type hint struct {
	sqs.Notice
	key      string    // identifies the hint among those of its instance
	received time.Time // when its first message was received

	// The term's mutex guards what follows.
	deliveries []*delivery // the messages about the event, each with other notices that it has
	busy       bool        // a goroutine completes the lifecycle action, and then settles the hint
	accepted   bool        // a look has found that the event concerns the Node
	// bootID is the Node's boot ID when the hint was accepted.
	bootID string
	// release ends the heartbeats for the lifecycle action; nil if none are sent.
	release context.CancelFunc
}

// addHint makes a hint of a notice, or adds the message to the hint of the same event, and has the instance looked at. d is the message's delivery.
func (t *term) addHint(n sqs.Notice, d *delivery) {
	n = t.withLocalTimes(n)
	n.Event.Instance = n.Instance
	h := &hint{Notice: n, key: string(n.About) + " " + n.Event.ID, received: time.Now(), deliveries: []*delivery{d}}
	t.mu.Lock()
	if t.ctx.Err() != nil { // The term has ended. returnAll may have passed this instance, so it would not return the message.
		t.mu.Unlock()
		t.settle(d, 0)
		return
	}
	inst := t.instance(n.Instance)
	if same := inst.hints[h.key]; same != nil {
		same.deliveries = append(same.deliveries, d)
	} else {
		inst.hints[h.key] = h
	}
	t.mu.Unlock()
	t.queue.Add(n.Instance)
}

// noteStart records for a look that an instance was started: events about an earlier stop are over then.
func (t *term) noteStart(n sqs.Notice) {
	t.mu.Lock()
	defer t.mu.Unlock()
	inst := t.instances[n.Instance]
	if inst == nil && slices.ContainsFunc(t.nodes.of(n.Instance), node.marked) { // The first poll has not found it yet.
		inst = t.instance(n.Instance)
	}
	if inst == nil { // Nothing was done that would be over.
		return
	}
	if at := t.withLocalTimes(n).Event.Noticed; at.After(inst.started) { // SQS does not keep the order.
		inst.started = at
	}
	t.queue.Add(n.Instance)
}

// withLocalTimes returns a notice with its times converted from AWS's clock to this machine's. The deadline of a spot interruption is at most
// sqs.SpotNotice from now, since EC2 gave the notice before it was received.
func (t *term) withLocalTimes(n sqs.Notice) sqs.Notice {
	n.Event.Noticed, n.Event.Deadline = t.toLocalClock(n.Event.Noticed), t.toLocalClock(n.Event.Deadline)
	if latest := time.Now().Add(sqs.SpotNotice).Round(0); n.Event.Kind == event.SpotInterruption && n.Event.Deadline.After(latest) {
		n.Event.Deadline = latest
	}
	return n
}

// toLocalClock converts a time by AWS's clock to this machine's clock. It ignores a difference of less than skew: AWS's clock is known from Date
// headers, which have whole seconds.
func (t *term) toLocalClock(at time.Time) time.Time {
	const skew = 3 * time.Second
	off := t.opts.Clock().Sub(time.Now().Round(0))
	if at.IsZero() || off.Abs() < skew {
		return at
	}
	return event.CredibleTime(at.Add(-off))
}

// expandReservation adds a hint for each instance of a capacity reservation that ends. It asks EC2 for the instances until EC2 answers, the
// reservation or the term ends. A message that was returned after each error would soon be a dead letter.
func (t *term) expandReservation(n sqs.Notice, d *delivery) {
	began := time.Now()
	found, err := t.opts.EC2.InReservation(t.ctx, n.Reservation)
	for ; err != nil; found, err = t.opts.EC2.InReservation(t.ctx, n.Reservation) {
		if t.ctx.Err() == nil {
			t.opts.Log.Warnf("cannot act on the %s of %s: %s; retrying", n.Event.Kind, "the capacity reservation "+n.Reservation, err)
		}
		isOver := !n.Event.Deadline.IsZero() && time.Now().After(n.Event.Deadline) // After some more attempts, SQS moves it to the dead letters.
		if isOver || !loop.Await(t.ctx, nil, pauseAfter(time.Since(began))) {
			t.settle(d, 0)
			return
		}
	}
	t.mu.Lock()
	d.open += len(found)
	t.mu.Unlock()
	for _, id := range found {
		forInstance := n
		forInstance.Instance, forInstance.Reservation = id, ""
		forInstance.Event.ID += "-" + id
		t.addHint(forInstance, d)
	}
	t.settle(d, forGood) // the notice of the reservation itself
}

// done settles a hint for good: its messages are deleted.
func (t *term) done(inst *instance, h *hint) { t.endHint(inst, h, forGood) }

// endHint settles a hint. It removes the hint from its instance, ends the heartbeats for the lifecycle action, and settles the messages: back is as
// for settle.
func (t *term) endHint(inst *instance, h *hint, back time.Duration) {
	t.mu.Lock()
	if inst.hints[h.key] != h { // Another goroutine has settled the hint.
		t.mu.Unlock()
		return
	}
	delete(inst.hints, h.key)
	if h.release != nil {
		h.release()
	}
	deliveries := slices.Clone(h.deliveries)
	t.mu.Unlock()
	for _, d := range deliveries {
		t.settle(d, back)
	}
}

// firstPause is the pause before something that has failed is tried again, and longestPause the longest one after further failures.
const firstPause, longestPause = 2 * time.Second, time.Minute

// pauseAfter returns the pause before something is tried again that has failed for that time: the longer it has failed, the longer the pause.
func pauseAfter(failing time.Duration) time.Duration {
	return min(max(failing, firstPause), longestPause)
}

// describe names what a hint is about, for log lines: the kind of its event, or else the subject of the message.
func (h *hint) describe() string { return cmp.Or(string(h.Event.Kind), string(h.About)) }
