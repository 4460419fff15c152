package fleet

import (
	"context"
	"slices"
	"time"

	"github.com/nth-project/nth/pkg/asg"
	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/sqs"
	"github.com/nth-project/nth/pkg/state"
)

// Hooks holds and completes lifecycle actions, which Auto Scaling announces in messages. It ignores those of hooks that the settings do not name.
// asg.HookClient implements Hooks.
type Hooks interface {
	// Hold sends heartbeats for an action until ctx ends or Auto Scaling does not wait any more.
	Hold(ctx context.Context, action asg.Action)
	// Complete completes the action with the result for that outcome; "" for a launch, which has none. It retries until it has succeeded or
	// Auto Scaling does not wait any more. An error means that ctx has ended before.
	Complete(ctx context.Context, action asg.Action, outcome event.Outcome) error
}

// action returns the lifecycle action of a hint. The caller makes sure that the hint has one.
func (h *hint) action() asg.Action {
	return asg.Action{
		Group: h.Hook.Group, Hook: h.Hook.Name, Instance: h.Instance, Token: h.Hook.Token, Launch: h.Hook.Launch, Back: h.Hook.Back,
	}
}

// completes reports whether a hint has a lifecycle action, and nth-queue completes actions.
func (t *term) completes(h *hint) bool {
	return h.Hook != nil && t.opts.Hooks != nil && !t.opts.DryRun
}

// completesLaunch reports whether a hint's lifecycle action is that of a launch, and nth-queue completes actions of launches.
func (t *term) completesLaunch(h *hint) bool {
	return h.About == sqs.Launch && t.opts.CompleteLaunches && t.completes(h)
}

// hold begins to send heartbeats for the lifecycle action of a hint, until the action is completed or the hint is settled. It does nothing for a hint
// without an action, or if heartbeats are sent already. begun reports whether hold has done anything.
func (t *term) hold(inst *instance, h *hint) (begun bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	settled, held := inst.hints[h.key] != h, h.release != nil
	if !t.completes(h) || settled || held {
		return false
	}
	ctx, release := context.WithCancel(t.ctx)
	h.release = release
	t.work.Go(func() { t.opts.Hooks.Hold(ctx, h.action()) })
	return true
}

// complete has a goroutine complete the lifecycle action of a hint, and then settle the hint. It does nothing if that was begun before. It is for a
// hint for which no session runs.
func (t *term) complete(inst *instance, h *hint, outcome event.Outcome) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !h.busy {
		h.busy = true
		t.work.Go(func() { t.completeAndSettle(inst, h, outcome) })
	}
}

// completeAndSettle completes the lifecycle action of a hint, if it has one, and settles the hint. The caller has set h.busy. If the outcome is that
// operators opted the node out, the action is left to its timeout.
func (t *term) completeAndSettle(inst *instance, h *hint, outcome event.Outcome) {
	if t.completes(h) && (h.About == sqs.Launch || t.wantsDrain(h)) {
		t.mu.Lock()
		if h.release != nil {
			h.release()
		}
		t.mu.Unlock()
		if outcome == event.LeftAlone {
			t.opts.Log.Infof("%s: the annotation "+drain.ActionAnnotation+" on the node of the instance %s forbids the drain; nth-queue does not complete the lifecycle hook %q of the Auto Scaling group %q, so that it times out",
				h.describe(), inst.id, h.Hook.Name, h.Hook.Group)
		} else if t.opts.Hooks.Complete(t.ctx, h.action(), outcome) != nil {
			return // The term has ended, and returnAll returns the messages.
		}
	}
	t.done(inst, h)
	t.queue.Add(inst.id)
}

// judgeLaunch decides about a hint of a launch whose instance has the Node on: it completes the lifecycle hook once the node is Ready. An instance that
// comes from a warm pool may still have the cordon from its way into the pool: the session takes that back first. It returns when to decide again; 0
// if only after news.
func (t *term) judgeLaunch(inst *instance, h *hint, on node) time.Duration {
	age := time.Since(h.received)
	isCordoned := slices.ContainsFunc(t.entriesOf(inst, on, nil), func(e state.Entry) bool {
		return e.OnNode && e.Event.Kind == event.ASGTermination && h.isAfter(e)
	})
	switch {
	case !t.completesLaunch(h): // The settings leave launches alone.
		t.done(inst, h)
	case age >= launchTimeout:
		t.opts.Log.Warnf("launch of instance %s: its node %q is not Ready after %s; nth-queue waits no longer, and leaves the lifecycle hook to its timeout", inst.id, on.name, launchTimeout)
		t.done(inst, h)
	case !on.ready:
		t.awaitLaunch(inst, h)
		return launchTimeout - age
	case isCordoned: // pursue takes the cordon back.
		t.hold(inst, h)
		return askPause
	default:
		t.complete(inst, h, "")
	}
	return 0
}

// isAfter reports whether a hint's event was announced after that of an entry: SQS does not keep the order.
func (h *hint) isAfter(e state.Entry) bool { return h.Event.Noticed.After(announcedAt(e)) }

// awaitLaunch holds the lifecycle hook of a launch while the node is not Ready, and logs that the first time.
func (t *term) awaitLaunch(inst *instance, h *hint) {
	if t.hold(inst, h) {
		t.opts.Log.Infof("launch of instance %s: nth-queue sends heartbeats for the lifecycle hook %q of the Auto Scaling group %q until the node is Ready, for %s at most",
			inst.id, h.Hook.Name, h.Hook.Group, launchTimeout)
	}
}
