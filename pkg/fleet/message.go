package fleet

import (
	"context"
	"slices"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/sqs"
)

// Message is a message that is in flight while its work is done. Exactly one of its methods is called, once.
type Message interface {
	// Done deletes the message: nothing is left to be done for it.
	Done()
	// Return puts the message back into the queue, to be received again after that time.
	Return(after time.Duration)
}

// Take has the instance of a message looked at, or those of its reservation. It deletes or returns the message when nothing is left to be done
// for n, the message's notice. receives is how often the message has been received. Take does not block. While this process does not lead, it
// returns the message to the queue at once.
func (f *Fleet) Take(n sqs.Notice, receives int, m Message) {
	t := f.term.Load()
	if t == nil {
		m.Return(0)
		return
	}
	d := &delivery{message: m, pause: retryPause(receives), open: 1, back: forGood}
	switch {
	case n.About == sqs.Running:
		t.noteStart(n)
		t.settle(d, forGood)
	case n.Reservation == "":
		t.addHint(n, d)
	case !t.background(func(ctx context.Context) { t.expandReservation(ctx, n, d) }):
		t.settle(d, 0)
	}
}

// delivery is a message, and how many notices of it are not settled yet: its own, and one for each instance of its reservation. When all are
// settled, the message is deleted, or returned to the queue if one notice asks for that.
type delivery struct {
	message Message
	pause   time.Duration // before it is tried again

	// The term's mutex guards what follows.
	open int
	back time.Duration // until it returns to the queue; forGood if it is deleted
}

// forGood, in the place of the time after which a message is received again, means that nothing is left to be done for it.
const forGood time.Duration = -1

// settle settles one notice of a message, for good, or until the message is received again after the time back. The last of a message's
// notices to be settled has the message deleted, or returned.
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

// hint is what one notice says of an instance, until it is settled. Messages about the same event share it.
type hint struct {
	sqs.Notice
	key      string
	received time.Time
	pause    time.Duration // before its message is tried again

	// The term's mutex guards what follows.
	deliveries []*delivery
	busy       bool // something is being done for it, at the end of which it is settled
	stands     bool // it was found to stand
	// bootID is the Node's when the hint was found to stand.
	bootID string
	// nowStopped is set if EC2 says now that its instance does not run.
	nowStopped bool
	// release ends the hold of its lifecycle hook; nil if that is not held.
	release context.CancelFunc
}

// addHint makes a hint of a notice, or adds the message to the hint of the same event, and has the instance looked at.
func (t *term) addHint(n sqs.Notice, d *delivery) {
	n = t.byOurClock(n)
	n.Event.Instance = n.Instance
	h := &hint{Notice: n, key: string(n.About) + " " + n.Event.ID, received: time.Now(), pause: d.pause, deliveries: []*delivery{d}}
	if n.Event.ID == "" && n.Hook != nil {
		h.key += n.Hook.Group + " " + n.Hook.Name + " " + n.Hook.Token
	}
	t.mu.Lock()
	if t.ctx.Err() != nil { // returnAll may have been here.
		t.mu.Unlock()
		t.settle(d, 0)
		return
	}
	in := t.instance(n.Instance)
	if same := in.hints[h.key]; same != nil {
		same.deliveries = append(same.deliveries, d)
	} else {
		in.hints[h.key] = h
	}
	t.mu.Unlock()
	t.queue.Add(n.Instance)
}

// noteStart takes in that an instance was started, which ends the stops before that. For an instance that is not known, nothing was done.
func (t *term) noteStart(n sqs.Notice) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if in := t.instances[n.Instance]; in != nil {
		in.started = t.byOurClock(n).Event.Noticed
		t.queue.Add(n.Instance)
	}
}

// byOurClock moves the times of a notice, which are by AWS's clock, to this machine's. A spot instance has two minutes from the notice, which
// is no later than its receipt.
func (t *term) byOurClock(n sqs.Notice) sqs.Notice {
	n.Event.Noticed, n.Event.Deadline, n.Event.Until = t.toLocalClock(n.Event.Noticed), t.toLocalClock(n.Event.Deadline), t.toLocalClock(n.Event.Until)
	if latest := time.Now().Add(spotNotice).Round(0); n.Event.Kind == event.SpotInterruption && n.Event.Deadline.After(latest) {
		n.Event.Deadline = latest
	}
	return n
}

// spotNotice is how long before it takes a spot instance EC2 gives notice.
const spotNotice = 2 * time.Minute

// toLocalClock converts a time by AWS's clock to this machine's. Less than skew is no difference: the Date header has whole seconds.
func (t *term) toLocalClock(at time.Time) time.Time {
	const skew = 3 * time.Second
	off := t.opts.Clock().Sub(time.Now().Round(0))
	if at.IsZero() || off.Abs() < skew {
		return at
	}
	return event.CredibleTime(at.Add(-off))
}

// expandReservation turns the end of a capacity reservation into one notice for each of its instances.
func (t *term) expandReservation(ctx context.Context, n sqs.Notice, d *delivery) {
	found, err := t.opts.EC2.InReservation(ctx, n.Reservation)
	if err != nil {
		t.opts.Log.Warnf("cannot ask EC2 about %s (%s): %s; retrying", n.Reservation, n.Event.Kind, err)
		t.settle(d, d.pause)
		return
	}
	t.mu.Lock()
	d.open += len(found)
	t.mu.Unlock()
	for _, id := range found {
		one := n
		one.Instance, one.Reservation = id, ""
		one.Event.ID += "-" + id
		t.addHint(one, d)
	}
	t.settle(d, forGood) // the notice of the reservation itself
}

// done settles a hint for good: its messages are deleted.
func (t *term) done(in *instance, h *hint) { t.endHint(in, h, forGood) }

// endHint removes a hint, stops to hold its lifecycle hook and settles its messages: for good, or until they are received again after the
// time back.
func (t *term) endHint(in *instance, h *hint, back time.Duration) {
	t.mu.Lock()
	if in.hints[h.key] != h { // It was settled already.
		t.mu.Unlock()
		return
	}
	delete(in.hints, h.key)
	if h.release != nil {
		h.release()
	}
	deliveries := slices.Clone(h.deliveries)
	t.mu.Unlock()
	for _, d := range deliveries {
		t.settle(d, back)
	}
}

const firstPause, longestPause = 2 * time.Second, time.Minute

// retryPause is the delay after something has failed that many times.
func retryPause(times int) time.Duration {
	return min(firstPause<<min(max(times-1, 0), 10), longestPause)
}

// describe names what a notice is about, for log lines: the kind of its event, or else the subject of the message.
func (h *hint) describe() string {
	if h.Event.Kind != "" {
		return string(h.Event.Kind)
	}
	return string(h.About)
}
