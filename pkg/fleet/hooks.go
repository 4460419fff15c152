package fleet

import (
	"context"
	"maps"
	"time"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/ec2"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/sqs"
	"github.com/nth-project/nth/pkg/state"
)

// Hooks holds and completes the lifecycle actions that messages tell of, if the settings say that their hooks are to be completed.
type Hooks interface {
	// Hold sends heartbeats for an action that began at that time, until ctx ends or Auto Scaling does not wait any more.
	Hold(ctx context.Context, instance string, hook sqs.Hook, since time.Time)
	// Complete completes the action with the result for that outcome, if there is one; a launch has no outcome. It tries again until it has
	// succeeded or Auto Scaling does not wait any more. The error is that of ctx.
	Complete(ctx context.Context, instance string, hook sqs.Hook, since time.Time, outcome event.Outcome) error
	// Loses reports whether the machine is terminated when the action times out, although pods are left on it and the budget is soft. The
	// error is that of ctx.
	Loses(ctx context.Context, instance string, hook sqs.Hook) (bool, error)
}

// launchTimeout is how long a new instance may take until its node is Ready.
const launchTimeout = 30 * time.Minute

// hasHook reports whether a task has a lifecycle action that is to be held and completed.
func (f *Fleet) hasHook(t *task) bool {
	return t.notice.Hook != nil && f.opts.Hooks != nil && !f.opts.DryRun
}

// hold holds the task's lifecycle action until the task ends or its event's budget is used up. The budget limits how long a termination
// may take, however often its message is received.
func (f *Fleet) hold(t *task) {
	if !f.hasHook(t) || !f.wantsDrain(t) {
		return
	}
	f.mu.Lock()
	f.limitHold(t)
	f.mu.Unlock()
	if t.held.Err() != nil {
		return
	}
	f.work.Go(func() {
		defer t.release()
		f.work.Go(func() { f.checkTermination(t) })
		f.opts.Hooks.Hold(t.held, t.notice.Instance, *t.notice.Hook, t.notice.Event.Noticed)
	})
}

// checkTermination finds out, if the budget is soft, whether Auto Scaling terminates the machine at its end all the same. If so, the end
// of the budget is a deadline for the drain.
func (f *Fleet) checkTermination(t *task) {
	if !f.policy()[t.notice.Event.Kind].SoftBudget {
		return
	}
	if loses, err := f.opts.Hooks.Loses(t.held, t.notice.Instance, *t.notice.Hook); err != nil || !loses {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	t.lost = true
	for _, s := range f.sessions {
		if s.tasks[t.notice.Event.ID] == t {
			s.announce(t.notice.Event.Kind)
		}
	}
}

// longestBudget is the longest budget that the settings allow.
const longestBudget = 48 * time.Hour

// startBudget makes the budget of a task's event count from that time, or from an earlier one that is known. Waiting for the node's turn
// does not count. f.mu is held.
func (f *Fleet) startBudget(t *task, since time.Time) {
	if f.policy()[t.notice.Event.Kind].Budget <= 0 {
		return
	}
	if before, known := f.budgetStarts[t.notice.Event.ID]; !known || since.Before(before) {
		maps.DeleteFunc(f.budgetStarts, func(_ string, since time.Time) bool { return time.Since(since) > longestBudget })
		f.budgetStarts[t.notice.Event.ID] = since
	}
	f.limitHold(t)
}

// limitHold ends the hold for a task when its event's budget is used up, if that counts already. f.mu is held.
func (f *Fleet) limitHold(t *task) {
	end := f.budgetEnd(t)
	if !f.groupWaits(t) || end.IsZero() || t.held.Err() != nil {
		return
	}
	if t.limit != nil {
		t.limit.Stop()
	}
	left := time.Until(end)
	if left <= 0 {
		t.release()
		return
	}
	timer := time.AfterFunc(left, t.release)
	context.AfterFunc(t.held, func() { timer.Stop() })
	t.limit = timer
}

// budgetEnd is when the budget of a task's event is used up; zero if it does not count yet, or there is none. f.mu is held.
func (f *Fleet) budgetEnd(t *task) time.Time {
	since, counts := f.budgetStarts[t.notice.Event.ID]
	if budget := f.policy()[t.notice.Event.Kind].Budget; counts && budget > 0 {
		return since.Add(budget)
	}
	return time.Time{}
}

// wantsDrain reports whether the rules want the node drained for a task. If they do not, somebody else drains it, and completes the
// lifecycle action.
func (f *Fleet) wantsDrain(t *task) bool {
	return f.policy()[t.notice.Event.Kind].Action == policy.Drain
}

// completeTask ends a task for which nothing is left to be done on the node. Its lifecycle action is completed first.
func (f *Fleet) completeTask(t *task, outcome event.Outcome) {
	if !f.hasHook(t) || t.notice.About == sqs.Interruption && !f.wantsDrain(t) {
		t.done()
		return
	}
	t.release()
	f.background(func(ctx context.Context) {
		if err := f.opts.Hooks.Complete(ctx, t.notice.Instance, *t.notice.Hook, t.notice.Event.Noticed, outcome); err != nil {
			t.retryAfter(0)
			return
		}
		t.done()
	})
}

// endLeftAlone ends a task whose node was left alone, as people want it. Its lifecycle action was held for the event's budget, and is left
// to its own timeout.
func (f *Fleet) endLeftAlone(t *task) {
	if f.hasHook(t) && f.wantsDrain(t) {
		f.opts.Log.Infof("%s: people want the node left alone; the lifecycle hook %s of the Auto Scaling group %s is not completed and left to its timeout",
			describeNotice(t.notice), t.notice.Hook.Name, t.notice.Hook.Group)
	}
	t.done()
}

// groupWaits reports whether Auto Scaling waits for a task before it terminates the instance.
func (f *Fleet) groupWaits(t *task) bool { return t.notice.About == sqs.Interruption && f.hasHook(t) }

// handleLaunch completes a launch hook once the instance's node is Ready, if the instance may be this cluster's.
func (f *Fleet) handleLaunch(t *task) {
	completes := f.opts.CompleteLaunches && f.hasHook(t)
	if !completes && !f.opts.LeaveUnknown {
		t.done()
		return
	}
	f.background(func(ctx context.Context) {
		switch {
		case f.endIfForeign(ctx, t), !f.isManaged(ctx, t):
		case completes:
			f.completeReady(ctx, t)
		default:
			t.done()
		}
	})
}

// isManaged reports whether a task's instance is to be taken care of with Options.ManagedOnly; without EC2 it is. The task of another one is
// ended.
func (f *Fleet) isManaged(ctx context.Context, t *task) bool {
	if !f.opts.ManagedOnly || f.opts.Instances == nil {
		return true
	}
	_, managed := f.managedInstance(ctx, t)
	return managed
}

// managedInstance returns what EC2 says about a task's instance. If that is not managed, or EC2 cannot be asked, the task is ended.
func (f *Fleet) managedInstance(ctx context.Context, t *task) (ec2.Instance, bool) {
	instance, known, err := f.opts.Instances.Look(ctx, t.notice.Instance)
	switch {
	case err != nil:
		f.retryLater(ctx, t, err)
	case known && !instance.Managed:
		f.opts.Log.Debugf("%s: the instance %s is not managed", describeNotice(t.notice), t.notice.Instance)
		f.endForeign(t)
	default:
		return instance, true
	}
	return ec2.Instance{}, false
}

// completeReady waits until the instance's node is Ready and completes the launch hook, or gives it up after launchTimeout.
func (f *Fleet) completeReady(ctx context.Context, t *task) {
	limited, cancel := context.WithTimeout(ctx, launchTimeout)
	defer cancel()
	for {
		news := f.nodes.changes()
		if found, there := f.findNode(ctx, t.notice.Instance); there && found.ready {
			if f.isManaged(ctx, t) { // EC2 may not have known it when the message came.
				f.completeTask(t, "")
			}
			return
		}
		if !drain.Await(limited, news, launchTimeout) {
			break
		}
	}
	if ctx.Err() != nil {
		t.retryAfter(0)
		return
	}
	f.confirmNoNode(ctx, t)
}

// staysRunning reports whether an instance goes on running for long after its node was drained for an event, although it is of no use:
// until it is stopped or retired, or its rebalance recommendation comes true. An instance that is rebooted is back soon.
func staysRunning(ev event.Event) bool {
	return ev.Kind == event.RebalanceRecommendation || ev.Kind == event.ScheduledMaintenance && (ev.Code == "instance-stop" || ev.Code == "instance-retirement")
}

// wantsReplacement reports whether a task's instance, which is drained but stays, is to be replaced. f.mu is held.
func (s *session) wantsReplacement(t *task) bool {
	ev, f := t.notice.Event, s.fleet
	drained := s.outcomes[ev.ID] == event.Drained && s.record.entry(ev.ID).Phase == state.Drained
	return drained && f.opts.Replace != nil && !f.opts.DryRun && staysRunning(ev)
}

// requestReplacement has a task's instance replaced, and then ends the task. The session goes on until then: if it ended before, the event
// would count as done.
func (s *session) requestReplacement(ctx context.Context, t *task) {
	f := s.fleet
	err := f.opts.Replace(ctx, t.notice.Instance)
	if ctx.Err() != nil {
		return // session.end ends the task.
	}
	if err != nil {
		f.opts.Log.Warnf("%s: %s", describeNotice(t.notice), err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if id := t.notice.Event.ID; s.tasks[id] == t {
		s.addNote(t.notice.Event, s.record.entry(id), time.Time{})
		t.done()
		s.removeTask(id)
	}
}
