package notify_test

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/notify"
	"github.com/nth-project/nth/pkg/state"
)

// wantLabels compares the Node's labels: the kind, and the time of the maintenance. "" is none.
func (s *stage) wantLabels(kind, notBefore string) {
	s.t.Helper()
	s.cluster.mu.Lock()
	got := maps.Clone(s.cluster.labels)
	s.cluster.mu.Unlock()
	if got[notify.KindLabel] != kind || got[notify.MaintenanceLabel] != notBefore || len(got) != len(strings.Fields(kind+" "+notBefore)) {
		s.t.Errorf("the labels are %q, want %q and %q", got, kind, notBefore)
	}
}

// over closes all entries.
func (s *stage) over() {
	s.mu.Lock()
	entries := slices.Clone(s.entries)
	s.mu.Unlock()
	for _, e := range entries {
		e.Phase, e.Ending = state.Closed, state.Withdrawn
		s.tell(state.Transition{Kind: state.ClosedWith, Entry: e})
	}
	s.pass(10 * time.Second)
}

func TestLabels_FollowTheStandingEvents(t *testing.T) {
	maintenance := func(id, code string, at time.Time) state.Entry {
		e := entry(id, event.ScheduledMaintenance, state.Seen)
		e.Event.Code, e.Event.Deadline = code, at
		return e
	}
	tomorrow := time.Date(2000, 1, 2, 0, 0, 0, 0, time.UTC)
	first, second := maintenance("m1", "system-reboot", tomorrow), maintenance("m2", "system-reboot", tomorrow.Add(time.Hour))
	for name, c := range map[string]struct {
		entries         []state.Entry
		off, dry, brief bool
		kind, notBefore string
	}{
		"a spot interruption":      {entries: []state.Entry{spot(state.Draining)}, kind: "spot-interruption"},
		"a maintenance":            {entries: []state.Entry{first}, kind: "scheduled-maintenance", notBefore: "946771200"},
		"the earlier of two":       {entries: []state.Entry{second, first}, kind: "scheduled-maintenance", notBefore: "946771200"},
		"two kinds":                {entries: []state.Entry{first, spot(state.Seen)}, kind: "spot-interruption", notBefore: "946771200"},
		"in nth-queue":             {entries: []state.Entry{first, spot(state.Seen)}, brief: true, kind: "spot-interruption", notBefore: "946771200"},
		"no date":                  {entries: []state.Entry{maintenance("m", "system-reboot", time.Time{})}, kind: "scheduled-maintenance"},
		"a date before 1970":       {entries: []state.Entry{maintenance("m", "system-reboot", time.Unix(-5, 0))}, kind: "scheduled-maintenance", notBefore: "0"},
		"what is ignored":          {entries: []state.Entry{maintenance("m", "system-maintenance", tomorrow)}},
		"what an operator asks of": {entries: []state.Entry{entry("manual", event.Manual, state.Draining)}},
		"without the setting":      {entries: []state.Entry{first}, off: true},
		"in a dry run":             {entries: []state.Entry{first}, dry: true},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, bare, func(s *stage) {
				beating(s)
				s.opts.Labels, s.opts.DryRun, s.opts.Brief = !c.off, c.dry, c.brief
				s.start()
				s.wantLabels("", "")
				for _, e := range c.entries {
					s.tell(announced(e))
				}
				s.pass(10 * time.Second)
				s.wantLabels(c.kind, c.notBefore)
				s.end()
				s.start() // after a crash, too, with what is on the Node and in the record
				s.wantLabels(c.kind, c.notBefore)
				s.over()
				s.wantLabels("", "")
			})
		})
	}
}
