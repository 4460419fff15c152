package soak_test

import (
	"slices"
	"testing"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/record"
)

// The model is judged, too: what it allows in a few plain cases.
func TestTheModelKnowsWhatTheNodeMustLookLike(t *testing.T) {
	for _, c := range []struct {
		name   string
		happen func(m *model)
		owners []owner
		fate   fate // of a pod that was there before
	}{
		{"nothing happens", func(*model) {}, []owner{nobody}, stays},
		{"a notice", func(m *model) { m.announce(interruption()) }, []owner{nth}, mustGo},
		{"a notice that only cordons", func(m *model) { m.announce(hibernation()) }, []owner{nth}, stays},
		{"a notice that is withdrawn at once", func(m *model) {
			n := interruption()
			m.announce(n)
			m.withdraw(n)
		}, []owner{nobody}, mayGo},
		{"a notice for a drained node", func(m *model) {
			m.after(interruption())
			m.announce(hibernation())
		}, []owner{nth}, stays},
		{"one of two is withdrawn", func(m *model) {
			m.after(interruption(), hibernation())
			m.withdraw(m.notices[0])
		}, []owner{nth}, stays},
		{"both are", func(m *model) {
			m.after(interruption(), hibernation())
			m.withdraw(m.notices[0])
			m.withdraw(m.notices[0])
		}, []owner{nobody}, stays},
		{"an administrator cordons before", func(m *model) {
			m.admin(admin)
			m.announce(interruption())
		}, []owner{admin}, mustGo},
		{"an administrator uncordons", func(m *model) {
			m.after(interruption())
			m.admin(nobody)
		}, []owner{nobody}, stays},
		{"an administrator uncordons, and there is another notice", func(m *model) {
			m.after(interruption())
			m.admin(nobody)
			m.announce(hibernation())
		}, []owner{nth}, stays},
		{"the reboot that was announced", func(m *model) {
			m.after(&notice{kind: event.ScheduledMaintenance, code: "system-reboot", wants: drain})
			m.reboot("the next", func(*notice) bool { return true })
		}, []owner{nobody}, stays},
		{"the record is lost", func(m *model) {
			m.after(interruption())
			m.forget()
		}, []owner{nth}, mustGo},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newModel()
			c.happen(m)
			if owners := m.owners(); !slices.Equal(owners, c.owners) {
				t.Errorf("the cordon may be that of %v, want %v", owners, c.owners)
			}
			if is := m.fate(&pod{}); is != c.fate {
				t.Errorf("a pod that was there has the fate %d, want %d", is, c.fate)
			}
			if m.fate(&pod{spared: true}) != stays {
				t.Error("a pod of the node itself does not stay")
			}
		})
	}
}

// after lets notices be announced and things settle.
func (m *model) after(notices ...*notice) {
	for _, n := range notices {
		m.announce(n)
	}
	m.settled(nth, func(n *notice) record.Phase {
		if n.wants == drain {
			return record.Drained
		}
		return record.Cordoned
	})
}

func interruption() *notice {
	return &notice{kind: event.SpotInterruption, code: "terminate", wants: drain, hard: true}
}

func hibernation() *notice {
	return &notice{kind: event.SpotInterruption, code: "hibernate", wants: cordon}
}
