package agent

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
)

// work is what is being done to the node: a guard stands, or what is ours is taken back.
type work struct {
	goal  policy.Goal
	guard drain.Guard // nil for an uncordon
	// order is the goal as the guard was told it, with its times on the monotonic clock.
	order    drain.Goal
	cancel   context.CancelFunc
	stopping bool
	began    time.Time // with its monotonic reading
	done     chan struct{}
}

// workResult is what came of work that has ended.
type workResult struct {
	uncordon drain.UncordonResult
	err      error
}

// pursueGoal sees to it that the goal is what is worked for. One sort of work ends before the other begins.
func (a *Agent) pursueGoal(ctx context.Context, goal policy.Goal) {
	closing := goal.Action == policy.Drain || goal.Action == policy.Cordon
	switch w := a.work; {
	case w == nil && closing:
		a.startGuard(ctx, goal)
	case w == nil && goal.Action == policy.Uncordon:
		a.startUncordon(ctx, goal)
	case w == nil || w.stopping:
	case closing && w.guard != nil:
		a.adjust(goal)
	case goal.Action == policy.Uncordon && w.guard == nil && goal.AfterReboot == w.goal.AfterReboot:
	default:
		w.stopping, a.state = true, drain.State{} // What it still finds is true of a node that is being left.
		w.cancel()
	}
	if closing && a.work.guard != nil {
		a.begin(goal)
	}
}

// recordTimeout is how long the record is waited for before the node is touched. A disk that hangs is no reason to lose time;
// the Node's annotation remembers as well.
const recordTimeout = 250 * time.Millisecond

func (a *Agent) startGuard(all context.Context, goal policy.Goal) {
	order := a.guardGoal(goal)
	guard := a.cfg.Node.Guard(order, func(p drain.Progress) { a.inbox.put(p) })
	a.start(all, work{goal: goal, guard: guard, order: order}, func(ctx context.Context) workResult {
		guard.Run(ctx)
		return workResult{}
	})
}

func (a *Agent) startUncordon(all context.Context, goal policy.Goal) {
	var booted func(string) bool
	if goal.AfterReboot {
		booted = func(id string) bool { return id == a.cfg.BootID }
	}
	a.beginUncordon(goal)
	a.start(all, work{goal: goal}, func(ctx context.Context) workResult {
		result, err := a.cfg.Node.Uncordon(ctx, booted)
		return workResult{uncordon: result, err: err}
	})
}

// start has work done beside the loop, once what is in the record is on disk.
func (a *Agent) start(all context.Context, w work, do func(context.Context) workResult) {
	ctx, cancel := context.WithCancel(all)
	w.cancel, w.began, w.done = cancel, time.Now(), make(chan struct{})
	a.work, a.state, a.stale, a.lookedFor, a.drainedFor = &w, drain.State{}, false, nil, nil
	a.total, a.left, a.pending.targets = 0, 0, ""
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
		l := workResult{err: ctx.Err()}
		if l.err == nil {
			l = do(ctx)
		}
		a.inbox.put(l)
	})
}

// guardGoal is a goal as the guard is given it.
func (a *Agent) guardGoal(goal policy.Goal) drain.Goal {
	a.number++
	seen, limited, kinds := a.nodeSeen, false, []string(nil)
	for _, e := range a.cfg.Record.Entries() {
		seen = seen || e.ClosedIn == a.cfg.BootID
		if !slices.Contains(goal.Events, e.Event.ID) {
			continue
		}
		limited = limited || e.LeftAlone
		if kind := string(e.Event.Kind); !slices.Contains(kinds, kind) {
			kinds = append(kinds, kind)
		}
	}
	return drain.Goal{
		Number: a.number,
		Claim: drain.Claim{
			Event: goal.Event.ID, Kind: string(goal.Event.Kind), Events: goal.Events, BootID: a.cfg.BootID, Since: a.now().UTC(),
		},
		Events: goal.Events, Kinds: kinds, Unclosed: goal.Unclosed, Anew: goal.Anew, Evict: goal.Action == policy.Drain,
		Reopened: goal.Reopened, Open: goal.Open, NodeSeen: seen, Limited: limited,
		Hard: a.monotonic(goal.Hard), Soft: a.monotonic(goal.Soft), TimeEnds: a.monotonic(goal.TimeEnds),
	}
}

// longestSpan is as far as a time is told apart from others on the monotonic clock: spans end at three centuries.
const longestSpan = 100 * 365 * 24 * time.Hour

// monotonic is a wall time on the monotonic clock. What is far off is as far from the start, so that it stays where it is.
func (a *Agent) monotonic(wall time.Time) time.Time {
	if wall.IsZero() {
		return wall
	}
	left := wall.Sub(a.now())
	if left.Abs() > longestSpan {
		return a.began.Add(max(min(left, longestSpan), -longestSpan))
	}
	return time.Now().Add(left)
}

// upToDate tells whether the guard knows a deadline as it is now. One that moves with the clock stays where it is, and a clock that
// is put right little by little is not worth a word.
func (a *Agent) upToDate(told, before, now time.Time) bool {
	off := told.Sub(a.monotonic(now)).Abs()
	return off < tick/10 || off <= clockTolerance && before.Equal(now)
}

// deadline is the one that people are told of: the nearer, and one that is over only if no machine is lost at one that is to come.
func (a *Agent) deadline(goal policy.Goal) time.Time {
	if now := a.now(); goal.Hard.After(now) && !goal.Soft.After(now) {
		return goal.Hard
	}
	return goal.Deadline()
}

// adjust tells the guard what has changed of the goal, be it only that a deadline has moved against the monotonic clock.
func (a *Agent) adjust(goal policy.Goal) {
	w := a.work
	same := goal.Action == w.goal.Action && slices.Equal(goal.Events, w.goal.Events) && goal.Reopened.Equal(w.goal.Reopened) &&
		a.upToDate(w.order.Hard, w.goal.Hard, goal.Hard) && a.upToDate(w.order.Soft, w.goal.Soft, goal.Soft) &&
		a.upToDate(w.order.TimeEnds, w.goal.TimeEnds, goal.TimeEnds)
	joined := drain.Joined(w.goal.Events, goal.Events)
	w.goal = goal
	if same {
		return
	}
	w.order = a.guardGoal(goal)
	a.state = drain.State{Closed: a.state.Closed, Ours: a.state.Ours, Limited: a.state.Limited} // It is told anew whether it is drained.
	gone := func(id string) bool { return !slices.Contains(goal.Events, id) }
	a.lookedFor, a.drainedFor = slices.DeleteFunc(a.lookedFor, gone), slices.DeleteFunc(a.drainedFor, gone)
	a.stale = a.stale || joined
	w.guard.Adjust(w.order)
}

// resultNow asks the guard how far it has come. There is none if an event's time was over before one could be begun.
func (a *Agent) resultNow() *state.Result {
	if a.work == nil || a.work.guard == nil {
		return nil
	}
	a.result = a.work.guard.Result()
	r := a.result
	return &state.Result{Evicted: r.Evicted, Deleted: r.Deleted, Skipped: r.Skipped, Left: r.Left, HeldBy: r.HeldBy}
}

// stopWork stops the work for good and takes in how far it came.
func (a *Agent) stopWork() {
	if a.work == nil {
		return
	}
	a.work.stopping = true
	a.work.cancel()
	<-a.work.done
	_ = a.handleInbox(a.inbox.empty()) // a source that ended now ended because it was asked to
	for _, id := range slices.Sorted(maps.Keys(a.begun)) {
		if e := a.entry(event.Event{ID: id}); e.UnderWay() || e.Phase == state.Undoing {
			a.tellCanceled(e, e)
		}
	}
}

// handleWorkResult takes in that work has ended.
func (a *Agent) handleWorkResult(l workResult) {
	w := a.work
	w.cancel()
	a.work, a.state = nil, drain.State{}
	clear(a.pending.held)
	switch {
	case w.guard != nil:
	case l.err == nil:
		a.recordUncordoned(w, l)
	case !w.stopping:
		a.uncordonFailed(w, l)
	}
}

// recordUncordoned takes into the record that nothing of ours is on the node any more, for any event.
func (a *Agent) recordUncordoned(w *work, l workResult) {
	a.opened = true
	a.note(uncordoned(state.NodeUncordoned, w, l, a.entry(w.goal.Event)))
	sit := a.situation()
	changed := a.cfg.Policy.Undone(sit, l.uncordon == drain.UncordonOpened)
	a.put(changed...)
	for _, e := range changed {
		before, _ := policy.Find(sit.Past, e.Event.ID)
		if e.Event.ID == w.goal.Event.ID && before.Phase == state.Undoing {
			a.endedUncordon(w, l, e)
		} else { // Others held it, too, or it came back meanwhile.
			a.changed(before, true, e)
			a.reportReopened(w, before, e)
		}
	}
}

// reportReopened tells of an event that the node was opened for beside the one that came first, if it still stands.
func (a *Agent) reportReopened(w *work, before, e state.Entry) {
	if before.Phase == state.Undoing && e.Phase == state.Seen {
		a.tell(state.Transition{
			Kind: state.PutOff, Action: string(policy.Uncordon), Reason: w.goal.Reason, Entry: e, Took: time.Since(w.began),
		})
	}
}

func (a *Agent) uncordonFailed(w *work, l workResult) {
	a.note(uncordoned(state.NodeUncordoned, w, l, a.entry(w.goal.Event)))
	for _, e := range a.cfg.Record.Entries() {
		if e.Phase != state.Undoing {
			continue
		}
		e.Failures, e.Error, e.Changed = e.Failures+1, l.err.Error(), a.now()
		a.put(e)
		if e.Event.ID == w.goal.Event.ID {
			a.endedUncordon(w, l, e)
		}
	}
}

// first is the entry of the most urgent of the events that the work is for, which is what people are told of it. The node is closed for
// another one where people have opened it for this one, whose drain goes on.
func (a *Agent) first() state.Entry {
	goal := a.work.goal
	if e, met := policy.Find(a.cfg.Record.Entries(), goal.Events[0]); met {
		return e
	}
	return a.entry(goal.Event)
}

// goalEntries are the entries of the events that want what the guard works for.
func (a *Agent) goalEntries() []state.Entry {
	var all []state.Entry
	entries := a.cfg.Record.Entries() // read once: a guard tells much
	for _, id := range a.work.goal.Events {
		if e, met := policy.Find(entries, id); met {
			all = append(all, e)
		}
	}
	return all
}

// unfinished are the entries for which the guard still has work to do, the one that comes first at the front.
func (a *Agent) unfinished() []state.Entry {
	return slices.DeleteFunc(a.goalEntries(), func(e state.Entry) bool { return !e.UnderWay() || e.LeftAlone })
}

// noteCordonFailed notes for the events of the goal that the node cannot be closed. Where the machine is lost, work goes on without.
func (a *Agent) noteCordonFailed(t state.Transition) {
	if !a.work.goal.Hard.IsZero() {
		a.note(t)
		return
	}
	for _, e := range a.unfinished() {
		e.Failures, e.Error = e.Failures+1, t.Detail
		a.put(e)
		a.tellStep(actions[e.Phase], e, state.Transition{Kind: state.Failed, Err: errors.New(e.Error)})
	}
}

// noteCordonKnown notes that what becomes of the cordon is known after all.
func (a *Agent) noteCordonKnown() {
	for _, e := range a.unfinished() {
		if e.Error != "" {
			e.Error, e.Failures = "", 0
			a.put(e)
		}
	}
}

// noteReopened notes, for all events for which the node was closed, that somebody has opened it. For those that have joined since, it
// is closed again. It returns whether that was not known of all.
func (a *Agent) noteReopened(p drain.Progress) (news bool) {
	for _, e := range a.goalEntries() {
		if e.Phase != state.Closed && !e.Reopened && slices.Contains(p.Events, e.Event.ID) {
			e.Reopened, news = true, true
			a.put(e)
		}
	}
	return news
}

// adoptPause is how long to wait before the Node is asked again whose cordon it bears.
const adoptPause = 5 * time.Second

// readClaim asks the Node once, as soon as it can be asked, whether it bears a cordon of ours. If the record has been lost,
// that is how it is found again.
func (a *Agent) readClaim(ctx context.Context) {
	for {
		claim, ours, err := a.cfg.Node.Claim(ctx)
		if err == nil {
			a.inbox.put(adopted{claim: claim, ours: ours})
			return
		}
		if !drain.Await(ctx, nil, adoptPause) {
			return
		}
	}
}

// adoptClaim takes a cordon of ours into the record that it does not know of: the record was lost, or what was put last never
// reached the disk.
func (a *Agent) adoptClaim(found adopted) {
	a.nodeSeen = true
	claim := found.claim
	if claim.Since = event.CredibleTime(claim.Since); claim.Since.IsZero() {
		claim.Since = a.now()
	}
	a.inherited = found.ours && claim.BootID != a.cfg.BootID
	entries := a.cfg.Record.Entries()
	e, known := policy.Find(entries, claim.Event)
	// Whose event is over may have left the cordon to another one, which takes it back.
	left := slices.ContainsFunc(entries, func(e state.Entry) bool { return e.OnNode && e.Phase != state.Closed })
	if left || a.opened || !found.ours { // What was read before it was taken back is there no more.
		return
	}
	if !known || e.Phase == state.Closed {
		// A claim does not say what is announced, so nothing new is begun for it until its source says so; if it does not,
		// the cordon is lifted in time.
		e = state.Entry{Event: event.Event{ID: claim.Event, Kind: event.Kind(claim.Kind)}, FirstSeen: claim.Since, Missing: a.now()}
	}
	if !e.Acted() {
		e.Phase, e.BootID, e.Changed = state.Cordoned, claim.BootID, a.now()
	}
	e.CordonedAt, e.ActedFor, e.OnNode, e.Anew = claim.Since, claim.Since, true, false
	a.put(e)
	a.note(state.Transition{Kind: state.CordonAdopted, Entry: e})
}
