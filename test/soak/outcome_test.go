package soak_test

import (
	"slices"
	"time"

	"github.com/nth-project/nth/pkg/state"
)

// holdsOn tells whether the node was to be closed for a notice all the time since the round began.
func (n *notice) holdsOn() bool { return n.obeys() && !n.fresh && !n.shaky }

// isDoubtful tells whether a notice may have the node closed, or may not.
func (n *notice) isDoubtful() bool {
	return n.acts() && !n.brief && (n.order == perhaps || n.order == none && n.mayBeOver())
}

// owners are those who may hold the cordon when things have settled.
func (m *model) owners() []owner {
	switch {
	case m.owner == admin || m.owner == queue:
		return []owner{m.owner}
	case m.any((*notice).obeys):
		return []owner{nth}
	case m.any((*notice).isDoubtful):
		return []owner{nth, nobody}
	}
	return []owner{nobody}
}

// mayCordonNow tells whether nth may have cordoned the node in this round.
func (m *model) mayCordonNow() bool {
	doubtful := m.owner == nobody && m.any((*notice).isDoubtful) // It is closed at the next look, if at all.
	return m.mayCordon || doubtful || m.any(func(n *notice) bool { return n.acts() && (n.fresh || n.shaky || n.order == perhaps) })
}

// drains tells whether the node is to be drained now, and before a hard deadline.
func (m *model) drains() (now, forced bool) {
	for _, n := range m.notices {
		if n.obeys() && n.wants == drain {
			now, forced = true, forced || n.hard
		}
	}
	return now && !m.limited, forced && !m.limited
}

// mayDrainFor tells whether a pod may have been ended in this round, and whether with force.
func (m *model) mayDrainFor(p *pod) (may, forced bool) {
	may, forced = m.mayDrain, m.mayForce
	others := m.any(func(n *notice) bool { return n.acts() && n.order != given })
	for _, n := range m.notices {
		if !n.acts() || n.wants != drain {
			continue
		}
		// A drain that was under way when the node was opened goes on with the pods that were there. If the node is closed
		// again for another notice, there is no telling which those were.
		if n.order == given && (!n.open || p.came > n.ordered && !others) {
			continue
		}
		may, forced = true, forced || n.hard
	}
	return may, forced
}

// A fate is what becomes of a pod in a round.
type fate int

const (
	stays fate = iota
	mayGo
	mustGo
)

// fate tells what becomes of a pod in this round.
func (m *model) fate(p *pod) fate {
	switch {
	case p.spared || p.never || m.limited && !m.limitedNow && !m.mayBeBlind():
		return stays
	case p.returning:
		return mayGo
	}
	if now, forced := m.drains(); now && (forced || !p.held()) {
		return mustGo
	}
	may, forced := m.mayDrainFor(p)
	// A budget protects pods that have begun to run: those that were there when the round began.
	protected := p.patient || p.guarded && p.born == 0
	if !may || protected && !forced {
		return stays
	}
	return mayGo
}

// mayBeBlind tells whether nth may have had to do without a look at the Node, and so without what people want: the machine is to be lost,
// and the API server did not answer. What it has heard before stands.
func (m *model) mayBeBlind() bool {
	return m.troubled && m.any(func(n *notice) bool { return n.acts() && n.fresh && n.hard && n.wants == drain })
}

// phases are those in which a notice may be when things have settled, in nth's record.
func (n *notice) phases() []state.Phase {
	switch {
	case n.over, n.wants == ignored:
		return []state.Phase{state.Closed}
	case !n.acts() && n.expired:
		return []state.Phase{state.Seen, state.Closed}
	case !n.acts():
		return []state.Phase{state.Seen}
	}
	phases := []state.Phase{state.Draining, state.Incomplete, state.Drained}
	if n.wants == cordon {
		phases = []state.Phase{state.Cordoned}
	}
	switch {
	case n.brief && n.order == none:
		return []state.Phase{state.Closed}
	case n.order != none: // whatever was reached for it then
		phases = []state.Phase{state.Cordoning, state.Cordoned, state.Draining, state.Incomplete, state.Drained, state.Undoing}
	}
	if n.brief || n.mayBeOver() {
		phases = append(phases, state.Closed)
	}
	return phases
}

// done tells of a phase whether nothing more is to be done.
func done(reached state.Phase) bool {
	return slices.Contains([]state.Phase{state.Drained, state.Cordoned, state.Closed}, reached)
}

// settled takes over what was found when things had settled, and begins the next round. entry is what nth remembers of a
// notice.
func (m *model) settled(found owner, entry func(*notice) state.Entry) {
	for _, n := range m.notices {
		e := entry(n)
		n.over = n.over || (n.acts() || n.expired) && e.Phase == state.Closed
		n.open = n.acts() && (!done(e.Phase) || e.LeftAlone) // It is drained again when people want the node left alone no more.
		// While the node is open for one that wants it closed, nth has not looked at it yet; and it may not have looked before nth-queue
		// closed it, and may not do so before nth-queue opens it: then it finds its own cordon gone, as people have lifted it.
		unlooked := found == nobody || found == queue && time.Since(n.orderedAt) < heardWithin
		if unheard := unlooked && n.acts() && !e.Released(); n.order == perhaps && !unheard {
			n.order = map[bool]order{true: given, false: none}[e.Released()]
		}
		if !n.acts() {
			n.order = none
		}
		n.fresh, n.shaky, n.moved, n.expired = false, false, false, false
	}
	m.owner, m.gone = found, nil
	m.limitedNow = m.limited && time.Since(m.limitedAt) < heardWithin
	m.troubled, m.restrained = false, false
	m.mayDrain, m.mayForce, m.mayCordon, m.cordons, m.uncordons = false, false, false, 0, 0
}
