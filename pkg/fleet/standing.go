package fleet

import (
	"cmp"
	"slices"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/record"
)

// Standing is how the fleet stands.
type Standing struct {
	// Nodes is how many the cluster has; Draining are being drained by this process, and Waiting wait in its line. LeftAlone are those
	// that would be drained, if people did not want them left alone.
	Nodes, Draining, Waiting, LeftAlone int
	// Away is since when the API server has not answered who watches the Nodes, or has refused to; zero if it has answered.
	Away time.Time
	// Leaseless is why this process has no Lease, so that it drains nothing, and Since since when; nil if it has one.
	Leaseless error
	Since     time.Time
	// Events are those that something is still to be done for.
	Events []record.EventStatus
}

// Standing tells how the fleet stands now.
func (f *Fleet) Standing() Standing {
	now := Standing{Away: f.nodes.awaySince()}
	f.nodes.each(func(node) { now.Nodes++ })
	f.mu.Lock()
	defer f.mu.Unlock()
	now.Leaseless, now.Since = f.leaseless, f.leaselessSince
	for _, s := range f.sessions {
		switch {
		case !s.begun:
			now.Waiting++
		case s.leftAlone():
			now.LeftAlone++
		default:
			now.Draining++
		}
		for _, t := range s.tasks {
			entry := s.entry(t.notice.Event)
			status := entry.Status(f.policy().Describe(entry))
			status.Node = s.node
			now.Events = append(now.Events, status)
		}
	}
	slices.SortFunc(now.Events, func(a, b record.EventStatus) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.ID, b.ID))
	})
	return now
}

// entry is how far the session has come with an event. s.fleet.mu is held.
func (s *session) entry(ev event.Event) record.Entry {
	if s.book != nil {
		if e := s.book.entry(ev.ID); e.Phase != "" {
			return e
		}
	}
	return record.Entry{Event: ev, Phase: record.Seen, Changed: time.Now()}
}
