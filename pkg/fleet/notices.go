package fleet

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/ec2"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/record"
	"github.com/nth-project/nth/pkg/sqs"
)

// Instances knows what EC2 knows.
type Instances interface {
	Look(ctx context.Context, id string) (found ec2.Instance, known bool, err error)
	// LookAnew is Look, and nothing counts that was said before.
	LookAnew(ctx context.Context, id string) (found ec2.Instance, known bool, err error)
	// InGroup are the IDs of the instances of an Auto Scaling group.
	InGroup(ctx context.Context, group string) ([]string, error)
	// InReservation are those of the instances that run in a capacity reservation.
	InReservation(ctx context.Context, reservation string) ([]string, error)
}

// interrupted finds the node that an interruption is for. EC2 is asked only where that makes a difference. What is to be ignored here may be
// wanted by others.
func (f *Fleet) interrupted(t *task) {
	if f.ignored(t) && !f.opts.LeaveUnknown {
		t.done()
		return
	}
	if t.notice.Reservation != "" {
		f.background(func(ctx context.Context) { f.reserved(ctx, t) })
		return
	}
	found, there := f.nodes.ofInstance(t.notice.Instance)
	switch {
	case there && !f.opts.ManagedOnly:
		f.begin(found, t)
	case !there && !f.nodes.anonymous() && !f.opts.ManagedOnly:
		f.unknown(t)
	default:
		f.background(func(ctx context.Context) { f.look(ctx, t) })
	}
}

func (f *Fleet) ignored(t *task) bool { return f.policy().Ignores(record.Entry{Event: t.notice.Event}) }

// begin begins what an interruption asks for at its node, unless that is over or nothing.
func (f *Fleet) begin(n node, t *task) {
	switch {
	case f.ignored(t):
		t.done()
		return
	case f.verified(t):
		f.background(func(ctx context.Context) { f.verify(ctx, n, t) })
		return
	}
	if !stale(t.notice) {
		f.hold(t)
		f.join(n, t)
		return
	}
	f.background(func(ctx context.Context) {
		over, err := f.overtaken(ctx, t.notice, n)
		switch {
		case err != nil:
			f.failed(ctx, t, err)
		case over:
			f.pass(t, n)
		default:
			f.hold(t)
			f.join(n, t)
		}
	})
}

// look asks EC2 about an interruption's instance, and then decides as if that had been known.
func (f *Fleet) look(ctx context.Context, t *task) {
	if f.opts.Instances == nil {
		f.unknown(t)
		return
	}
	instance, managed := f.managed(ctx, t)
	if !managed {
		return
	}
	found, there := f.nodes.ofInstance(t.notice.Instance)
	if !there {
		found, there = f.nodes.withDNS(instance.DNS)
	}
	if there {
		f.begin(found, t)
	} else {
		f.unknown(t)
	}
}

// failed gives a task back for which the API server or AWS could not be asked.
func (f *Fleet) failed(ctx context.Context, t *task, err error) {
	if ctx.Err() != nil {
		t.again(0)
		return
	}
	f.opts.Log.Warn(err)
	t.failed()
}

// unknown decides what becomes of a notice of an instance that has no Node, as far as the watch has told.
func (f *Fleet) unknown(t *task) {
	f.background(func(ctx context.Context) { f.confirm(ctx, t) })
}

// nowhere says that an instance has no Node here, and ends its task.
func (f *Fleet) nowhere(t *task, who owner) {
	if who == otherCluster {
		f.opts.Log.Infof("%s: the instance %s is another cluster's", about(t.notice), t.notice.Instance)
	} else {
		f.sayBare(t)
	}
	f.stranger(t)
}

// sayBare says that an instance has no Node here.
func (f *Fleet) sayBare(t *task) {
	f.opts.Log.Infof("%s: the instance %s has no Node in this cluster", about(t.notice), t.notice.Instance)
}

// bare ends a task of an instance of ours that has no Node: nobody else wants its message. One that is about to be taken may yet join.
func (f *Fleet) bare(t *task) {
	switch ev := t.notice.Event; {
	case f.awaited(t) && f.drains(t):
		f.letGo(t)
	case t.notice.About == sqs.Interruption && urgent(ev) && time.Now().Before(ev.Deadline):
		t.failed()
	default:
		f.sayBare(t)
		t.done()
	}
}

func about(n sqs.Notice) string {
	if n.Event.Kind != "" {
		return string(n.Event.Kind)
	}
	return string(n.About)
}

// stranger ends what is not ours: it is deleted, or left to others. It is not kept from them for longer than what failed here, as it comes
// back here as often as to them.
func (f *Fleet) stranger(t *task) {
	if f.opts.LeaveUnknown {
		t.failed()
		return
	}
	t.done()
}

// reserved makes of the end of a reservation one interruption for each of its instances.
func (f *Fleet) reserved(ctx context.Context, t *task) {
	if f.opts.Instances == nil {
		f.unknown(t)
		return
	}
	found, err := f.opts.Instances.InReservation(ctx, t.notice.Reservation)
	if err != nil {
		f.failed(ctx, t, err)
		return
	}
	notices := make([]sqs.Notice, 0, len(found))
	for _, id := range found {
		n := t.notice
		n.Instance, n.Reservation = id, ""
		n.Event.ID += "-" + id
		notices = append(notices, n)
	}
	if len(notices) == 0 {
		t.done()
		return
	}
	f.take(notices, t.work.pause, taskMessage{t})
}

// taskMessage makes a task the message of others, which it waits for.
type taskMessage struct{ *task }

// Done implements Message.
func (m taskMessage) Done() { m.done() }

// Return implements Message.
func (m taskMessage) Return(after time.Duration) { m.again(after) }

// uncordonLimit is how long an instance that has been started may take to be Ready.
const uncordonLimit = 15 * time.Minute

// started takes in that an instance runs. A drain for its stop is over, and a cordon of nth's from before was for what is over now.
func (f *Fleet) started(t *task) {
	found, there := f.nodes.ofInstance(t.notice.Instance)
	if there || !f.opts.LeaveUnknown && !f.nodes.anonymous() {
		f.runs(found, t)
		return
	}
	f.background(func(ctx context.Context) {
		if !f.passedOn(ctx, t) {
			found, _ := f.at(ctx, t.notice.Instance)
			f.runs(found, t)
		}
	})
}

// runs ends what is over at the node of an instance that runs, and lifts the cordon that was for that.
func (f *Fleet) runs(found node, t *task) {
	if found.name == "" {
		t.done()
		return
	}
	halted, busy := f.overtake(found, t.notice.Event.Noticed)
	if _, left := f.leftover(found, t); busy || halted == nil && !left {
		t.done()
		return
	}
	f.background(func(ctx context.Context) {
		if halted != nil {
			<-halted.ended
		}
		f.reopen(ctx, found.name, t)
	})
}

// leftover is a cordon of nth-queue's from before the instance ran, which is to be lifted.
func (f *Fleet) leftover(on node, t *task) (claim drain.Claim, left bool) {
	return on.cordon, f.opts.UncordonStarted && on.ours && on.cordon.Since.Before(t.notice.Event.Noticed)
}

// reopen takes back what nth-queue has left on the node of an instance that runs again.
func (f *Fleet) reopen(ctx context.Context, name string, t *task) {
	limited, cancel := context.WithTimeout(ctx, uncordonLimit)
	defer cancel()
	held, err := f.opts.Client.CoreV1().Nodes().Get(limited, name, metav1.GetOptions{}) // The watch may not have told of the cordon yet.
	if err != nil && !apierrors.IsNotFound(err) {
		f.failed(ctx, t, fmt.Errorf("reading node %q: %w", name, err))
		return
	}
	claim, left := f.leftover(f.nodes.of(held), t)
	if err != nil || !left {
		t.done()
		return
	}
	if !f.opts.DryRun {
		err = f.untaint(limited, name) // First, as the cordon tells the next attempt that something is left.
	}
	if err == nil {
		booted := func(id string) bool { return id != claim.BootID }
		_, err = f.target(name, nil).Uncordon(limited, booted)
	}
	if err != nil {
		f.failed(ctx, t, err)
		return
	}
	f.opts.Log.WithField(fieldNode, name).Info("the instance has been started: its node takes pods again")
	f.over(name, record.Entry{
		Event: event.Event{ID: claim.Event, Kind: event.Kind(claim.Kind)}, Ending: record.Completed, FirstSeen: claim.Since,
	})
	t.done()
}

// over tells that an event is over, and that nothing is left of it on the node.
func (f *Fleet) over(node string, e record.Entry) {
	if f.opts.Listeners == nil {
		return
	}
	now := time.Now()
	e.Phase, e.Changed = record.Closed, now.Round(0)
	told, end := f.opts.Listeners(node, func() []record.Entry { return append(f.beside(node, []record.Entry{e}), e) })
	defer end(false)
	for _, l := range told {
		l.Hear(record.Happening{What: record.ClosedWith, At: now, Node: node, Entry: e, Plan: f.policy().Describe(e)})
	}
}
