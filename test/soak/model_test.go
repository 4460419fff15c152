package soak_test

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/nth-project/nth/pkg/event"
)

// The model knows what is announced, what the rules are and what people and nth-queue have done, and from that what the
// node must look like when things have settled. It follows the documents in docs/ and shares no decision with nth's own
// code. Where the outcome depends on which of two things nth noticed first, it allows both and goes on from the one that
// is found.

// An owner is who holds the node's cordon.
type owner string

const (
	nobody owner = "nobody"
	admin  owner = "an administrator"
	nth    owner = "nth"
	queue  owner = "nth-queue"
)

// A want is what a notice asks for when its time has come, from the weakest to the strongest.
type want int

const (
	ignored want = iota
	nothing
	cordon
	drain
)

// An order is an administrator's, to let the node take pods in spite of a notice: given by lifting the cordon.
type order int

const (
	none order = iota
	// perhaps: nth may have heard of it, or have forgotten it, or taken the notice for another one since.
	perhaps
	given
)

// A notice is something that EC2 announces for the machine.
type notice struct {
	kind event.Kind
	code string
	id   string // of a maintenance event; empty for other kinds
	// at is the deadline, or for a recommendation when it was given. times are all that it has had: where a notice takes
	// the place of another like it, only its time has moved.
	at    time.Time
	times []time.Time
	// announced is when it was, by the wall clock.
	announced time.Time
	bootID    string // of a termination, which is a new one in each boot

	wants want
	hard  bool // the machine is gone at the deadline
	brief bool // the cordon has a time to live
	far   bool // its time has not come
	over  bool // the machine has been through it, or its time to live is over
	// rebooted tells that the machine was rebooted after nth had acted upon it.
	rebooted bool

	order     order
	ordered   int // when
	orderedAt time.Time
	// open tells that what it asks for is not done: something holds pods.
	open bool

	// What follows concerns the present round. fresh tells that nth must act upon it, for the first time or again, and
	// since when; shaky that it was missing for a moment; moved that its time was changed.
	fresh bool
	since int
	shaky bool
	moved bool
	// expired tells that its cordon had a time to live for a moment, which may have been over.
	expired bool
}

// acts tells whether nth has something to do, or has done it, for the notice as it now is.
func (n *notice) acts() bool { return n.wants >= cordon && !n.far && !n.over }

// obeys tells whether a notice has the node closed: nothing stands against it.
func (n *notice) obeys() bool { return n.acts() && n.order == none && !n.brief && !n.mayBeOver() }

// mayBeOver tells of a notice whose time to live may have been over, and of a spot notice whose time has passed, after a reboot: that
// is over as soon as a look does not find it, or fails.
func (n *notice) mayBeOver() bool {
	return n.expired || n.kind == event.SpotInterruption && n.rebooted && time.Now().After(n.at)
}

// like tells whether nth takes one notice for the other with another time (docs/events.md).
func (n *notice) like(other *notice) bool {
	switch n.kind {
	case event.SpotInterruption:
		return other.kind == n.kind && other.code == n.code
	case event.RebalanceRecommendation:
		return other.kind == n.kind
	default:
		return false
	}
}

// A pod is one that was put on the node, or found there.
type pod struct {
	name string
	// came is when it did; 0 if it was there before the first round. born is the same, and 0 once a round has begun since.
	came, born int
	guarded    bool // by a disruption budget that never yields
	patient    bool // people let it run until a deadline
	never      bool // people let it end with the machine
	returning  bool // its controller brings it back
	spared     bool // it belongs to the node
}

// held tells whether a pod stays until a hard deadline needs it gone.
func (p *pod) held() bool { return p.guarded || p.patient }

type model struct {
	notices []*notice
	// gone are the notices that were withdrawn in this round.
	gone []*notice
	// spent are the terminations that were withdrawn, and forgotten those of them of which nth's record knew that was lost since.
	spent, forgotten []termination
	pods             map[types.UID]*pod
	// owner is who held the cordon when things had settled last, or to whom it was left since.
	owner owner
	// limited tells that people want the node's pods left alone, and limitedNow that they may not have been heard yet.
	limited, limitedNow bool
	limitedAt           time.Time // when they said so last
	// starting tells that the machine has been rebooted and its kubelet does not run yet, and restrained that the node is to
	// stay closed until then.
	starting, restrained bool
	// now counts what happens.
	now int
	// mayDrain, mayForce and mayCordon tell that something was there in this round, and is no more, for which nth may have
	// drained, drained before a hard deadline, or cordoned. cordons and uncordons count what others did in it. troubled
	// tells that something was broken in it, so that no time can be promised.
	mayDrain, mayForce, mayCordon bool
	cordons, uncordons            int
	troubled                      bool
}

// A termination is all that tells one from another: the next of its sort in the same boot bears the same name.
type termination struct{ code, bootID string }

func (n *notice) termination() termination { return termination{n.code, n.bootID} }

func newModel() *model { return &model{owner: nobody, pods: map[types.UID]*pod{}} }

// tick returns the number of what happens now.
func (m *model) tick() int {
	m.now++
	return m.now
}

// announce adds a notice, which is fresh if its time has come. One that takes the place of another like it is that one.
func (m *model) announce(n *notice) {
	n.times = []time.Time{n.at}
	for _, other := range m.notices {
		if !n.like(other) || other.over && !other.hasExpired() || other.wants == ignored {
			continue
		}
		other.times = append(other.times, n.at)
		if other.hasExpired() {
			return // It stays so, whatever its time.
		}
		if n.kind == event.SpotInterruption && n.at.Before(other.at) {
			other.at = n.at
		}
		m.doubt(other)
		return
	}
	if n.kind != event.ScheduledMaintenance { // its document holds one notice
		for _, replaced := range m.of(n.kind) {
			m.withdraw(replaced)
		}
	}
	for _, other := range m.gone {
		if n.like(other) && (!other.over || other.hasExpired()) { // nth may not have looked in between
			n.times = slices.Concat(other.times, n.times)
			n.order = max(n.order, min(other.order, perhaps))
			n.expired = n.expired || other.hasExpired()
		}
	}
	if n.kind == event.ASGTermination && slices.Contains(m.forgotten, n.termination()) {
		n.order = max(n.order, perhaps) // A claim that is left on the Node may name it, and nobody knows that it was given up since.
	}
	m.notices = append(m.notices, n)
	m.refresh(n, n.order)
}

// refresh has nth act upon a notice anew.
func (m *model) refresh(n *notice, left order) {
	n.order, n.open, n.over = left, false, false
	n.fresh, n.shaky, n.since = n.acts(), false, m.tick()
	if m.starting && n.acts() {
		m.restrained = false
	}
}

// doubt notes that nth may take a notice for a new one, to which no order applies.
func (m *model) doubt(n *notice) {
	m.tick()
	m.unsettle(n)
	n.shaky = n.acts() && !n.fresh
	n.order = min(n.order, perhaps)
	if m.starting {
		m.restrained = false
	}
}

// unsettle notes what nth may do, or be doing, for a notice that is about to change or to go.
func (m *model) unsettle(n *notice) {
	if n.order == given && !n.open {
		return
	}
	m.mayDrain = m.mayDrain || n.acts() && n.wants == drain
	m.mayForce = m.mayForce || n.acts() && n.wants == drain && n.hard
	m.mayCordon = m.mayCordon || n.acts() && (n.fresh || n.shaky || n.order == perhaps)
}

// withdraw removes a notice, for whatever reason.
func (m *model) withdraw(n *notice) {
	m.tick()
	m.unsettle(n)
	m.gone = append(m.gone, n)
	if n.kind == event.ASGTermination {
		m.spent = append(m.spent, n.termination())
	}
	m.notices = slices.DeleteFunc(m.notices, func(other *notice) bool { return other == n })
}

// move changes whether a notice's time has come.
func (m *model) move(n *notice, at time.Time, far bool) {
	m.unsettle(n)
	n.at, n.times = at, append(n.times, at)
	n.far, n.moved = far, true
	m.refresh(n, none)
}

// hasExpired tells whether a recommendation's time to live is over.
func (n *notice) hasExpired() bool { return n.kind == event.RebalanceRecommendation && n.over }

// isBack tells of a recommendation whose time to live is over whether other rules have it begin anew: that was a cordon's.
func (n *notice) isBack() bool {
	return n.hasExpired() && n.wants == drain
}

// follow takes over other rules.
func (m *model) follow(wants func(*notice) (want, bool)) {
	for _, n := range m.gone { // nth may not have heard that yet
		n.wants, n.brief = wants(n)
		n.over = n.over && !n.isBack()
		n.fresh = n.acts()
		m.unsettle(n)
	}
	for _, n := range m.notices {
		before, brief := n.wants, n.brief
		next, briefNow := wants(n)
		if next == before && brief == briefNow {
			continue
		}
		m.unsettle(n)
		left := n.order
		n.wants, n.brief, n.expired = next, briefNow, n.expired || brief
		switch {
		case n.isBack():
			n.expired = false
		case n.over:
			continue
		}
		if before <= nothing || next <= nothing { // It may be forgotten by then, or found on the Node.
			left = min(left, perhaps)
		}
		m.refresh(n, left)
	}
}

// reboot ends what a reboot ends. acted tells of a notice whether nth had begun to act upon it.
func (m *model) reboot(bootID string, acted func(*notice) bool) {
	m.tick()
	m.starting, m.restrained = true, true
	for _, n := range m.notices {
		n.rebooted = n.rebooted || acted(n)
		switch {
		case n.kind == event.ASGTermination:
			m.unsettle(n)
			n.bootID = bootID
			m.refresh(n, none)
		case len(n.times) > 1 && n.hasExpired():
			m.refresh(n, none) // Across a reboot, another time makes another notice,
			m.unsettle(n)
		case len(n.times) > 1 && n.kind != event.ScheduledMaintenance:
			m.doubt(n) // likewise.
		case n.reboots() && !n.over && acted(n):
			m.unsettle(n)
			n.over, n.fresh, n.shaky, n.open, n.order = true, false, false, false, none
		}
	}
}

// reboots tells whether what is announced is a reboot.
// waits tells of a notice that is acted upon when its time is near, and not before.
func (n *notice) waits() bool {
	return n.reboots() || n.code == "instance-stop" || n.code == "instance-retirement"
}

func (n *notice) reboots() bool { return n.code == "system-reboot" || n.code == "instance-reboot" }

// forget notes that nth has lost its record: whatever is announced is new to it. What people have ordered it may find
// again on the Node.
func (m *model) forget() {
	m.forgotten = slices.Clone(m.spent)
	for _, n := range m.notices {
		m.unsettle(n)
		m.refresh(n, min(n.order, perhaps))
		n.rebooted = false // it is met in this boot
	}
}

// opened notes that an administrator has let the node take pods, and whether nth has heard of it: that is awaited for what obeys.
func (m *model) opened(heard order) {
	m.tick()
	for _, n := range m.notices {
		if n.acts() && n.order != given {
			if !n.obeys() {
				n.order = perhaps
			} else {
				n.order = heard
			}
			n.ordered, n.orderedAt = m.now, time.Now()
		}
	}
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
