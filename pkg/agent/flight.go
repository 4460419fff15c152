package agent

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/record"
)

// flight is the step being taken.
type flight struct {
	step   policy.Step
	rule   policy.Rule // its kind's, as it was when the step began
	cancel context.CancelFunc
	began  time.Time // with its monotonic reading
	// ends is the deadline on the monotonic clock; zero if the step has none.
	ends       time.Time
	calledBack bool
	done       chan struct{}
}

// takeOff records what is about to be done, and begins it.
func (a *Agent) takeOff(all context.Context, step policy.Step) {
	e := a.entry(step)
	claim := drain.Claim{Event: step.Event.ID, Kind: string(step.Event.Kind), BootID: a.cfg.BootID, Since: a.now().UTC()}
	if e.Acted() {
		claim.Resumes = e.FirstSeen
	}
	e.Error, e.Changed = "", a.now()
	switch step.Action {
	case policy.Drain:
		e.Phase = record.Draining
	case policy.Cordon:
		e.Phase = record.Cordoning
	case policy.Uncordon:
		e.Phase = record.Undoing
	case policy.Ignore, policy.Notify, policy.Wait:
		return
	}
	if step.Action != policy.Uncordon {
		// From here on a cordon may be ours, whatever happens to this process.
		e.Cordon, e.ActedFor, e.BootID = true, step.Event.Deadline, a.cfg.BootID
	}
	a.put(e)
	a.begun(step)
	a.happenedIn(step, time.Time{}, record.Happening{What: record.Begun, Entry: e})

	f := &flight{step: step, rule: a.cfg.Policy[step.Event.Kind], began: time.Now(), done: make(chan struct{})}
	var ctx context.Context
	if step.Deadline.IsZero() {
		ctx, f.cancel = context.WithCancel(all)
	} else {
		left := step.Deadline.Sub(a.now())
		f.ends = f.began.Add(left)
		ctx, f.cancel = context.WithTimeout(all, left)
	}
	a.flight = f
	a.tasks.Go(func() {
		defer close(f.done)
		l := a.act(ctx, step, claim)
		l.timedOut = errors.Is(ctx.Err(), context.DeadlineExceeded)
		l.calledBack = all.Err() != nil
		a.inbox.put(l)
	})
}

// act takes the step. It runs beside the loop and touches nothing of it.
func (a *Agent) act(ctx context.Context, step policy.Step, claim drain.Claim) landed {
	l := landed{step: step}
	switch step.Action {
	case policy.Drain:
		l.result, l.err = a.cfg.Node.Drain(ctx, drain.Plan{
			Claim: claim, Hard: step.Hard,
			Tell: func(p drain.Progress) { a.inbox.put(p) },
		})
	case policy.Cordon:
		l.cordon, l.err = a.cfg.Node.Cordon(ctx, claim)
	case policy.Uncordon:
		l.uncordon, l.err = a.cfg.Node.Uncordon(ctx, step.AfterReboot)
	case policy.Ignore, policy.Notify, policy.Wait:
	}
	return l
}

// callBack stops the step in flight, because another one (or none) is to be taken now. The next begins when it has
// landed.
func (a *Agent) callBack(next policy.Step) {
	if a.flight.calledBack {
		return
	}
	a.flight.calledBack = true
	a.recalled(a.flight.step, next)
	a.flight.cancel()
}

// land stops the step in flight for good and takes in how far it came.
func (a *Agent) land() {
	if a.flight == nil {
		return
	}
	a.flight.calledBack = true
	a.flight.cancel()
	<-a.flight.done
	_ = a.take(a.inbox.empty()) // a source that ended now ended because it was asked to
}

// settle records what came of a step.
func (a *Agent) settle(l landed) {
	l.calledBack = l.calledBack || a.flight.calledBack
	a.flight.cancel()
	began := a.flight.began
	a.flight = nil
	e := a.entry(l.step)
	// What was closed while its step was under way stays so: another event holds the node's cordon.
	if e.Phase != record.Closed {
		e.Changed = a.now()
		switch l.step.Action {
		case policy.Drain:
			settleDrain(&e, l)
		case policy.Cordon:
			settleCordon(&e, l)
		case policy.Uncordon:
			settleUncordon(&e, l)
		case policy.Ignore, policy.Notify, policy.Wait:
		}
		a.put(e)
	}
	if l.step.Action == policy.Uncordon && l.err == nil {
		a.lifted(l)
	}
	a.ended(l, e)
	a.happenedAtEnd(l, e, began)
	clear(a.held)
	a.total, a.left = 0, 0
}

// lifted takes into the record that the node's cordon, of which there is one, is no longer ours for any event. Where we
// have lifted it, an event that came back meanwhile is acted upon anew; where somebody else had, that is an order.
func (a *Agent) lifted(l landed) {
	sit := a.situation()
	for _, e := range sit.Past {
		if !e.Cordon {
			continue
		}
		e.Cordon = false
		if l.uncordon == drain.UncordonLifted && a.rules().Stands(sit, e) {
			e.Phase, e.Result, e.CordonedAt, e.Changed = record.Seen, nil, time.Time{}, a.now()
		}
		a.put(e)
	}
}

func settleDrain(e *record.Entry, l landed) {
	r := l.result
	e.Result = &record.Result{Evicted: r.Evicted, Deleted: r.Deleted, Skipped: r.Skipped, Left: r.Left, HeldBy: r.HeldBy}
	if r.Cordon != drain.CordonNone {
		e.Cordon = r.Cordon.Ours()
		if e.CordonedAt.IsZero() {
			e.CordonedAt = e.Changed
		}
	}
	switch {
	case l.err == nil:
		e.Phase, e.Failures = record.Drained, 0
	case l.calledBack:
		// The phase says what may have been done; whoever reads it goes on from there.
	case l.timedOut:
		e.Phase = record.Incomplete
		failed(e, errDeadline)
	default:
		failed(e, l.err)
	}
}

var errDeadline = errors.New("the deadline came first")

func settleCordon(e *record.Entry, l landed) {
	switch {
	case l.err == nil:
		e.Phase, e.Failures, e.CordonedAt = record.Cordoned, 0, e.Changed
		e.Cordon = l.cordon.Ours()
	case !l.calledBack:
		failed(e, l.err)
	}
}

func settleUncordon(e *record.Entry, l landed) {
	switch {
	case l.err != nil && !l.calledBack:
		failed(e, l.err)
	case l.err != nil:
	case l.step.Ending == "":
		// Moved to a later time: it will be acted upon anew.
		e.Phase, e.Failures, e.Cordon, e.Result, e.CordonedAt = record.Seen, 0, false, nil, time.Time{}
	default:
		e.Phase, e.Failures, e.Cordon, e.Ending = record.Closed, 0, false, l.step.Ending
	}
}

func failed(e *record.Entry, err error) {
	e.Failures++
	e.Error = err.Error()
}

// entry is the record's entry for a step's event.
func (a *Agent) entry(step policy.Step) record.Entry {
	if e, met := find(a.cfg.Record.Entries(), step.Event.ID); met {
		return e
	}
	return record.Entry{Event: step.Event, FirstSeen: a.now(), BootID: a.cfg.BootID}
}

// find returns the entry of an event.
func find(entries []record.Entry, id string) (record.Entry, bool) {
	i := slices.IndexFunc(entries, func(e record.Entry) bool { return e.Event.ID == id })
	if i < 0 {
		return record.Entry{}, false
	}
	return entries[i], true
}
