package agent

import (
	"time"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/record"
)

// Listener is told everything that happens, in order, from one goroutine, after the journal. Hear must not block: what
// takes time is done elsewhere, so that nobody who listens can hold a drain up.
type Listener interface {
	Hear(record.Happening)
}

// happened tells the listeners.
func (a *Agent) happened(h record.Happening) {
	if len(a.cfg.Listeners) == 0 {
		return
	}
	h.At, h.Node = a.now(), a.node
	for _, l := range a.cfg.Listeners {
		l.Hear(h)
	}
}

// happenedTo tells what happened to an event as such.
func (a *Agent) happenedTo(e record.Entry) {
	what := record.Changed
	switch {
	case e.Phase == record.Closed:
		what = record.ClosedWith
	case !e.Missing.IsZero():
		what = record.Missed
	case e.Phase == record.Seen && e.FirstSeen.Equal(e.Changed):
		what = record.Announced
	}
	a.happened(record.Happening{What: what, Entry: e, Plan: a.rules().Describe(e)})
}

// happenedIn tells what happened in the course of a step.
func (a *Agent) happenedIn(step policy.Step, began time.Time, h record.Happening) {
	h.Action, h.Reason, h.Deadline, h.Hard = string(step.Action), step.Reason, step.Deadline, step.Hard
	if !began.IsZero() {
		h.Took = time.Since(began)
	}
	h.Plan = a.rules().Describe(h.Entry)
	a.happened(h)
}

// reported are the things in a drain that listeners are told.
var reported = map[drain.What]record.What{
	drain.NodeCordoned: record.NodeCordoned, drain.NodeCordonFound: record.CordonFound,
	drain.Evicted: record.PodEvicted, drain.Deleted: record.PodDeleted, drain.Gone: record.PodGone,
	drain.Held: record.PodHeld, drain.Refused: record.PodHeld,
}

// happenedThere tells one thing that a drain reports.
func (a *Agent) happenedThere(p drain.Progress) {
	what, worth := reported[p.What]
	if !worth || what == record.PodHeld && p.Pod == "" {
		return
	}
	f := a.flight
	a.happenedIn(f.step, f.began, record.Happening{
		What: what, Entry: a.entry(f.step), Detail: p.Detail, Total: p.Total, Left: p.Left,
		Pod: p.Pod, PodUID: p.PodUID, PodLabels: p.PodLabels,
	})
}

// happenedAtEnd tells how a step ended.
func (a *Agent) happenedAtEnd(l landed, e record.Entry, began time.Time) {
	h := record.Happening{Entry: e, Total: a.total, Left: a.left, Err: l.err, Detail: l.uncordon.LeftTo()}
	switch {
	case l.err == nil:
		h.What = record.Done
	case l.calledBack:
		h.What = record.CalledBack
	case l.timedOut:
		h.What = record.RanOut
	default:
		h.What = record.Failed
	}
	if l.step.Action == policy.Cordon && l.err == nil && l.cordon != drain.CordonLeft {
		a.happenedIn(l.step, began, record.Happening{What: cordonedAs(l.cordon), Entry: e})
	}
	a.happenedIn(l.step, began, h)
}

func cordonedAs(c drain.CordonResult) record.What {
	if c.Ours() {
		return record.NodeCordoned
	}
	return record.CordonFound
}
