package fleet

import (
	"time"

	"github.com/nth-project/nth/pkg/event"
)

const (
	// pressing is how near a deadline leaves no time to wait in. One that has been over for as long is another matter: the machine is
	// there in spite of it, and may be for days, as those are whose retirement nobody has got to yet.
	pressing = 3 * time.Minute
	// urgentPause is the longest that what failed is left alone with so little time.
	urgentPause = 5 * time.Second
)

// urgent tells whether an event leaves no time to wait in, whatever its kind. A spot interruption never does: its instance is gone, or
// about to go.
func urgent(ev event.Event) bool {
	if ev.Kind == event.SpotInterruption {
		return true
	}
	left := time.Until(ev.Deadline)
	return !ev.Deadline.IsZero() && left <= pressing && left > -pressing
}

// pauseBefore is how long what failed is left alone with so much time before its deadline, if it would be for that pause else.
func pauseBefore(left, pause time.Duration) time.Duration {
	if left > 0 && left <= pressing {
		return min(pause, urgentPause)
	}
	return pause
}

// hurry lets those wait no longer in the line whose deadline has come near meanwhile. f.mu is held.
func (f *Fleet) hurry() {
	for i := range f.line.places {
		p := &f.line.places[i]
		if s := f.sessions[p.node]; s != nil && !p.urgent {
			for _, t := range s.tasks {
				p.urgent = p.urgent || urgent(t.notice.Event)
			}
		}
	}
}

// presses tells whether what is done for a node waits behind no other.
func (f *Fleet) presses(node string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.sessions[node]
	return s != nil && s.urgent.Load()
}
