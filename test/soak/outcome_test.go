package soak_test

import (
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/record"
)

func (n *notice) mustHold() bool { return n.acts() && n.fresh && !n.brief && !n.mayBeOver() }
func (n *notice) holdsOn() bool {
	return n.acts() && !n.fresh && !n.shaky && n.holds == yes && !n.mayBeOver()
}
func (n *notice) isOpen() bool  { return n.acts() && n.open && !n.fresh }
func (n *notice) isShaky() bool { return n.acts() && (n.shaky || n.mayBeOver()) }

// mayBeOver tells of a spot notice whose time has passed, after a reboot: it is over as soon as a look does not find it,
// or fails.
func (n *notice) mayBeOver() bool {
	return n.kind == event.SpotInterruption && n.rebooted && time.Now().After(n.at)
}

// owners are those who may hold the cordon when things have settled.
func (m *model) owners() []owner {
	mustHold := m.any(func(n *notice) bool { return n.mustHold() && !(m.reopened() && !n.overtakes()) })
	shaky, open := m.any((*notice).isShaky), m.any((*notice).isOpen)
	maybe := m.any(func(n *notice) bool { return n.acts() && n.holds == maybe })
	switch m.owner {
	case admin:
		return []owner{admin}
	case nobody:
		cordoned := m.mayCordon || m.any(func(n *notice) bool { return n.acts() && n.fresh })
		switch {
		case mustHold:
			return []owner{nth}
		case shaky || open || maybe && cordoned: // what an administrator has undone may be done again
			return []owner{nth, nobody}
		}
		return []owner{nobody}
	}
	holds := m.any((*notice).holdsOn) || m.any(func(n *notice) bool { return n.isShaky() && n.holds == yes && !n.mayBeOver() })
	switch {
	case mustHold || holds:
		return []owner{nth}
	case shaky || open || maybe:
		return []owner{nth, nobody}
	}
	return []owner{nobody}
}

// reopened tells whether an administrator has uncordoned the node in the midst of a drain, which goes on with the pods
// that were there. Other notices wait for its end, but for those that overtake it.
func (m *model) reopened() bool { return m.owner == nobody && m.any((*notice).isOpen) }

func (n *notice) overtakes() bool { return n.wants == drain && n.hard }

// A fate is what becomes of a pod in a round.
type fate int

const (
	stays fate = iota
	mayGo
	mustGo
)

// fate tells what becomes of a pod in this round.
func (m *model) fate(p *pod) fate {
	drains := m.mayDrain
	forced := m.mayForce
	for _, n := range m.notices {
		if !n.acts() || n.wants != drain || !n.fresh && !n.shaky && !n.open {
			continue
		}
		drains, forced = true, forced || n.hard
		late := n.fresh && n.since < p.born // it may have come when the drain was over
		waits := m.reopened() && !n.overtakes()
		if !p.spared && !late && !waits && !n.isShaky() && (!p.guarded || n.hard) {
			return mustGo
		}
	}
	// A budget protects pods that have begun to run: those that were there when the round began.
	guarded := p.guarded && p.born == 0 && !forced
	if p.spared || guarded || !drains {
		return stays
	}
	return mayGo
}

// settled takes over what was found when things had settled, and begins the next round. phase is how far nth has come
// with a notice.
func (m *model) settled(found owner, phase func(*notice) record.Phase) {
	for _, n := range m.notices {
		reached := phase(n)
		n.over = n.over || n.acts() && !n.brief && reached == record.Closed
		n.open = n.acts() && reached != record.Drained && reached != record.Cordoned && reached != record.Closed
		switch {
		case n.brief && n.acts() && !n.open:
			n.holds, n.over = no, true
		case !n.acts() || found == admin && n.fresh:
			n.holds = no
		case found == admin && n.shaky:
			n.holds = min(n.holds, maybe) // it may not have been missing long enough for nth to look at the cordon
		case n.fresh:
			n.holds = yes
		case found == nobody && m.owner == nth:
			n.holds = no // it was lifted, for all
		case found == nth && m.owner == nobody:
			n.holds = maybe // for which of them is nth's secret
		}
		n.fresh, n.shaky, n.moved = false, false, false
	}
	m.owner = found
	m.mayDrain, m.mayForce, m.mayCordon, m.adminCordons, m.adminUncordons = false, false, false, 0, 0
}
