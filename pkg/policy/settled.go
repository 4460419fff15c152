package policy

import (
	"slices"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/state"
)

// Settled tells what has come of an announced event: whether it has got all that it is due for now, whatever else is being done.
// It expects a record that Fold has brought up to date. What an earlier process has drained need not be so any more: it counts when the
// node is said to be drained again. If the event's time is over, that is waited for no longer than overtime; then it counts only if the
// node cannot be looked at.
func (s Settings) Settled(sit Situation, ev event.Event) event.Outcome {
	e, met := Find(sit.Past, ev.ID)
	if !met {
		e = state.Entry{Event: ev} // Fold has not found it worth meeting.
	}
	done := s.done(sit, e)
	over := e.Phase == state.Incomplete || (e.Phase == state.Cordoning || e.Phase == state.Drained) && s.timeIsOver(sit, e)
	switch {
	case e.LeftAlone:
		return event.LeftAlone
	case !done && !over:
		return ""
	case s.plan(e).action != Drain:
		return event.NoDrain
	case e.Reopened && e.Phase == state.Cordoned: // People have lifted the cordon, and no drain had begun or was to go on then.
		return event.LeftAlone
	case done, e.Phase == state.Drained && !sit.looked(e):
		return event.Drained
	}
	return event.OutOfTime
}

// done tells whether a node is as an event's rule wants it.
func (s Settings) done(sit Situation, e state.Entry) bool {
	switch e.Phase {
	case state.Cordoning:
		return s.want(sit, e) < cordoned
	case state.Draining: // At the end of its time, Fold has called it incomplete.
		return s.want(sit, e) < drained
	case state.Drained:
		return slices.Contains(sit.DrainedFor, e.Event.ID) || s.want(sit, e) < drained
	case state.Incomplete:
		return false
	case state.Seen, state.Cordoned, state.Undoing, state.Closed: // Fold has begun what is wanted.
	}
	return true
}

// Again returns when an announced event may call for something without further news: now if something is due and could
// not be done, zero if never. busy tells that it is being done. It expects a record that Fold has brought up to date.
func (s Settings) Again(sit Situation, ev event.Event) (again time.Time, busy bool) {
	e, met := Find(sit.Past, ev.ID)
	switch {
	case !met:
		return time.Time{}, false
	case e.Phase == state.Incomplete && !e.Reopened && !e.LeftAlone: // Nothing is tried again on a node that people have opened.
		return sit.Now, false
	case e.LeftAlone:
		// Whoever comes back to it later would not know how long it has been left alone.
		end := s.timeEnds(sit, e)
		return time.Time{}, end.After(sit.Now)
	case s.Settled(sit, ev) == "":
		return sit.Now, e.Error == ""
	}
	return s.revisit(sit, e), e.Phase == state.Undoing
}

// timeIsOver tells whether the time of an event that is being acted upon has come to its end.
func (s Settings) timeIsOver(sit Situation, e state.Entry) bool {
	end := s.timeEnds(sit, e)
	return !end.IsZero() && !end.After(sit.Now)
}

// timeEnds is when the time of an event that is being acted upon is over: at its deadline, unless that was over before
// anything began; zero if it has none. Whether what is drained is so still has to show within overtime after a start.
func (s Settings) timeEnds(sit Situation, e state.Entry) time.Time {
	deadline := s.plan(e).deadline
	switch {
	case deadline.IsZero():
	case e.UnderWay() && !e.Changed.Before(deadline):
		return e.Changed.Add(overtime)
	case e.Phase == state.Drained:
		return latest(deadline, sit.Now.Add(overtime-sit.Up))
	}
	return deadline
}
