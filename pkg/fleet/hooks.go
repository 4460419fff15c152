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

// Hooks speaks to Auto Scaling about the lifecycle actions that messages tell of, as far as their hooks are ours.
type Hooks interface {
	// Hold makes Auto Scaling wait, for what began at that time, until ctx ends or nothing waits any more.
	Hold(ctx context.Context, instance string, hook sqs.Hook, since time.Time)
	// Complete ends the waiting with the result that the outcome calls for, if it calls for one; a launch has none. It repeats that until
	// it holds, or nothing waits any more; the error is ctx's.
	Complete(ctx context.Context, instance string, hook sqs.Hook, since time.Time, outcome event.Outcome) error
	// Loses tells whether the machine is gone when its time is over and pods are left, although people would have it kept. The error is
	// ctx's.
	Loses(ctx context.Context, instance string, hook sqs.Hook) (bool, error)
}

// launchTimeout is how long a new instance may take to become a Ready node.
const launchTimeout = 30 * time.Minute

// hasHook tells whether there is a lifecycle action to hold and to complete for a task.
func (f *Fleet) hasHook(t *task) bool {
	return t.notice.Hook != nil && f.opts.Hooks != nil && !f.opts.DryRun
}

// hold makes Auto Scaling wait for a task until it ends, or its event's budget does: that is people's word for how long a termination may
// take, however often its message comes again.
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

// checkTermination finds out, where people would have a machine kept whose time is over with pods left, whether it is. Where it is not, the drain
// has the end of its budget as its deadline.
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

// longestBudget is the longest that the settings allow.
const longestBudget = 48 * time.Hour

// startBudget takes in that the budget of a task's event counts from then, if that is not known to be longer ago. What waits in the line spends
// nothing. f.mu is held.
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

// limitHold ends what is held for a task with its event's budget, if that counts. f.mu is held.
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

// budgetEnd is when the budget of a task's event does; zero if it does not count yet, or there is none. f.mu is held.
func (f *Fleet) budgetEnd(t *task) time.Time {
	since, counts := f.budgetStarts[t.notice.Event.ID]
	if budget := f.policy()[t.notice.Event.Kind].Budget; counts && budget > 0 {
		return since.Add(budget)
	}
	return time.Time{}
}

// wantsDrain tells whether the rules want the node drained for a task. Where they do not, it is not for us to say when the machine may go: its
// lifecycle action is that of whoever does drain it.
func (f *Fleet) wantsDrain(t *task) bool {
	return f.policy()[t.notice.Event.Kind].Action == policy.Drain
}

// completeTask ends a task for which nothing more is to be done at the node: the lifecycle action is completed first, as its outcome calls for.
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

// endLeftAlone ends a task for which the node was left alone, as people want it: its lifecycle action was held for the event's budget, and is left
// to its own timeout.
func (f *Fleet) endLeftAlone(t *task) {
	if f.hasHook(t) && f.wantsDrain(t) {
		f.opts.Log.Infof("%s: people want the node left alone; the lifecycle hook %s of the Auto Scaling group %s is not completed and left to its timeout",
			describeNotice(t.notice), t.notice.Hook.Name, t.notice.Hook.Group)
	}
	t.done()
}

// groupWaits tells whether Auto Scaling waits for a task to terminate its instance.
func (f *Fleet) groupWaits(t *task) bool { return t.notice.About == sqs.Interruption && f.hasHook(t) }

// handleLaunch completes a launch hook once the instance's node is Ready. It waits for that only where the instance may be this cluster's.
func (f *Fleet) handleLaunch(t *task) {
	completes := f.opts.CompleteLaunches && f.hasHook(t)
	if !completes && !f.opts.LeaveUnknown {
		t.done()
		return
	}
	f.background(func(ctx context.Context) {
		switch {
		case f.endIfForeign(ctx, t), f.opts.ManagedOnly && !f.isManaged(ctx, t):
		case completes:
			f.completeReady(ctx, t)
		default:
			t.done()
		}
	})
}

// isManaged tells whether a task's instance has the tag of those that are managed, where EC2 can be asked. The task of one that has not is ended.
func (f *Fleet) isManaged(ctx context.Context, t *task) bool {
	if f.opts.Instances == nil {
		return true
	}
	_, managed := f.managedInstance(ctx, t)
	return managed
}

// managedInstance is what EC2 says of a task's instance, unless that is none of those that are managed, or EC2 cannot say: its task is ended then.
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

// completeReady completes a launch hook once the instance's node is Ready, or gives it up.
func (f *Fleet) completeReady(ctx context.Context, t *task) {
	limited, cancel := context.WithTimeout(ctx, launchTimeout)
	defer cancel()
	for {
		news := f.nodes.changes()
		if found, there := f.findNode(ctx, t.notice.Instance); there && found.ready {
			if !f.opts.ManagedOnly || f.isManaged(ctx, t) { // EC2 knows of it by now, if it did not before.
				f.completeTask(t, "")
			}
			return
		}
		if drain.Await(limited, news, launchTimeout) {
			continue
		}
		if ctx.Err() != nil {
			t.retryAfter(0)
			return
		}
		f.confirmNoNode(ctx, t)
		return
	}
}

// staysRunning tells whether an instance goes on for long after its node was drained for an event, and is of no use then: it runs, until it is
// stopped or retired or its risk comes true. One that is to be rebooted is back soon.
func staysRunning(ev event.Event) bool {
	return ev.Kind == event.RebalanceRecommendation || ev.Kind == event.ScheduledMaintenance && (ev.Code == "instance-stop" || ev.Code == "instance-retirement")
}

// wantsReplacement tells whether the group of a task's instance is to be asked for another: it stays, and is drained. f.mu is held.
func (s *session) wantsReplacement(t *task) bool {
	ev, f := t.notice.Event, s.fleet
	drained := s.outcomes[ev.ID] == event.Drained && s.record.entry(ev.ID).Phase == state.Drained
	return drained && f.opts.Replace != nil && !f.opts.DryRun && staysRunning(ev)
}

// requestReplacement asks the group of a task's instance for another, and ends the task then. The session goes on until that is done, so that nobody
// takes the event for done if it ends before.
func (s *session) requestReplacement(ctx context.Context, t *task) {
	f := s.fleet
	err := f.opts.Replace(ctx, t.notice.Instance)
	if ctx.Err() != nil {
		return // The task is given back with the session's end.
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
