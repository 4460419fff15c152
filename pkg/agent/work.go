package agent

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/loop"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
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

	// joined has, for each event of the goal, the generation in which it joined. state is what the guard has reported of the node last, for the
	// generation reported.
	joined   map[string]int
	reported int
	state    drain.State
	// held says what holds back pods, by their names, and targets which load balancers are waited for; empty if none are.
	held    map[string]string
	targets string
}

// workResult is how work ended.
type workResult struct {
	uncordon drain.UncordonResult
	err      error
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
	if closing && a.work.task != nil {
		a.beginSteps(goal)
	}
}

// recordTimeout is how long work waits for the record before it begins. It does not wait for a disk that hangs: the Node's
// annotation says as well what was done.
const recordTimeout = 250 * time.Millisecond

// startGuard starts a guard that cordons or drains for the goal. Its progress is posted.
func (a *Agent) startGuard(parent context.Context, goal policy.Goal) {
	a.generation++
	joined := map[string]int{}
	for _, id := range goal.Events {
		joined[id] = a.generation
	}
	guardGoal := a.guardGoal(goal)
	task := drain.NewTask(guardGoal)
	a.start(parent, work{goal: goal, task: task, guardGoal: guardGoal, joined: joined}, func(ctx context.Context) workResult {
		a.cfg.Node.Guard(ctx, task, func(p drain.Progress) { a.post(func() { a.handleProgress(p) }) })
		return workResult{}
	})
}

// startUncordon starts to uncordon the node, which waits until the kubelet of this boot has reported the Node Ready.
func (a *Agent) startUncordon(parent context.Context, goal policy.Goal) {
	e := a.entry(goal.Event.ID)
	var booted drain.Booted
	if !a.cfg.Remote {
		booted = func(id string) bool { return id == a.cfg.BootID }
	}
	a.steps[e.Event.ID] = time.Now()
	a.emit(state.Transition{Kind: state.Begun, Action: string(policy.Uncordon), Reason: goal.Reason, Entry: e})
	a.start(parent, work{goal: goal}, func(ctx context.Context) workResult {
		result, err := a.cfg.Node.Uncordon(ctx, booted)
		return workResult{uncordon: result, err: err}
	})
}

// start makes w the work in progress, and runs do for it in a goroutine: once the record is on disk, or recordTimeout is over. The result is
// posted.
func (a *Agent) start(parent context.Context, w work, do func(context.Context) workResult) {
	ctx, cancel := context.WithCancel(parent)
	w.cancel, w.began, w.done, w.held = cancel, time.Now(), make(chan struct{}), map[string]string{}
	a.work, a.total, a.left = &w, 0, 0
	written := a.written
	a.tasks.Go(func() {
		defer close(w.done)
		if written != nil {
			select {
			case <-written:
			case <-time.After(recordTimeout):
			case <-ctx.Done():
			}
		}
		result := workResult{err: ctx.Err()}
		if result.err == nil {
			result = do(ctx)
		}
		a.post(func() { a.handleWorkResult(result) })
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

// deadline is the one to show for a goal: the nearer of both, but the hard one if only the soft one has passed.
func (a *Agent) deadline(goal policy.Goal) time.Time {
	if now := a.now(); goal.Hard.After(now) && !goal.Soft.After(now) {
		return goal.Hard
	}
	return goal.Deadline()
}

// adjust gives the standing guard the goal, if that differs from the one that the guard has or a deadline has moved on the monotonic clock.
func (a *Agent) adjust(goal policy.Goal) {
	w := a.work
	same := goal.Action == w.goal.Action && slices.Equal(goal.Events, w.goal.Events) && goal.Close == w.goal.Close && goal.Before.Equal(w.goal.Before) &&
		a.upToDate(w.guardGoal.Hard, goal.Hard) && a.upToDate(w.guardGoal.Soft, goal.Soft) && a.upToDate(w.guardGoal.TimeEnds, goal.TimeEnds)
	joined := a.join(goal)
	w.goal = goal
	if same && !joined {
		return
	}
	w.guardGoal = a.guardGoal(goal)
	w.state = drain.State{Closed: w.state.Closed, Ours: w.state.Ours, Limited: w.state.Limited} // The guard reports the rest again.
	w.task.Adjust(w.guardGoal)
}

// join records in w.joined which events the goal has. If events join, it begins a new generation and returns true. All events join again if the
// guard has left the node open, or pods on it, because operators had uncordoned it, and the goal wants more now.
func (a *Agent) join(goal policy.Goal) (joined bool) {
	w := a.work
	maps.DeleteFunc(w.joined, func(id string, _ int) bool { return !slices.Contains(goal.Events, id) })
	more := goal.Close && (!w.goal.Close || w.state.Open || goal.Before.IsZero() && !w.goal.Before.IsZero())
	for _, id := range goal.Events {
		if _, known := w.joined[id]; !known || more {
			w.joined[id], joined = a.generation+1, true
		}
	}
	if joined {
		a.generation++
	}
	return joined
}

// joinedBy returns the IDs of the events that had joined the goal by a generation.
func (w *work) joinedBy(generation int) []string {
	ids := []string{}
	for id, in := range w.joined {
		if in <= generation {
			ids = append(ids, id)
		}
	}
	return ids
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
	_ = a.handleNews() // A source that ended now ended because ctx did.
}

// handleWorkResult handles the end of work. A guard has reported what it did, so only the result of an uncordon is recorded.
func (a *Agent) handleWorkResult(result workResult) {
	w := a.work
	w.cancel()
	a.work = nil
	if w.task != nil || result.err != nil && w.stopping { // An uncordon that was stopped has not failed.
		return
	}
	end := state.Transition{
		Kind: state.NodeUncordoned, Action: string(policy.Uncordon), Reason: w.goal.Reason, Entry: a.entry(w.goal.Event.ID),
		Detail: result.uncordon.LeftTo(), Outcome: string(result.uncordon), Err: result.err, Took: time.Since(w.began),
	}
	a.log(end)
	delete(a.steps, w.goal.Event.ID)
	if result.err != nil {
		a.recordUncordonFailed(end)
	} else {
		a.recordUncordoned(end, result.uncordon == drain.UncordonOpened)
	}
}

// recordUncordoned records for all events that nothing of ours is on the node any more, and reports how the uncordon ended for each of them. end is
// its end for the most urgent event. overruled: an operator had lifted the cordon.
func (a *Agent) recordUncordoned(end state.Transition, overruled bool) {
	sit := a.situation()
	changed := a.cfg.Policy.Undone(sit, overruled)
	a.put(changed...)
	for _, e := range changed {
		before, met := policy.Find(sit.Past, e.Event.ID)
		if e.Event.ID == end.Entry.Event.ID && before.Phase == state.Undoing {
			end.Kind, end.Entry = state.Done, e
			a.emit(end)
			continue
		}
		// The cordon was this event's, too, or the event came back meanwhile.
		a.emitChange(before, met, e)
		if before.Phase == state.Undoing && e.Phase == state.Seen {
			putOff := state.Transition{Kind: state.PutOff, Action: end.Action, Reason: end.Reason, Entry: e, Took: end.Took}
			if end.Detail != "" { // The node stays closed.
				putOff.Action = ""
			}
			a.emit(putOff)
		}
	}
}

// recordUncordonFailed counts the failure in each entry that waits for the uncordon, and reports it for the most urgent event.
func (a *Agent) recordUncordonFailed(end state.Transition) {
	for _, e := range a.cfg.Record.Entries() {
		if e.Phase != state.Undoing {
			continue
		}
		e.Failures, e.Error, e.Changed = e.Failures+1, end.Err.Error(), a.now()
		a.put(e)
		if e.Event.ID == end.Entry.Event.ID {
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

// recordCordonFailed records that the node could not be cordoned. Before a hard deadline that is only logged, as pods are evicted
// nevertheless.
func (a *Agent) recordCordonFailed(t state.Transition) {
	if !a.work.goal.Hard.IsZero() {
		a.log(t)
		return
	}
	for _, e := range a.unfinished() {
		e.Failures, e.Error = e.Failures+1, t.Detail
		a.put(e)
		a.emitStep(actions[e.Phase], e, state.Transition{Kind: state.Failed, Err: errors.New(e.Error)})
	}
}

// clearCordonFailed clears the error of recordCordonFailed.
func (a *Agent) clearCordonFailed() {
	for _, e := range a.unfinished() {
		if e.Error != "" {
			e.Error, e.Failures = "", 0
			a.put(e)
		}
	}
}

// recordReopened records that somebody has uncordoned the node, for all events that it was closed for. For events that come later, the node is
// cordoned again. It returns false if the record has that already.
func (a *Agent) recordReopened(p drain.Progress) (changes bool) {
	changed := policy.Release(a.situation(), p.Claim.Names, p.Claim.Since)
	if len(changed) > 0 {
		a.put(changed...)
	}
	return len(changed) > 0
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
	a.log(state.Transition{Kind: state.CordonAdopted, Entry: e})
}
