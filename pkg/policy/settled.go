package policy

import (
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/state"
)

// Settled returns the outcome of an announced event; "" while something is still to be done for it. At an outcome, pkg/agent lets the event's
// hook or inhibitor lock go. The record must be up to date: see Fold.
func (s Settings) Settled(sit Situation, ev event.Event) event.Outcome {
	e, met := Find(sit.Past, ev.ID)
	if !met {
		e = state.Entry{Event: ev} // Fold did not record the event: see worthRecording.
	}
	switch {
	case e.LeftAlone:
		return event.LeftAlone
	case e.Phase == state.Cordoning && s.want(sit, e) >= cordoned && !s.timeIsOver(sit, e):
		return ""
	case e.Phase == state.Draining && s.want(sit, e) == drained: // At the end of its time, Fold makes it Incomplete.
		return ""
	case s.plan(e).action != Drain:
		return event.NoDrain
	case e.Released() && e.Phase == state.Cordoned: // Operators lifted the cordon, and no drain was under way then.
		return event.LeftAlone
	case e.Phase == state.Incomplete || e.Phase == state.Cordoning:
		return event.OutOfTime
	}
	return event.Drained
}

// Again returns when something may be due for an announced event without news: now if something is due that could not be done; zero is never.
// busy: something is being done for the event now. nth-queue uses it to decide when to look at an instance again. The record must be up to
// date: see Fold.
func (s Settings) Again(sit Situation, ev event.Event) (again time.Time, busy bool) {
	e, met := Find(sit.Past, ev.ID)
	switch {
	case !met: // Fold saw nothing to do.
		return time.Time{}, false
	case e.Phase == state.Incomplete && !e.Released() && !e.LeftAlone: // A node that operators have opened is not tried again.
		return sit.Now, false
	case e.LeftAlone: // Busy until its time is over: nobody who tried later would know how long it has been left alone.
		return time.Time{}, s.timeEnds(e).After(sit.Now)
	case s.Settled(sit, ev) == "":
		return sit.Now, e.Error == ""
	}
	return s.revisit(sit, e), e.Phase == state.Undoing
}

// timeIsOver reports whether the time for an event that is being acted upon is over.
func (s Settings) timeIsOver(sit Situation, e state.Entry) bool {
	end := s.timeEnds(e)
	return !end.IsZero() && !end.After(sit.Now)
}

// timeEnds is when the time for an event that is being acted upon is over: its deadline or, if work began after that, overtime
// later; zero if there is no deadline.
func (s Settings) timeEnds(e state.Entry) time.Time {
	deadline := s.plan(e).deadline
	if !deadline.IsZero() && e.UnderWay() && !e.Changed.Before(deadline) {
		return e.Changed.Add(overtime)
	}
	return deadline
}
