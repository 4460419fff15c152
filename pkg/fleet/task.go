package fleet

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/ec2"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/sqs"
	"github.com/nth-project/nth/pkg/state"
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
	_, own := t.message.message.(*attempts)
	switch {
	case own:
		t.retryAfter(pollInterval)
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

// completeWithoutNode ends a task of an instance of ours that has no Node: there is nothing to drain, and its group need not wait until
// the hook times out.
func (f *Fleet) completeWithoutNode(t *task) {
	f.opts.Log.Infof("%s: the instance %s has no Node in this cluster, and the Auto Scaling group %s need not wait for it",
		describeNotice(t.notice), t.notice.Instance, t.notice.Hook.Group)
	f.completeTask(t, event.Drained)
}

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
