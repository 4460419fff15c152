package fleet

import (
	"cmp"
	"slices"
	"time"

	"github.com/nth-project/nth/pkg/event"
)

// Limits bound how many nodes are drained at once: Draining in all, and Group of those with the same value of the label
// Options.GroupLabel. 0 is no limit. What leaves no time to wait does not wait for them, but counts.
type Limits struct{ Draining, Group int }

const (
	// places is how many drains are under way at once, whatever the limits, and urgentPlaces how many more if they leave no time: each
	// needs some 300 kB.
	places, urgentPlaces = 200, 50
	// urgentWithin is how close a deadline has to be for its event to leave no time. It does not any more when the deadline has been over
	// for as long: a machine that still runs then, such as one that is to be retired, may do so for days.
	urgentWithin = 3 * time.Minute
)

// isUrgent reports whether an event leaves no time to wait in. A spot interruption never does: its instance is gone, or about to go.
func isUrgent(ev event.Event) bool {
	if ev.Kind == event.SpotInterruption {
		return true
	}
	left := time.Until(ev.Deadline)
	return !ev.Deadline.IsZero() && left <= urgentWithin && left > -urgentWithin
}

// dispatch begins the drains for which it is time, the most urgent first. One whose group is full holds up no other.
func (t *term) dispatch() {
	t.mu.Lock()
	defer t.mu.Unlock()
	limits := t.rules.Load().Limits
	var waiting []*session
	all, counted, groups := 0, 0, map[string]int{}
	for _, in := range t.instances {
		s := in.drain
		switch {
		case s == nil:
		case !s.begun:
			s.prioritize()
			waiting = append(waiting, s)
		default:
			all++
			if !s.leftAlone() {
				counted++
				groups[s.node.group]++
			}
		}
	}
	slices.SortFunc(waiting, byPriority)
	for _, s := range waiting {
		limited := limits.Draining > 0 && counted >= limits.Draining || limits.Group > 0 && groups[s.node.group] >= limits.Group
		if full := all >= places; full && (!s.urgent.Load() || all >= places+urgentPlaces) || limited && !s.urgent.Load() {
			continue
		}
		all++
		counted++
		groups[s.node.group]++
		t.begin(s)
	}
}

// prioritize sets the urgency and the deadline of a drain that waits. The term's mutex is held.
func (s *session) prioritize() {
	urgent, deadline := false, time.Time{}
	for _, ev := range s.events {
		over := ev.State != event.Pending // What is to be taken back waits for nothing.
		urgent = urgent || over || isUrgent(ev)
		if byDeadline(ev.Deadline, deadline) < 0 {
			deadline = ev.Deadline
		}
	}
	s.urgent.Store(urgent)
	s.deadline = deadline
}

// byPriority sorts urgent drains first, then by the nearest deadline, then by the time of waiting.
func byPriority(a, b *session) int {
	if urgent := a.urgent.Load(); urgent != b.urgent.Load() {
		return map[bool]int{true: -1, false: 1}[urgent]
	}
	return cmp.Or(byDeadline(a.deadline, b.deadline), a.since.Compare(b.since), cmp.Compare(a.node.name, b.node.name))
}

// byDeadline sorts the nearest deadline first, and none last.
func byDeadline(a, b time.Time) int {
	if a.IsZero() != b.IsZero() {
		return map[bool]int{true: 1, false: -1}[a.IsZero()]
	}
	return a.Compare(b)
}
