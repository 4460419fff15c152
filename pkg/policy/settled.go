package policy

import (
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/state"
)

// Settled returns the outcome of an announced event; "" while something is still to be done for it. At an outcome, the event's lifecycle hook or
// inhibitor lock is let go: see agent.Config.Settled. The record must be up to date: see Fold.
func (s Settings) Settled(sit Situation, ev event.Event) event.Outcome {
	e, recorded := Find(sit.Past, ev.ID)
	if !recorded {
		e = state.Entry{Event: ev} // Fold did not record the event: see worthRecording.
	}
	want := s.want(sit, e)
	cordonUnderWay := e.Phase == state.Cordoning && want >= wantCordoned && !s.timeIsOver(sit, e)
	drainUnderWay := e.Phase == state.Draining && want == wantDrained // At the end of its time, Fold makes it Incomplete.
	switch {
	case e.LeftAlone:
		return event.LeftAlone
	case cordonUnderWay || drainUnderWay:
		return ""
	case s.plan(e).action != Drain: // The node is cordoned as the rule asks, or the time for that is over.
		return event.NoDrain
	case (e.Phase == state.Seen || e.Phase == state.Cordoned) && e.Released(): // Operators uncordoned the node, and no drain is under way.
		return event.LeftAlone
	case e.Phase == state.Incomplete: // The rule asks for a drain, and its time is over.
		return event.OutOfTime
	}
	return event.Drained // The drain is done, or nothing is to be done for the event now.
}

// Again reports whether work for an announced event is under way (busy). If not, again is when work may be due although nothing new is reported: now
// if the last attempt did not succeed, and zero for never.
//
// nth-queue runs an agent for each node. It ends the agent once no event is busy, and begins another at the soonest again: see agent.Config.Rested.
// While an event is busy, again does not count. The record must be up to date: see Fold.
func (s Settings) Again(sit Situation, ev event.Event) (again time.Time, busy bool) {
	e, recorded := Find(sit.Past, ev.ID)
	switch {
	case !recorded: // Fold saw nothing to do.
		return time.Time{}, false
	case e.Phase == state.Incomplete && !e.Released() && !e.LeftAlone: // The drain ran out of time. Operators have not limited another attempt.
		return sit.Now, false
	case e.LeftAlone: // Busy until its time is over, so that this agent stays: only its record says that the node was left alone, and since when.
		return time.Time{}, s.timeEnds(e).After(sit.Now)
	case s.Settled(sit, ev) == "": // Work is due. An error means that the last attempt failed.
		return sit.Now, e.Error == ""
	}
	return s.revisit(sit, e), e.Phase == state.Undoing
}

// timeIsOver reports whether the time for an event that is being acted upon is over.
func (s Settings) timeIsOver(sit Situation, e state.Entry) bool {
	end := s.timeEnds(e)
	return !end.IsZero() && !end.After(sit.Now)
}

// timeEnds returns when the time for an event that is being acted upon is over; zero if there is no deadline. That is the deadline or, if work
// began after the deadline, overtime after its beginning.
func (s Settings) timeEnds(e state.Entry) time.Time {
	deadline := s.plan(e).deadline
	begunLate := e.UnderWay() && !e.Changed.Before(deadline)
	if !deadline.IsZero() && begunLate {
		return e.Changed.Add(overtime)
	}
	return deadline
}
