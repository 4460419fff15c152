package agent

import (
	"context"
	"fmt"
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
	stopping  bool          // cancel was called
	began     time.Time     // by the loop's clock
	done      chan struct{} // closed when the work's goroutine ends

	// state is what the guard last reported of the node. reported is the generation of the goal that this report is about.
	state    drain.State
	reported int
	targets  string // which load balancers are waited for; empty if none are
}

// guards reports whether the work is a guard that has not been stopped.
func (w *work) guards() bool { return w.task != nil && !w.stopping }

// pursueGoal makes the work in progress fit the goal: it starts, adjusts or stops work. A guard has to end before an uncordon begins, and an
// uncordon before a guard: the loop calls pursueGoal again after that end.
func (a *Agent) pursueGoal(ctx context.Context, goal policy.Goal) {
	cordoning := goal.Action == policy.Drain || goal.Action == policy.Cordon
	switch w := a.work; {
	case w == nil && cordoning:
		a.startGuard(ctx, goal)
	case w == nil && goal.Action == policy.Uncordon:
		a.startUncordon(ctx, goal)
	case w == nil || w.stopping: // Nothing is to be done, or the old work has to end first.
	case cordoning && w.task != nil:
		a.adjust(goal)
	case goal.Action == policy.Uncordon && w.task == nil: // This uncordon is under way. Its reason may be clearer now.
		w.goal = goal
	default:
		w.stopping = true
		w.cancel()
	}
}

// recordTimeout is how long work waits for the record before it begins. If the disk hangs, work begins without the record: the claim on the
// Node also says what was done.
const recordTimeout = 250 * time.Millisecond

// startGuard starts a guard that cordons or drains for the goal. What the guard reports is posted to the loop.
func (a *Agent) startGuard(parent context.Context, goal policy.Goal) {
	a.generation++
	guardGoal := a.guardGoal(goal)
	task := drain.NewTask(guardGoal)
	a.start(parent, work{goal: goal, task: task, guardGoal: guardGoal}, func(ctx context.Context) (then func()) {
		a.cfg.Node.Guard(ctx, task, func(p drain.Progress) { a.post(func() { a.handleProgress(p) }) })
		return func() {} // The guard has already reported what it did.
	})
	for _, e := range a.unfinished() {
		if e.Changed.Before(a.began) { // An earlier process has begun this step, and the guard continues it.
			a.emitBegun(e)
		}
	}
}

// startUncordon starts an uncordon. On this machine, the uncordon waits until the kubelet of this boot has reported the Node Ready.
func (a *Agent) startUncordon(parent context.Context, goal policy.Goal) {
	var booted drain.Booted // nil: the uncordon does not wait
	if !a.cfg.Remote {
		booted = func(id string) bool { return id == a.cfg.BootID }
	}
	e := a.entry(goal.Event.ID)
	isFirstTry := e.Phase == state.Undoing && e.Error == "" // Not Undoing: somebody has uncordoned the node, and only the rest is taken off.
	if isFirstTry {
		a.emit(state.Transition{Kind: state.Begun, Action: string(policy.Uncordon), Reason: goal.Reason, Entry: e})
	}
	a.start(parent, work{goal: goal}, func(ctx context.Context) (then func()) {
		result, err := a.cfg.Node.Uncordon(ctx, booted)
		return func() { a.handleUncordon(result, err) }
	})
}

// start makes w the work in progress, and runs do for it in a goroutine, once the record is on disk or recordTimeout is over. When do has returned,
// the loop calls then, which handles the result; after that no work is in progress.
func (a *Agent) start(parent context.Context, w work, do func(context.Context) (then func())) {
	ctx, cancel := context.WithCancel(parent)
	w.cancel, w.began, w.done = cancel, a.now(), make(chan struct{})
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
	mayNotEvict, shutdown := false, false
	for _, e := range a.cfg.Record.Entries() {
		if slices.Contains(goal.Events, e.Event.ID) {
			mayNotEvict = mayNotEvict || e.LeftAlone // What forbids the cordon forbids evictions, too.
			shutdown = shutdown || e.Event.Kind == event.Shutdown
		}
	}
	return drain.Goal{
		Generation: a.generation,
		Claim: drain.Claim{
			Event: goal.Event.ID, Kind: string(goal.Event.Kind), Events: goal.Events, BootID: a.cfg.BootID, Since: a.now().UTC(),
		},
		Cordon: goal.Cordon, Evict: goal.Action == policy.Drain, Before: goal.Before, Shutdown: shutdown, NodeSeen: a.claimRead, MayNotEvict: mayNotEvict,
		Hard: a.monotonic(goal.Hard), Soft: a.monotonic(goal.Soft), TimeEnds: a.monotonic(goal.TimeEnds),
	}
}

// monotonic converts a time of the loop's clock to the monotonic clock, by which the guard's timers run: nobody can set that clock. It stops while
// the machine sleeps, so adjust converts again (upToDate). Zero stays zero.
func (a *Agent) monotonic(at time.Time) time.Time {
	if at.IsZero() {
		return at
	}
	return time.Now().Add(at.Sub(a.now()))
}

// upToDate reports whether the guard's deadline, on the monotonic clock, still means the goal's deadline. It does not if the goal's deadline has
// moved, or if the machine has slept.
func (a *Agent) upToDate(guardDeadline, goalDeadline time.Time) bool {
	return guardDeadline.Sub(a.monotonic(goalDeadline)).Abs() < tick/10
}

// adjust gives the guard the new goal, unless the guard has that goal already. The guard gets its goal again if a deadline is no longer up to date.
func (a *Agent) adjust(goal policy.Goal) {
	w := a.work
	sameGoal := goal.Action == w.goal.Action && goal.Cordon == w.goal.Cordon &&
		slices.Equal(goal.Events, w.goal.Events) && goal.Before.Equal(w.goal.Before)
	sameTimes := a.upToDate(w.guardGoal.Hard, goal.Hard) && a.upToDate(w.guardGoal.Soft, goal.Soft) &&
		a.upToDate(w.guardGoal.TimeEnds, goal.TimeEnds)
	asksForMore := w.asksForMore(goal) // Even the same goal may, once the guard has reported an uncordon.
	w.goal = goal
	if sameGoal && sameTimes && !asksForMore {
		return
	}
	if asksForMore {
		a.generation++
	}
	w.guardGoal = a.guardGoal(goal)
	w.state = drain.State{Cordoned: w.state.Cordoned, Ours: w.state.Ours} // The guard reports the rest again. Meanwhile, the node stays cordoned.
	w.task.Adjust(w.guardGoal)
}

// asksForMore reports whether a new goal asks for more than the guard's, so that the guard has to look at the Node again: see
// drain.Goal.Generation. That is so if an event has joined. It is also so if operators have uncordoned the node for the old goal, and the new goal
// is to close it again or to evict the pods that came since.
func (w *work) asksForMore(goal policy.Goal) bool {
	cordonsAgain := goal.Cordon && (!w.goal.Cordon || w.state.Uncordoned)
	evictsAll := goal.Cordon && goal.Before.IsZero() && !w.goal.Before.IsZero() // So far, only pods from before an uncordon had to go.
	joined := slices.ContainsFunc(goal.Events, func(id string) bool { return !slices.Contains(w.goal.Events, id) })
	return cordonsAgain || evictsAll || joined
}

// endResult returns what the guard has done, for the entry of a drain that ends now; nil if there is no guard, as when an event's time was over
// before a guard started. It also keeps that in a.result: emitNews reports whether the Node is gone.
func (a *Agent) endResult() *state.Result {
	if a.work == nil || a.work.task == nil {
		a.result = drain.Result{}
		return nil
	}
	a.result = a.work.task.Result()
	r := a.result
	return &state.Result{Evicted: r.Evicted, Deleted: r.Deleted, Skipped: r.Skipped, Left: r.Left, HeldBy: r.HeldBy}
}

// stopWork stops the work in progress at the end of Run, waits for its end, and handles what it has posted. The next process continues the work.
func (a *Agent) stopWork() {
	if a.work == nil {
		return
	}
	a.work.stopping = true
	a.work.cancel()
	<-a.work.done
	a.callPosted()
}

// recordReboot records RebootAt for the goal's events, and then calls requestReboot with the result of the write. RebootAt is on disk before the
// request, so that no event causes a second reboot.
func (a *Agent) recordReboot(ctx context.Context, goal policy.Goal) {
	var entries []state.Entry
	for _, id := range goal.Events {
		e := a.entry(id)
		if e.RebootAt = a.now(); e.RebootAt.Before(e.ActedAt) {
			e.RebootAt = e.ActedAt // That is of an earlier boot, whose clock was ahead. A request from before ActedAt would count as one of the past.
		}
		entries = append(entries, e)
	}
	a.cfg.Record.Put(func(err error) {
		a.post(func() { a.requestReboot(ctx, goal, err) })
	}, entries...)
}

// requestReboot is called when RebootAt was to be written for the goal's events; unwritten says why that failed. It requests the reboot, unless the
// write failed, the node is not drained any more, or another event has come. RebootAt stays all the same: nth does not ask again, and EC2 reboots
// the machine at the scheduled time.
func (a *Agent) requestReboot(ctx context.Context, goal policy.Goal, unwritten error) {
	sit, _ := a.decide()         // The disk may have been slow.
	for i, e := range sit.Past { // These are copies of the record's entries.
		if slices.Contains(goal.Events, e.Event.ID) {
			sit.Past[i].RebootAt = time.Time{} // The question is whether the reboot would still be due.
		}
	}
	if now := a.cfg.Policy.Decide(sit); !now.Reboot || !slices.Equal(now.Events, goal.Events) {
		return
	}
	said := state.Transition{Kind: state.Rebooting, Entry: a.entry(goal.Event.ID), Reason: goal.Reason}
	failed := said
	failed.Kind = state.RebootFailed
	if unwritten != nil {
		failed.Err = fmt.Errorf("cannot record it first: %w", unwritten)
		a.log(failed)
		return
	}
	a.log(said)
	if a.cfg.DryRun {
		return
	}
	a.tasks.Go(func() {
		if failed.Err = a.cfg.Reboot(ctx); failed.Err != nil {
			a.post(func() { a.log(failed) })
		}
	})
}

// handleUncordon handles the end of an uncordon.
func (a *Agent) handleUncordon(result drain.UncordonResult, err error) {
	w := a.work
	end := state.Transition{
		Action: string(policy.Uncordon), Reason: w.goal.Reason, Entry: a.entry(w.goal.Event.ID),
		Detail: result.LeftTo(), Outcome: string(result), Err: err, Took: a.now().Sub(w.began),
	}
	switch {
	case err != nil && w.stopping: // The error is that the work was stopped.
	case err != nil:
		a.recordUncordonFailed(end)
	default:
		// Without a Node, the kubelet of this boot may not have registered it yet.
		a.claimRead = a.claimRead || result != drain.UncordonNodeGone
		if end.Entry.Phase == state.Undoing { // Otherwise only what is left of a cordon was taken off, as somebody has uncordoned the node.
			a.logUncordoned(end)
		}
		a.recordUncordoned(end, result == drain.UncordonedBefore)
	}
}

// logUncordoned logs what a successful uncordon has found and done.
func (a *Agent) logUncordoned(end state.Transition) {
	switch {
	case end.Detail != "": // It names the program that still needs the cordon.
		a.logger(systemd.CordonLeft, end.Entry).Infof("the node stays cordoned, although %s: %s still needs the cordon", end.Reason, end.Detail)
	case end.Outcome == string(drain.UncordonLifted):
		a.logger(systemd.Uncordoned, end.Entry).Info(a.would("uncordoned the node: " + end.Reason))
	case end.Outcome == string(drain.UncordonNodeGone):
		a.logger(systemd.Uncordoned, end.Entry).Info("the Node no longer exists; nothing to uncordon")
	default:
		a.logger(systemd.Uncordoned, end.Entry).Info("the node has no cordon that nth set; nothing to uncordon")
	}
}

// recordUncordoned records, after an uncordon, that nth has nothing left on the node for any event. It emits the end of the uncordon for each event
// that waited for it. overruled: an operator had uncordoned the node before, which policy.Settings.Undone needs.
func (a *Agent) recordUncordoned(end state.Transition, overruled bool) {
	sit := a.situation()
	changed := a.cfg.Policy.Undone(sit, overruled)
	a.put(changed...)
	for _, e := range changed {
		before, _ := policy.Find(sit.Past, e.Event.ID)
		if before.Phase == state.Undoing {
			end.Kind, end.Entry = state.Done, e
			a.emit(end)
		} else { // This event did not wait for the uncordon, but the node was cordoned for it too.
			a.emitChange(before, true, e)
		}
	}
}

// recordUncordonFailed records the failure in the entry of each event of the goal. The first of several failures in a row is emitted, for the most
// urgent event.
func (a *Agent) recordUncordonFailed(end state.Transition) {
	for _, id := range a.work.goal.Events {
		e := a.entry(id)
		firstFailure := e.Error == "" && id == end.Entry.Event.ID // end has the entry of the most urgent event.
		e.Error, e.Changed = end.Err.Error(), a.now()             // The policy pauses from Changed on.
		a.put(e)
		if firstFailure {
			failed := end
			failed.Kind, failed.Entry = state.Failed, e
			a.emit(failed)
		}
	}
}

// first returns the entry of the most urgent event of the goal, for which the work is reported. That need not be goal.Event, which prefers an event
// that is not released.
func (a *Agent) first() state.Entry { return a.entry(a.work.goal.Events[0]) }

// unfinished returns the entries of the goal's events for which the guard still has work to do, the most urgent first.
func (a *Agent) unfinished() []state.Entry {
	var all []state.Entry
	entries := a.cfg.Record.Entries() // Once, since it copies them.
	for _, id := range a.work.goal.Events {
		if e, recorded := policy.Find(entries, id); recorded && e.UnderWay() && !e.LeftAlone {
			all = append(all, e)
		}
	}
	return all
}

// claimPause is the pause before a failed attempt to read the claim is repeated.
const claimPause = 5 * time.Second

// readClaim reads the claim on the Node once, and tries again until it succeeds or ctx ends. A claim that is nth's goes to adoptClaim.
func (a *Agent) readClaim(ctx context.Context) {
	for {
		claim, ours, err := a.cfg.Node.Claim(ctx)
		if err == nil {
			a.post(func() {
				if ours && !a.claimRead { // Otherwise an uncordon has taken it back since.
					a.adoptClaim(claim)
				}
				a.claimRead = true
			})
			return
		}
		if !loop.Await(ctx, nil, claimPause) { // ctx has ended.
			return
		}
	}
}

// adoptClaim records a cordon that nth has set, if the record does not know of one: it was lost, or its last entries did not reach the disk.
//
// A claim does not describe the event. So a new entry is Missing until its source announces the event. Nothing new begins for such an entry. If the
// event is not announced in time, it counts as withdrawn, and the cordon is taken back. One entry holds the cordon, so the claim's other events get
// theirs when they are announced. A reboot that nth may have requested counts as requested, since otherwise each boot would request another.
func (a *Agent) adoptClaim(claim drain.Claim) {
	since := event.CredibleTime(claim.Since)
	if since.IsZero() {
		since = a.now()
	}
	a.noteLostReboots(claim, since)
	entries := a.cfg.Record.Entries()
	cordonKnown := slices.ContainsFunc(entries, func(e state.Entry) bool { return e.OnNode && e.Phase != state.Closed })
	if cordonKnown {
		return
	}
	e, known := policy.Find(entries, claim.Event)
	if !known || e.Phase == state.Closed {
		e = state.Entry{Event: event.Event{ID: claim.Event, Kind: event.Kind(claim.Kind)}, FirstSeen: since, Missing: a.now(), RebootAt: e.RebootAt}
		if a.mayHaveRebooted(claim, e) {
			e.RebootAt = since
		}
	}
	if !e.Acted() { // The record has the event, and not its cordon.
		e.Phase, e.BootID, e.Changed = state.Cordoned, claim.BootID, a.now()
	}
	// The event was due when nth cordoned the node for it. If its source now announces a later start, it was moved since (policy.rescheduled).
	e.CordonedAt, e.CordonStamp, e.ActedAt, e.OnNode = since, claim.Stamp, since, true
	a.put(e)
	said := fmt.Sprintf("nth cordoned this Node for %s, as the Node's annotation says, but its own record of that is lost; nth will uncordon the node if the event is not announced again", e.Event.Kind)
	if claim.Event == drain.OnlyLabel {
		said = "nth set the label " + drain.ExcludeLabel + " on this Node, but its own record of why is lost; nth will remove the label unless an event needs it"
	}
	a.logger(systemd.Cordoned, e).Warn(said)
}

// noteLostReboots records for events of a claim, which was written at since, that nth may have requested the reboot. It does so if the record was lost:
// by its entries, the events were first seen after their claim.
func (a *Agent) noteLostReboots(claim drain.Claim, since time.Time) {
	for _, e := range a.cfg.Record.Entries() {
		recordWasLost := claim.Names(e.Event.ID) && e.FirstSeen.After(since)
		if recordWasLost && a.mayHaveRebooted(claim, e) && e.RebootAt.IsZero() {
			e.RebootAt = since
			a.put(e)
		}
	}
}

// mayHaveRebooted is for a record that was lost. It reports whether nth may already have requested a reboot for an entry's event: the claim is of an
// earlier boot, and the rules ask for a reboot. Otherwise, each boot would request another one. An entry that has only what the claim says has no code,
// so that any code with a reboot counts.
func (a *Agent) mayHaveRebooted(claim drain.Claim, e state.Entry) bool {
	return claim.BootID != a.cfg.BootID && (e.OnlyClaimed() && len(a.cfg.Policy[e.Event.Kind].Reboot) > 0 || a.cfg.Policy.Reboots(e.Event))
}
