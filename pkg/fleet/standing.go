package fleet

import (
	"cmp"
	"slices"

	"github.com/nth-project/nth/pkg/record"
)

// Standing is how the fleet stands.
type Standing struct {
	// Nodes is how many the cluster has; Draining are being drained by this process, and Waiting wait in its line.
	Nodes, Draining, Waiting int
	// Events are those that something is still to be done for.
	Events []record.EventStatus
}

// Standing tells how the fleet stands now.
func (f *Fleet) Standing() Standing {
	var now Standing
	f.nodes.each(func(node) { now.Nodes++ })
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.sessions {
		if s.begun {
			now.Draining++
		} else {
			now.Waiting++
		}
		for _, t := range s.tasks {
			ev := t.notice.Event
			status := record.EventStatus{ID: ev.ID, Node: s.node, Kind: ev.Kind, Code: ev.Code, Phase: record.Seen, Deadline: ev.Deadline}
			if s.book != nil {
				entry := s.book.entry(ev.ID)
				status.Phase, status.FirstSeen = cmp.Or(entry.Phase, record.Seen), entry.FirstSeen
				status.Error, status.Failures = entry.Error, entry.Failures
			}
			status.Plan = f.policy().Describe(record.Entry{Event: ev, Phase: status.Phase, FirstSeen: status.FirstSeen})
			now.Events = append(now.Events, status)
		}
	}
	slices.SortFunc(now.Events, func(a, b record.EventStatus) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.ID, b.ID))
	})
	return now
}
