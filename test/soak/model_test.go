package soak_test

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/nth-project/nth/pkg/event"
)

// The model knows what is announced and what an administrator has done, and from that what the node must look like when
// things have settled. It follows the documents in docs/ and shares no decision with nth's own code. Where the outcome
// depends on which of two things nth noticed first, it allows both and goes on from the one that is found.

// An owner is who holds the node's cordon.
type owner string

const (
	nobody owner = "nobody"
	admin  owner = "an administrator"
	nth    owner = "nth"
)

// A want is what a notice asks for when its time has come.
type want int

const (
	nothing want = iota
	cordon
	drain
)

// hold tells whether the node's cordon is kept for a notice.
type hold int

const (
	no hold = iota
	maybe
	yes
)

// A notice is something that EC2 announces for the machine.
type notice struct {
	kind   event.Kind
	code   string
	id     string    // of a maintenance event; empty for other kinds
	at     time.Time // the deadline, or for a recommendation when it was given
	bootID string    // of a termination, which is a new one in each boot

	wants want
	hard  bool // the machine is gone at the deadline
	brief bool // the cordon has a time to live
	far   bool // its time has not come
	over  bool // the machine has been through it
	// rebooted tells that the machine was rebooted after nth had acted upon it.
	rebooted bool

	holds hold
	// open tells that what it asks for is not done: a disruption budget holds pods, and with them its own drain or the
	// one for which it waits.
	open bool

	// What follows concerns the present round. fresh tells that nth must act upon it, for the first time or again, and
	// since when; shaky that it was missing for a moment, so that nth may act upon it again; moved that its time was
	// changed.
	fresh bool
	since int
	shaky bool
	moved bool
}

// acts tells whether nth has something to do, or has done it, for the notice as it now is.
func (n *notice) acts() bool { return n.wants != nothing && !n.far && !n.over }

// A pod is one that was put on the node, or found there.
type pod struct {
	name    string
	born    int
	guarded bool // by a disruption budget that never yields
	spared  bool // it belongs to the node
}

type model struct {
	notices []*notice
	pods    map[types.UID]*pod
	// owner is who held the cordon when things had settled last, or whom the administrator has left it to since.
	owner owner
	// now counts what happens.
	now int
	// mayDrain, mayForce and mayCordon tell that something was there in this round, and is no more, for which nth may have
	// drained, drained before a hard deadline, or cordoned. adminCordons and adminUncordons count what the administrator
	// did in it.
	mayDrain, mayForce, mayCordon bool
	adminCordons, adminUncordons  int
}

func newModel() *model { return &model{owner: nobody, pods: map[types.UID]*pod{}} }

// tick returns the number of what happens now.
func (m *model) tick() int {
	m.now++
	return m.now
}

// announce adds a notice, which is fresh if its time has come.
func (m *model) announce(n *notice) {
	m.notices = append(m.notices, n)
	m.refresh(n)
}

// refresh has nth act upon a notice anew.
func (m *model) refresh(n *notice) {
	n.holds, n.open, n.over = no, false, false
	n.fresh, n.shaky, n.since = n.acts(), false, m.tick()
}

// unsettle notes what nth may do, or be doing, for a notice that is about to change or to go.
func (m *model) unsettle(n *notice) {
	busy := n.acts() && (n.fresh || n.shaky || n.open)
	m.mayAct(n, busy)
}

func (m *model) mayAct(n *notice, may bool) {
	m.mayCordon = m.mayCordon || may
	m.mayDrain = m.mayDrain || may && n.wants == drain
	m.mayForce = m.mayForce || may && n.wants == drain && n.hard
}

// withdraw removes a notice, for whatever reason.
func (m *model) withdraw(n *notice) {
	m.tick()
	m.unsettle(n)
	m.notices = slices.DeleteFunc(m.notices, func(other *notice) bool { return other == n })
}

// move changes whether a notice's time has come.
func (m *model) move(n *notice, at time.Time, far bool) {
	m.unsettle(n)
	n.at, n.far, n.moved = at, far, true
	m.refresh(n)
}

// flicker notes that a notice was missing for a moment.
func (m *model) flicker(n *notice) {
	m.tick()
	n.shaky = n.acts() && !n.fresh
	m.mayAct(n, n.acts())
}

// reboot ends what a reboot ends. acted tells of a notice whether nth had begun to act upon it.
func (m *model) reboot(bootID string, acted func(*notice) bool) {
	m.tick()
	for _, n := range m.notices {
		n.rebooted = n.rebooted || acted(n)
		switch {
		case n.kind == event.ASGTermination:
			m.unsettle(n)
			n.bootID = bootID
			m.refresh(n)
		case n.reboots() && !n.over && acted(n):
			m.unsettle(n)
			n.over, n.fresh, n.shaky, n.open, n.holds = true, false, false, false, no
		}
	}
}

// reboots tells whether what is announced is a reboot.
func (n *notice) reboots() bool { return n.code == "system-reboot" || n.code == "instance-reboot" }

// forget notes that nth has lost its record: whatever is announced is new to it.
func (m *model) forget() {
	for _, n := range m.notices {
		m.unsettle(n)
		m.refresh(n)
		n.rebooted = false // it is met in this boot
	}
}

// admin notes what an administrator did to the node while all was quiet.
func (m *model) admin(next owner) {
	if m.owner == nth {
		for _, n := range m.notices {
			n.holds = min(n.holds, maybe) // nth does not look, and believes it still has the cordon
		}
	}
	switch {
	case m.owner == nobody:
		m.adminCordons++
	case next == nobody:
		m.adminUncordons++
	}
	m.owner = next
}

// of returns the notices of a kind.
func (m *model) of(kind event.Kind) []*notice {
	var found []*notice
	for _, n := range m.notices {
		if n.kind == kind {
			found = append(found, n)
		}
	}
	return found
}

// any tells whether one of the notices is such.
func (m *model) any(is func(*notice) bool) bool { return slices.ContainsFunc(m.notices, is) }
