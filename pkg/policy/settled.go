package policy

import (
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/record"
)

// Settled tells whether an announced event has got all that it is due for now, whatever else is being done: what is to be
// done is done, its time is over, or nothing was wanted. It expects a record that Fold has brought up to date.
func (s Settings) Settled(sit Situation, ev event.Event) bool {
	e, met := Find(sit.Past, ev.ID)
	if !met {
		return true // Fold has not found it worth meeting.
	}
	switch e.Phase {
	case record.Cordoning:
		return s.want(sit, e) < cordoned || s.timeIsOver(sit, e)
	case record.Draining: // At the end of its time, Fold has called it incomplete.
		return s.want(sit, e) < drained
	case record.Seen: // Fold has begun what is wanted.
	case record.Cordoned, record.Drained, record.Incomplete, record.Undoing, record.Closed:
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
	case e.Phase == record.Incomplete && !e.Reopened: // Nothing is tried again on a node that people have opened.
		return sit.Now, false
	case !s.Settled(sit, ev):
		return sit.Now, e.Error == ""
	}
	return s.revisit(sit, e), e.Phase == record.Undoing
}

// timeIsOver tells whether the time of an event that is being acted upon has come to its end.
func (s Settings) timeIsOver(sit Situation, e record.Entry) bool {
	end := s.timeEnds(e)
	return !end.IsZero() && !end.After(sit.Now)
}

// timeEnds is when the time of an event that is being acted upon is over: at its deadline, unless that was over before
// anything began; zero if it has none.
func (s Settings) timeEnds(e record.Entry) time.Time {
	deadline := s.plan(e).deadline
	if e.UnderWay() && !deadline.IsZero() && !e.Changed.Before(deadline) {
		return e.Changed.Add(overtime)
	}
	return deadline
}
