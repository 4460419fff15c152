package fleet

import (
	"context"
	"slices"
	"time"

	"github.com/nth-project/nth/pkg/asg"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/sqs"
	"github.com/nth-project/nth/pkg/state"
)

// Hooks holds and completes the lifecycle actions that messages tell of, if the settings say that their hooks are to be completed.
// asg.HookClient implements it.
type Hooks interface {
	// Hold sends heartbeats for an action until ctx ends or Auto Scaling does not wait any more.
	Hold(ctx context.Context, action asg.Action)
	// Complete completes the action with the result for that outcome, if there is one; a launch has no outcome. It tries again until it has
	// succeeded or Auto Scaling does not wait any more. The error is that of ctx.
	Complete(ctx context.Context, action asg.Action, outcome event.Outcome) error
}

// action is the lifecycle action of a hint that has one.
func (h *hint) action() asg.Action {
	return asg.Action{
		Group: h.Hook.Group, Hook: h.Hook.Name, Instance: h.Instance, Token: h.Hook.Token, Launch: h.Hook.Launch, Back: h.Hook.Back,
	}
}

// completes reports whether a hint has a lifecycle action that is to be held and completed.
func (t *term) completes(h *hint) bool {
	return h.Hook != nil && t.opts.Hooks != nil && !t.opts.DryRun
}

// completesLaunch reports whether a hint's lifecycle action is that of a launch, and is to be completed.
func (t *term) completesLaunch(h *hint) bool {
	return h.About == sqs.Launch && t.opts.CompleteLaunches && t.completes(h)
}

// hold holds the lifecycle action of a hint until that is settled or completed.
func (t *term) hold(in *instance, h *hint) {
	t.mu.Lock()
	settled, held := in.hints[h.key] != h, h.release != nil
	if !t.completes(h) || settled || held {
		t.mu.Unlock()
		return
	}
	ctx, release := context.WithCancel(t.ctx)
	h.release = release
	t.mu.Unlock()
	t.background(func(context.Context) { t.opts.Hooks.Hold(ctx, h.action()) })
}

// complete settles a hint for which nothing is left to be done on the node. A goroutine first completes its lifecycle action. A hint that is
// busy is being settled already.
func (t *term) complete(in *instance, h *hint, outcome event.Outcome) {
	t.mu.Lock()
	busy := h.busy
	h.busy = true
	t.mu.Unlock()
	if !busy {
		t.background(func(ctx context.Context) { t.finish(ctx, in, h, outcome) })
	}
}

// finish completes the lifecycle action of a hint that is busy, and settles the hint. The action for a node that was left alone, as operators
// want it, is left to its own timeout.
func (t *term) finish(ctx context.Context, in *instance, h *hint, outcome event.Outcome) {
	if t.completes(h) && (h.About == sqs.Launch || t.wantsDrain(h)) {
		t.mu.Lock()
		if h.release != nil {
			h.release()
		}
		t.mu.Unlock()
		if outcome == event.LeftAlone {
			t.opts.Log.Infof("%s: the node of the instance %s is opted out; the lifecycle hook %s of the Auto Scaling group %s is not completed and left to its timeout",
				h.describe(), in.id, h.Hook.Name, h.Hook.Group)
		} else if t.opts.Hooks.Complete(ctx, h.action(), outcome) != nil {
			return // The term ends.
		}
	}
	t.done(in, h)
	t.queue.Add(in.id)
}

// judgeLaunch completes a launch hook once the instance's node is Ready. An instance that comes back from a warm pool of running ones bears the
// cordon of its way there, which is lifted.
func (t *term) judgeLaunch(in *instance, h *hint, on node) time.Duration {
	age := time.Since(h.received)
	back := slices.ContainsFunc(t.entriesOf(in, on, nil), func(e state.Entry) bool { return e.OnNode && e.Event.Kind == event.ASGTermination })
	switch {
	case !t.completesLaunch(h):
		t.done(in, h)
	case age >= launchTimeout:
		t.opts.Log.Warnf("launch: node %q of the instance %s is not Ready after %s: its lifecycle hook is left to its timeout", on.name, in.id, launchTimeout)
		t.done(in, h)
	case !on.ready:
		t.awaitLaunch(in, h)
		return launchTimeout - age
	case back && !h.Hook.Back:
		t.hold(in, h)
		return asksAgain // The cordon is taken back first.
	default:
		t.complete(in, h, "")
	}
	return 0
}

// awaitLaunch holds a launch hook while its instance's node is not Ready, and says so.
func (t *term) awaitLaunch(in *instance, h *hint) {
	t.mu.Lock()
	first := h.release == nil
	t.mu.Unlock()
	if first {
		t.opts.Log.Infof("launch: the lifecycle hook %s of the Auto Scaling group %s is held until the node of %s is Ready; for %s at most",
			h.Hook.Name, h.Hook.Group, in.id, launchTimeout)
	}
	t.hold(in, h)
}
