package fleet

import (
	"cmp"
	"slices"
	"time"
)

// Limits bound how many nodes are drained at once, all processes on the queue counted. 0 is no limit.
type Limits struct {
	// Draining is for all nodes together, and Group for those that share the value of Label.
	Draining, Group int
	// Label is a label of Nodes, such as that of the zone.
	Label string
}

// place is one node's place in the line.
type place struct {
	node, group string
	// urgent tells that the node does not wait: its machine is gone in a few minutes.
	urgent   bool
	deadline time.Time // the nearest; zero if there is none
	since    time.Time // when it joined
}

// line is the nodes that are to be drained, in no particular order.
type line struct {
	limits Limits
	places []place
}

// counts say how many nodes are being drained, in all and by group.
type counts struct {
	all   int
	group map[string]int
}

// join puts a node into the line, or gives it a better place if it is there.
func (l *line) join(p place) {
	i := slices.IndexFunc(l.places, func(other place) bool { return other.node == p.node })
	if i < 0 {
		l.places = append(l.places, p)
		return
	}
	there := &l.places[i]
	there.urgent = there.urgent || p.urgent
	if byDeadline(p.deadline, there.deadline) < 0 {
		there.deadline = p.deadline
	}
}

// next are those in the line that may begin, the most urgent first. busy counts those that are being drained. What waits for
// its own group holds nobody else up.
func (l *line) next(busy counts) []place {
	slices.SortFunc(l.places, urgency)
	var begin []place
	for _, p := range l.places {
		full := l.limits.Draining > 0 && busy.all >= l.limits.Draining || l.limits.Group > 0 && busy.group[p.group] >= l.limits.Group
		if full && !p.urgent {
			continue
		}
		busy.all++
		busy.group[p.group]++
		begin = append(begin, p)
	}
	return begin
}

// hurried are those in the line that do not wait.
func (l *line) hurried() []place {
	waits := func(p place) bool { return !p.urgent && (l.limits.Draining > 0 || l.limits.Group > 0) }
	slices.SortFunc(l.places, urgency)
	return slices.DeleteFunc(slices.Clone(l.places), waits)
}

// leave takes those out of the line that begin.
func (l *line) leave(begin []place) {
	l.places = slices.DeleteFunc(l.places, func(p place) bool {
		return slices.ContainsFunc(begin, func(gone place) bool { return gone.node == p.node })
	})
}

// urgency orders places: what is urgent before all, then the nearer deadline, then who came first.
func urgency(a, b place) int {
	if a.urgent != b.urgent {
		if a.urgent {
			return -1
		}
		return 1
	}
	return cmp.Or(byDeadline(a.deadline, b.deadline), a.since.Compare(b.since), cmp.Compare(a.node, b.node))
}

// byDeadline puts the nearer deadline first, and none last.
func byDeadline(a, b time.Time) int {
	if a.IsZero() != b.IsZero() {
		if a.IsZero() {
			return 1
		}
		return -1
	}
	return a.Compare(b)
}
