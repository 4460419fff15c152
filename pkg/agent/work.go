package agent

import (
	"context"
	"slices"
	"time"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/loop"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/systemd"
)

// work is what is being done to the node: a guard, or an uncordon.
type work struct {
	goal policy.Goal
	task *drain.Task // the guard's; nil for an uncordon
	// guardGoal is the goal as the guard last got it, with its times on the monotonic clock.
	guardGoal drain.Goal
	cancel    context.CancelFunc
	stopping  bool
	began     time.Time
	done      chan struct{}

	// state is what the guard has reported of the node last, for the generation reported.
	reported int
	state    drain.State
	targets  string // which load balancers are waited for; empty if none are
}

// pursueGoal makes the work in progress fit the goal: it starts, adjusts or stops work. A guard has to end before an uncordon begins, and the
// other way round: the next call after that end starts the new work.
func (a *Agent) pursueGoal(ctx context.Context, goal policy.Goal) {
	closing := goal.Action == policy.Drain || goal.Action == policy.Cordon
	switch w := a.work; {
	case w == nil && closing:
		a.startGuard(ctx, goal)
	case w == nil && goal.Action == policy.Uncordon:
		a.startUncordon(ctx, goal)
	case w == nil || w.stopping: // Nothing is to be done, or what was begun has to end first.
	case closing && w.task != nil:
		a.adjust(goal)
	case goal.Action == policy.Uncordon && w.task == nil: // This uncordon is under way.
	default:
		w.stopping, w.state = true, drain.State{} // Later reports would be about work that ends.
		w.cancel()
	}
}

// recordTimeout is how long work waits for the record before it begins. It does not wait for a disk that hangs: the Node's
// annotation says as well what was done.
const recordTimeout = 250 * time.Millisecond

// startGuard starts a guard that cordons or drains for the goal. Its progress is posted.
func (a *Agent) startGuard(parent context.Context, goal policy.Goal) {
	a.generation++
	guardGoal := a.guardGoal(goal)
	task := drain.NewTask(guardGoal)
	a.start(parent, work{goal: goal, task: task, guardGoal: guardGoal}, func(ctx context.Context) (then func()) {
		a.cfg.Node.Guard(ctx, task, func(p drain.Progress) { a.post(func() { a.handleProgress(p) }) })
		return func() {} // It has reported what it did.
	})
	for _, e := range a.unfinished() {
		if e.Changed.Before(a.began) { // An earlier process has begun it, and this one continues.
			a.emitBegun(e)
		}
	}
}

// startUncordon starts to uncordon the node, which waits until the kubelet of this boot has reported the Node Ready.
func (a *Agent) startUncordon(parent context.Context, goal policy.Goal) {
	var booted drain.Booted
	if !a.cfg.Remote {
		booted = func(id string) bool { return id == a.cfg.BootID }
	}
	a.emit(state.Transition{Kind: state.Begun, Action: string(policy.Uncordon), Reason: goal.Reason, Entry: a.entry(goal.Event.ID)})
	a.start(parent, work{goal: goal}, func(ctx context.Context) (then func()) {
		result, err := a.cfg.Node.Uncordon(ctx, booted)
		return func() { a.handleUncordon(result, err) }
	})
}

// start makes w the work in progress, and runs do for it in a goroutine: once the record is on disk, or recordTimeout is over. What do returns is
// posted.
func (a *Agent) start(parent context.Context, w work, do func(context.Context) (then func())) {
	ctx, cancel := context.WithCancel(parent)
	w.cancel, w.began, w.done = cancel, time.Now(), make(chan struct{})
	a.work, a.total, a.left = &w, 0, 0
	written := a.written
	a.tasks.Go(func() {
		defer close(w.done)
		if written != nil {
			loop.Await(ctx, written, recordTimeout)
		}
		then := func() {}
		if ctx.Err() == nil {
			then = do(ctx)
		}
		a.post(func() { then(); cancel(); a.work = nil })
	})
}

// guardGoal converts a goal of the policy to one for the guard, whose deadlines are on the monotonic clock.
func (a *Agent) guardGoal(goal policy.Goal) drain.Goal {
	seen, limited, shutdown := a.cfg.Remote, false, false
	for _, e := range a.cfg.Record.Entries() {
		seen = seen || e.BootID == a.cfg.BootID && !e.CordonedAt.IsZero() // A Node that was cordoned in this boot was there in this boot.
		if slices.Contains(goal.Events, e.Event.ID) {
			limited, shutdown = limited || e.LeftAlone, shutdown || e.Event.Kind == event.Shutdown
		}
	}
	return drain.Goal{
		Generation: a.generation,
		Claim: drain.Claim{
			Event: goal.Event.ID, Kind: string(goal.Event.Kind), Events: goal.Events, BootID: a.cfg.BootID, Since: a.now().UTC(),
		},
		Close: goal.Close, Evict: goal.Action == policy.Drain, Before: goal.Before, Shutdown: shutdown, NodeSeen: seen, Limited: limited,
		Hard: a.monotonic(goal.Hard), Soft: a.monotonic(goal.Soft), TimeEnds: a.monotonic(goal.TimeEnds),
	}
}

// monotonic converts a time of the loop's clock to the monotonic clock, which stops while the machine sleeps.
func (a *Agent) monotonic(at time.Time) time.Time {
	if at.IsZero() {
		return at
	}
	return time.Now().Add(at.Sub(a.now()))
}

// upToDate reports whether the deadline that the guard has, on the monotonic clock, is still right for a deadline of the goal. It is not if that
// has moved, or if the machine has slept.
func (a *Agent) upToDate(guards, deadline time.Time) bool {
	return guards.Sub(a.monotonic(deadline)).Abs() < tick/10
}

// adjust gives the standing guard the goal, if that differs from the one that the guard has or a deadline has moved on the monotonic clock.
func (a *Agent) adjust(goal policy.Goal) {
	w := a.work
	same := goal.Action == w.goal.Action && slices.Equal(goal.Events, w.goal.Events) && goal.Close == w.goal.Close && goal.Before.Equal(w.goal.Before) &&
		a.upToDate(w.guardGoal.Hard, goal.Hard) && a.upToDate(w.guardGoal.Soft, goal.Soft) && a.upToDate(w.guardGoal.TimeEnds, goal.TimeEnds)
	joins := w.joins(goal)
	w.goal = goal
	if same && !joins {
		return
	}
	if joins {
		a.generation++
	}
	w.guardGoal = a.guardGoal(goal)
	w.state = drain.State{Closed: w.state.Closed, Ours: w.state.Ours, Limited: w.state.Limited} // The guard reports the rest again.
	w.task.Adjust(w.guardGoal)
}

// joins reports whether a new goal needs a new generation: an event has joined, or the guard has left the node open, or pods on it, because operators
// had uncordoned it, and the goal wants more now.
func (w *work) joins(goal policy.Goal) bool {
	more := goal.Close && (!w.goal.Close || w.state.Open || goal.Before.IsZero() && !w.goal.Before.IsZero())
	return more || slices.ContainsFunc(goal.Events, func(id string) bool { return !slices.Contains(w.goal.Events, id) })
}

// resultNow asks the guard how far it has come; nil if there is no guard, as when an event's time was over before.
func (a *Agent) resultNow() *state.Result {
	if a.work == nil || a.work.task == nil {
		return nil
	}
	a.result = a.work.task.Result()
	r := a.result
	return &state.Result{Evicted: r.Evicted, Deleted: r.Deleted, Skipped: r.Skipped, Left: r.Left, HeldBy: r.HeldBy}
}

// stopWork stops the work in progress at the end of Run, waits for its end, and records how far it came. The next process continues it.
func (a *Agent) stopWork() {
	if a.work == nil {
		return
	}
	a.work.stopping = true
	a.work.cancel()
	<-a.work.done
	a.handleNews()
}

// handleUncordon handles the end of an uncordon.
func (a *Agent) handleUncordon(result drain.UncordonResult, err error) {
	w := a.work
	if err != nil && w.stopping { // It was stopped, and has not failed.
		return
	}
	end := state.Transition{
		Action: string(policy.Uncordon), Reason: w.goal.Reason, Entry: a.entry(w.goal.Event.ID),
		Detail: result.LeftTo(), Outcome: string(result), Err: err, Took: time.Since(w.began),
	}
	a.logUncordon(end)
	if err != nil {
		a.recordUncordonFailed(end)
	} else {
		a.recordUncordoned(end, result == drain.UncordonOpened)
	}
}

// logUncordon logs how an uncordon has ended.
func (a *Agent) logUncordon(end state.Transition) {
	switch {
	case end.Err != nil:
		a.logger(systemd.DrainIncomplete, end.Entry).WithError(end.Err).Error("the node could not be uncordoned; retrying")
	case end.Detail != "":
		a.logger(systemd.CordonLeft, end.Entry).Infof("%s: the cordon is left to %s, who still needs it", end.Reason, end.Detail)
	case end.Outcome == string(drain.UncordonLifted):
		a.logger(systemd.Uncordoned, end.Entry).Info(a.would("uncordoned the node: " + end.Reason))
	case end.Outcome == string(drain.UncordonNodeGone):
		a.logger(systemd.Uncordoned, end.Entry).Info("the Node no longer exists; nothing to uncordon")
	default:
		a.logger(systemd.Uncordoned, end.Entry).Info("no cordon of nth's is on the node; nothing to uncordon")
	}
}

// recordUncordoned records for all events that nothing of ours is on the node any more, and reports the end of the uncordon for each event that
// waited for it. overruled: an operator had lifted the cordon.
func (a *Agent) recordUncordoned(end state.Transition, overruled bool) {
	sit := a.situation()
	changed := a.cfg.Policy.Undone(sit, overruled)
	a.put(changed...)
	for _, e := range changed {
		before, met := policy.Find(sit.Past, e.Event.ID)
		if before.Phase == state.Undoing {
			end.Kind, end.Entry = state.Done, e
			a.emit(end)
		} else { // The cordon was this event's, too.
			a.emitChange(before, met, e)
		}
	}
}

// recordUncordonFailed records the failure in each entry that waits for the uncordon. It reports the first of several in a row, for the most urgent
// event.
func (a *Agent) recordUncordonFailed(end state.Transition) {
	for _, e := range a.cfg.Record.Entries() {
		if e.Phase != state.Undoing {
			continue
		}
		first := e.Error == "" && e.Event.ID == end.Entry.Event.ID
		e.Error, e.Changed = end.Err.Error(), a.now()
		a.put(e)
		if first {
			end.Kind, end.Entry = state.Failed, e
			a.emit(end)
		}
	}
}

// first is the entry of the most urgent event of the goal, under whose name the work is reported. It need not be the goal's Event:
// operators may have lifted the cordon for this one, whose drain continues.
func (a *Agent) first() state.Entry { return a.entry(a.work.goal.Events[0]) }

// unfinished are the entries of the goal's events for which the guard still has work to do, the most urgent first.
func (a *Agent) unfinished() []state.Entry {
	var all []state.Entry
	entries := a.cfg.Record.Entries() // Once, since it copies them.
	for _, id := range a.work.goal.Events {
		if e, met := policy.Find(entries, id); met && e.UnderWay() && !e.LeftAlone {
			all = append(all, e)
		}
	}
	return all
}

// adoptPause is the pause before a failed attempt to read the claim is repeated.
const adoptPause = 5 * time.Second

// readClaim reads the claim on the Node, and repeats that until it succeeds. If the record has been lost, the claim shows that the cordon is ours.
func (a *Agent) readClaim(ctx context.Context) {
	for {
		claim, ours, err := a.cfg.Node.Claim(ctx)
		if err == nil && ours {
			a.post(func() { a.adoptClaim(claim) })
		}
		if err == nil || !loop.Await(ctx, nil, adoptPause) {
			return
		}
	}
}

// adoptClaim records a cordon of ours that the record does not know of: it was lost, or its last entries never reached the disk. A claim does not
// describe the event, so a new entry is Missing until its source announces it: nothing new begins for it, and if it is not announced, the cordon
// is lifted in time.
func (a *Agent) adoptClaim(claim drain.Claim) {
	entries := a.cfg.Record.Entries()
	if slices.ContainsFunc(entries, func(e state.Entry) bool { return e.OnNode && e.Phase != state.Closed }) {
		return
	}
	since := event.CredibleTime(claim.Since)
	if since.IsZero() {
		since = a.now()
	}
	e, known := policy.Find(entries, claim.Event)
	if !known || e.Phase == state.Closed {
		e = state.Entry{Event: event.Event{ID: claim.Event, Kind: event.Kind(claim.Kind)}, FirstSeen: since, Missing: a.now()}
	}
	if !e.Acted() {
		e.Phase, e.BootID, e.Changed = state.Cordoned, claim.BootID, a.now()
	}
	e.CordonedAt, e.CordonStamp, e.ActedFor, e.OnNode = since, claim.Stamp, since, true
	a.put(e)
	a.logger(systemd.Cordoned, e).Warnf("nth had cordoned the node, which its record does not say; nth uncordons it when %s is over", e.Event.Kind)
}
