package policy

import (
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/record"
)

// Settled tells whether an announced event has got all that it is due for now: what is to be done is done, its time was
// too short, or nothing was wanted. An attempt that failed and is to be repeated in time is not the end. It expects a
// record that Fold has brought up to date.
func (s Settings) Settled(sit Situation, ev event.Event) bool {
	for _, e := range sit.Past {
		if e.Event.ID == ev.ID {
			return s.settled(sit, e)
		}
	}
	return true // Fold has not found it worth meeting.
}

func (s Settings) settled(sit Situation, e record.Entry) bool {
	p := s.plan(e)
	switch {
	case e.Phase == record.Closed || e.Phase == record.Incomplete:
		return true
	case p.action != Cordon && p.action != Drain || done(e.Phase, p.action):
		return true
	case p.start.After(sit.Now):
		return true
	}
	return !p.deadline.IsZero() && !p.deadline.After(sit.Now)
}
