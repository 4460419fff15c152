package soak_test

import (
	"slices"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/state"
)

// The model is judged, too: what it allows in a few plain cases. Each is of a pod that was there before, of one that a
// budget holds, and of one that comes at the end.
func TestTheModelKnowsWhatTheNodeMustLookLike(t *testing.T) {
	for _, c := range []struct {
		name             string
		happen           func(m *model)
		owners           []owner
		fate, held, late fate
	}{
		{"nothing happens", func(*model) {}, []owner{nobody}, stays, stays, stays},
		{"a notice", func(m *model) { m.announce(interruption()) }, []owner{nth}, mustGo, mustGo, mustGo},
		{"a notice without a hard deadline", func(m *model) { m.announce(retirement()) }, []owner{nth}, mustGo, stays, mustGo},
		{"a notice that only cordons", func(m *model) { m.announce(hibernation()) }, []owner{nth}, stays, stays, stays},
		{"a notice that is withdrawn at once", func(m *model) {
			n := interruption()
			m.announce(n)
			m.withdraw(n)
		}, []owner{nobody}, mayGo, mayGo, mayGo},
		{"a node that was drained", func(m *model) { m.after(retirement()) }, []owner{nth}, mustGo, stays, mustGo},
		{"a notice for a drained node", func(m *model) {
			m.after(retirement())
			m.announce(interruption())
		}, []owner{nth}, mustGo, mustGo, mustGo},
		{"one of two is withdrawn", func(m *model) {
			m.after(interruption(), retirement())
			m.withdraw(m.notices[0])
		}, []owner{nth}, mustGo, mayGo, mustGo},
		{"both are", func(m *model) {
			m.after(interruption(), retirement())
			m.withdraw(m.notices[0])
			m.withdraw(m.notices[0])
		}, []owner{nobody}, mayGo, mayGo, mayGo},
		{"an administrator cordons before", func(m *model) {
			m.owner = admin
			m.announce(interruption())
		}, []owner{admin}, mustGo, mustGo, mustGo},
		{"nth-queue cordons before", func(m *model) {
			m.owner = queue
			m.announce(interruption())
		}, []owner{queue}, mustGo, mustGo, mustGo},
		{"nth-queue lifts its cordon", func(m *model) {
			m.after(retirement())
			m.owner = nobody
		}, []owner{nth}, mustGo, stays, mustGo},
		{"an administrator uncordons", func(m *model) {
			m.after(interruption())
			m.opened(given)
		}, []owner{nobody}, stays, stays, stays},
		{"nth may not have heard of it", func(m *model) {
			m.after(interruption())
			m.opened(perhaps)
		}, []owner{nth, nobody}, mayGo, mayGo, mayGo},
		{"nor is that awaited for a spot notice whose time is over since a reboot", func(m *model) {
			m.after(interruption())
			m.notices[0].at, m.notices[0].rebooted = time.Now().Add(-time.Second), true
			m.opened(given)
		}, []owner{nth, nobody}, mayGo, mayGo, mayGo},
		{"nth may not have heard of it, and nth-queue cordons and uncordons", func(m *model) { m.betweenLooks(heardWithin / 2) }, []owner{nth, nobody}, mayGo, mayGo, mayGo},
		{"and nth must have looked between", func(m *model) { m.betweenLooks(2 * heardWithin) }, []owner{nth}, mustGo, mustGo, mustGo},
		{"an administrator uncordons, and there is another notice", func(m *model) {
			m.after(interruption())
			m.opened(given)
			m.announce(retirement())
		}, []owner{nth}, mustGo, stays, mustGo},
		{"only the time of a notice moves", func(m *model) {
			m.after(interruption())
			m.opened(given)
			m.announce(interruption())
		}, []owner{nth, nobody}, mayGo, mayGo, mayGo},
		{"people want the pods left alone", func(m *model) {
			m.limited = true
			m.announce(interruption())
		}, []owner{nth}, stays, stays, stays},
		{"and nth may not be able to read that in time", func(m *model) {
			m.limited, m.troubled = true, true
			m.announce(interruption())
		}, []owner{nth}, mayGo, mayGo, mayGo},
		{"and nth has read it before", func(m *model) {
			m.after(interruption())
			m.limited, m.troubled = true, true
		}, []owner{nth}, stays, stays, stays},
		{"the rules ask for nothing any more", func(m *model) {
			m.after(retirement())
			m.follow(func(*notice) (want, bool) { return nothing, false })
		}, []owner{nobody}, mayGo, stays, mayGo},
		{"the rules ask for a drain", func(m *model) {
			m.after(hibernation())
			m.follow(func(*notice) (want, bool) { return drain, false })
		}, []owner{nth}, mustGo, mustGo, mustGo},
		{"a recommendation whose time to live is over", func(m *model) { m.expire() }, []owner{nobody}, stays, stays, stays},
		{"and then the rules ask for a cordon that stays", func(m *model) {
			m.expire()
			m.follow(func(*notice) (want, bool) { return cordon, false })
		}, []owner{nobody}, stays, stays, stays},
		{"and then the rules ask for a drain", func(m *model) {
			m.expire()
			m.follow(func(*notice) (want, bool) { return drain, false })
		}, []owner{nth}, mustGo, stays, mustGo},
		{"and it is withdrawn before", func(m *model) {
			m.expire()
			m.withdraw(m.notices[0])
			m.follow(func(*notice) (want, bool) { return drain, false })
		}, []owner{nobody}, mayGo, stays, mayGo},
		{"and it is announced again with another time", func(m *model) {
			m.expire()
			m.announce(&notice{kind: event.RebalanceRecommendation, wants: cordon, brief: true})
		}, []owner{nobody}, stays, stays, stays},
		{"the reboot that was announced", func(m *model) {
			m.after(&notice{kind: event.ScheduledMaintenance, code: "system-reboot", wants: drain})
			m.reboot("the next", func(*notice) bool { return true })
		}, []owner{nobody}, mayGo, stays, mayGo},
		{"the record is lost", func(m *model) {
			m.after(interruption())
			m.forget()
		}, []owner{nth}, mustGo, mustGo, mustGo},
		{"a termination that was withdrawn before", func(m *model) {
			m.after(terminated("boot-1"))
			m.withdraw(m.notices[0])
			m.announce(terminated("boot-1"))
		}, []owner{nth}, mustGo, mustGo, mustGo},
		{"and the record is lost between", func(m *model) {
			m.after(terminated("boot-1"))
			m.withdraw(m.notices[0])
			m.forget()
			m.announce(terminated("boot-1"))
		}, []owner{nth, nobody}, mayGo, mayGo, mayGo},
		{"and is another one, of the next boot", func(m *model) {
			m.after(terminated("boot-1"))
			m.withdraw(m.notices[0])
			m.forget()
			m.announce(terminated("boot-2"))
		}, []owner{nth}, mustGo, mustGo, mustGo},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newModel()
			c.happen(m)
			if owners := m.owners(); !slices.Equal(owners, c.owners) {
				t.Errorf("the cordon may be that of %v, want %v", owners, c.owners)
			}
			late := &pod{came: m.tick(), born: m.now}
			got := []fate{m.fate(&pod{}), m.fate(&pod{guarded: true}), m.fate(late)}
			if want := []fate{c.fate, c.held, c.late}; !slices.Equal(got, want) {
				t.Errorf("the pods have the fates %v, want %v", got, want)
			}
			if m.fate(&pod{spared: true}) != stays || m.fate(&pod{never: true}) != stays {
				t.Error("a pod of the node itself, or one that is to end with the machine, does not stay")
			}
		})
	}
}

// What comes of an event is told again if it was not settled, or if people have had the node left alone since, and change their mind.
func TestTheModelKnowsWhatMayBeToldAgain(t *testing.T) {
	for _, c := range []struct {
		name  string
		entry state.Entry
		open  bool
	}{
		{"a node that is drained", state.Entry{Phase: state.Drained}, false},
		{"one that was drained, and is left alone now", state.Entry{Phase: state.Drained, LeftAlone: true}, true},
		{"one that is being drained", state.Entry{Phase: state.Draining}, true},
		{"one that is left alone", state.Entry{Phase: state.Draining, LeftAlone: true}, true},
		{"one that has run out of time", state.Entry{Phase: state.Incomplete}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, n := newModel(), retirement()
			m.announce(n)
			m.settled(nth, func(*notice) state.Entry { return c.entry })
			if n.open != c.open || !n.holdsOn() {
				t.Errorf("it is open: %t, want %t; the node is to be closed all the time: %t", n.open, c.open, n.holdsOn())
			}
		})
	}
}

// after lets notices be announced and things settle.
func (m *model) after(notices ...*notice) {
	for _, n := range notices {
		m.announce(n)
	}
	m.settled(nth, func(n *notice) state.Entry {
		if n.wants == drain {
			return state.Entry{Phase: state.Drained}
		}
		return state.Entry{Phase: state.Cordoned}
	})
}

// expire lets a recommendation be announced for which the node is cordoned for a while, and that be over.
func (m *model) expire() {
	m.announce(&notice{kind: event.RebalanceRecommendation, wants: cordon, brief: true})
	m.settled(nobody, func(*notice) state.Entry { return state.Entry{Phase: state.Closed, Ending: state.Expired} })
}

// betweenLooks has people uncordon the node, and nth-queue cordon and uncordon it some time later, of all of which nth notes nothing.
func (m *model) betweenLooks(later time.Duration) {
	m.after(interruption())
	m.opened(perhaps)
	m.notices[0].orderedAt = time.Now().Add(-later)
	m.settled(queue, func(*notice) state.Entry { return state.Entry{Phase: state.Drained} })
	m.owner = nobody
}

func interruption() *notice {
	return &notice{kind: event.SpotInterruption, code: "terminate", wants: drain, hard: true, at: time.Now().Add(time.Minute)}
}

func hibernation() *notice {
	return &notice{kind: event.SpotInterruption, code: "hibernate", wants: cordon, hard: true, at: time.Now().Add(time.Minute)}
}

func retirement() *notice {
	return &notice{kind: event.ScheduledMaintenance, code: "instance-retirement", wants: drain}
}

func terminated(bootID string) *notice {
	return &notice{kind: event.ASGTermination, code: "Terminated", bootID: bootID, wants: drain, hard: true}
}
