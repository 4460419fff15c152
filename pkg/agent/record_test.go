package agent_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/agent"
	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/systemd"
)

// refusing is a Record that does not take what cannot be encoded, as pkg/record does not, nor anything of one event.
type refusing struct {
	*memory
	event   atomic.Pointer[string]
	refused atomic.Int64
}

// refuses is the event of which nothing is taken from now on; empty for none.
func (m *refusing) refuses(id string) { m.event.Store(&id) }

// endless is how often is refused what is put again and again, so that a test of that ends.
const endless = 1000

func (m *refusing) Put(written func(error), entries ...state.Entry) {
	taken := slices.DeleteFunc(slices.Clone(entries), func(e state.Entry) bool {
		_, err := json.Marshal(e)
		id := m.event.Load()
		return (err != nil || id != nil && e.Event.ID == *id) && m.refused.Add(1) < endless
	})
	var refused error
	if len(taken) < len(entries) {
		refused = errors.New("year outside of range")
	}
	if len(taken) == 0 && refused != nil {
		written(refused)
		return
	}
	m.memory.Put(func(err error) { written(errors.Join(refused, err)) }, taken...)
}

// incredible are times that no record can hold, or that cannot be counted from.
var incredible = map[string]time.Time{
	"after the last year":           time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC),
	"after the last year elsewhere": time.Date(9999, 12, 31, 23, 59, 59, 0, time.FixedZone("", -3600)),
	"in the last year":              time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC),
	"long after":                    time.Date(292277026596, 12, 4, 15, 30, 7, 0, time.UTC),
	"in the year 0":                 time.Date(0, 6, 1, 0, 0, 0, 0, time.UTC),
	"before the year 0":             time.Date(-1, 12, 31, 23, 0, 0, 0, time.UTC),
	"before the year 0 elsewhere":   time.Date(0, 1, 1, 0, 0, 0, 0, time.FixedZone("", 3600)),
	"in a zone that is none":        time.Date(10000, 1, 1, 0, 0, 0, 0, time.FixedZone("", 24*3600)),
}

// The loop would put it again and again.
func TestATimeThatNoRecordCanHoldIsNone(t *testing.T) {
	t.Parallel()
	fields := map[string]func(*event.Event) *time.Time{
		"deadline": func(ev *event.Event) *time.Time { return &ev.Deadline },
		"noticed":  func(ev *event.Event) *time.Time { return &ev.Noticed },
		"until":    func(ev *event.Event) *time.Time { return &ev.Until },
	}
	for when, at := range incredible {
		for what, field := range fields {
			t.Run(what+" "+when, func(t *testing.T) {
				t.Parallel()
				bubble(t, func(r *rig) {
					m := &refusing{memory: r.record}
					r.cfg.Record = m
					r.run()
					for _, ev := range []event.Event{r.spot("a", time.Minute), r.stopping("b", time.Minute)} {
						*field(&ev) = at
						r.announce(ev)
						if e := r.entry(ev.ID); m.refused.Load() > 0 || !field(&e.Event).IsZero() || e.Phase != state.Drained {
							t.Errorf("refused %d times, and then %+v", m.refused.Load(), e)
						}
					}
				})
			})
		}
	}
}

// A document in a zone that RFC 3339 allows and JSON does not.
func TestATimeInAZoneThatNoRecordCanHoldIsKept(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		m := &refusing{memory: r.record}
		r.cfg.Record = m
		r.run()
		ev := r.spot("a", time.Minute)
		ev.Deadline = ev.Deadline.In(time.FixedZone("", 24*3600))
		r.announce(ev)
		if e := r.entry("a"); m.refused.Load() > 0 || !e.Event.Deadline.Equal(ev.Deadline) || e.Phase != state.Drained {
			t.Errorf("refused %d times, and then %+v", m.refused.Load(), e)
		}
	})
}

// The order on the Node says when the cordon was set, and people can write there what they like.
func TestAClaimSinceATimeThatNobodyBelievesIsSinceNow(t *testing.T) {
	t.Parallel()
	for when, at := range incredible {
		t.Run(when, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(r *rig) {
				m := &refusing{memory: r.record}
				r.cfg.Record = m
				r.node.toClaim(func(context.Context) (drain.Claim, bool, error) {
					return drain.Claim{Event: "a", Kind: string(event.ScheduledMaintenance), BootID: "boot-1", Since: at}, true, nil
				})
				r.run()
				e := r.entry("a")
				for what, got := range map[string]time.Time{"first seen": e.FirstSeen, "cordoned": e.CordonedAt, "acted for": e.ActedFor} {
					if !got.Equal(r.start) {
						t.Errorf("%s at %s, want now", what, got)
					}
				}
				r.announce(r.rebooting("a", 10*time.Hour)) // It is not due yet, so it was put off.
				if e := r.entry("a"); m.refused.Load() > 0 || e.Phase != state.Seen {
					t.Errorf("refused %d times, and then %+v", m.refused.Load(), e)
				}
			})
		})
	}
}

// Whatever it is that the record does not take: the loop goes on, what is known of other events is done, and nobody is told that the
// event is settled.
func TestWhatTheRecordRefusesIsPutSeldomAndHoldsNothingElseUp(t *testing.T) {
	t.Parallel()
	settling(t, func(r *rig, settled func() []string) {
		m := &refusing{memory: r.record}
		m.refuses("a")
		heard := &ear{}
		r.cfg.Record, r.cfg.Listeners = m, []agent.Listener{heard}
		r.run()
		r.announce(terminated("a"), r.spot("b", 2*time.Minute))
		r.pass(time.Minute)
		r.wantSettled(settled(), "b after 0s")
		if n := m.refused.Load(); n < 2 || n > 10 {
			t.Errorf("it was put %d times within a minute, want it to be tried now and then", n)
		}
		if said := r.said(systemd.StateTrouble); len(said) != 1 {
			t.Errorf("what was said of it is %q, want it once", said)
		}
		for _, line := range heard.take() {
			if strings.Contains(line, " a ") {
				t.Errorf("listeners hear %q of an event that the record does not have", line)
			}
		}
		m.refuses("")
		r.pass(11 * time.Second)
		if got := settled(); !slices.ContainsFunc(got, func(s string) bool { return strings.HasPrefix(s, "a after 1m") }) {
			t.Errorf("settled are %q, want a, which the record takes now", got)
		}
	})
}

func TestWhatASourceTellsStaysItsOwn(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.run()
		ev := r.spot("a", time.Hour)
		ev.Deadline = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)
		told := []event.Event{ev}
		r.source.sink.Snapshot(event.Snapshot{Kind: ev.Kind, Events: told})
		r.pass(time.Second)
		if told[0] != ev {
			t.Errorf("what the source has told has become %+v", told[0])
		}
	})
}

// What was taken before stands while what is to be changed is refused.
func TestARefusedChangeOfAnEventIsMadeLater(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		m := &refusing{memory: r.record}
		r.cfg.Record = m
		r.cfg.Policy[event.SpotInterruption] = policy.Rule{Action: policy.Notify, WithdrawnAfter: 30 * time.Second}
		r.run()
		r.announce(r.spot("a", time.Hour))
		m.refuses("a")
		r.announce(r.spot("a", 2*time.Hour))
		r.pass(5 * time.Second)
		if e := r.entry("a"); !e.Event.Deadline.Equal(r.in(time.Hour)) {
			t.Errorf("the deadline is %s", e.Event.Deadline)
		}
		m.refuses("")
		r.pass(5 * time.Second) // It is tried again after ten seconds.
		if e := r.entry("a"); !e.Event.Deadline.Equal(r.in(2 * time.Hour)) {
			t.Errorf("the deadline is %s", e.Event.Deadline)
		}
	})
}

// Spans end at three centuries, and what is cut off there would move on with the clock.
func TestADeadlineInCenturiesIsToldOnce(t *testing.T) {
	t.Parallel()
	for _, year := range []int{2, 1600, 2400, 9998} {
		bubble(t, func(r *rig) {
			r.node.toGuard(stuck)
			ev := r.spot("a", 0)
			ev.Deadline = time.Date(year, 1, 2, 0, 0, 0, 0, time.UTC)
			r.runFor(ev)
			r.pass(20 * time.Second)
			if got := r.begins(); len(got) > 0 {
				t.Errorf("a deadline in the year %d: in 20 seconds, what was begun is %q", year, got)
			}
		})
	}
}
