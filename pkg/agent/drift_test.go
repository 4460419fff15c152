package agent_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/systemd"
)

// ticking runs f with a rig whose clock can be set.
func ticking(t *testing.T, f func(r *rig, clock *wall)) {
	t.Helper()
	bubble(t, func(r *rig) {
		clock := &wall{}
		r.cfg.Now = clock.now
		r.cfg.Policy[event.Shutdown] = policy.Rule{Action: policy.Drain, Hard: true}
		f(r, clock)
	})
}

func TestAClockThatIsSetByTwoSecondsIsNotWorthAWord(t *testing.T) {
	t.Parallel()
	for by, want := range map[time.Duration]int{2 * time.Second: 0, -2 * time.Second: 0, 2*time.Second + 1: 1, -2*time.Second - 1: 1} {
		t.Run(by.String(), func(t *testing.T) {
			t.Parallel()
			ticking(t, func(r *rig, clock *wall) {
				r.run()
				clock.set(by)
				r.pass(time.Second)
				if said := r.said(systemd.EventSeen); len(said) != want {
					t.Errorf("what was said is %q", said)
				}
			})
		})
	}
}

func TestNewsAreJudgedByTheClockAsItIsSetThen(t *testing.T) {
	t.Parallel()
	ticking(t, func(r *rig, clock *wall) {
		r.run()
		r.pass(1300 * time.Millisecond)
		clock.set(longestSpan)
		r.announce(r.rebooting("a", longestSpan+5*time.Minute))
		r.wantBegun("guard for a: drain, soft in 4m58.7s")
	})
}

func TestWhatIsDueIsJudgedByTheClockAsItIsSetThen(t *testing.T) {
	t.Parallel()
	ticking(t, func(r *rig, clock *wall) {
		r.run()
		r.announce(r.rebooting("a", 10*time.Minute+1500*time.Millisecond))
		r.pass(1300 * time.Millisecond)
		clock.set(-longestSpan)
		r.pass(200 * time.Millisecond) // It would have been due now.
		r.wantBegun()
		r.pass(longestSpan)
		r.wantBegun("guard for a: drain, soft in 10m0s")
	})
}

func TestWhatIsOverIsAsOldAsItWasWhenTheClockIsSet(t *testing.T) {
	t.Parallel()
	ticking(t, func(r *rig, clock *wall) {
		r.run()
		r.announce(recommended("a"))
		r.announce()
		r.pass(30 * time.Second)
		before := r.entry("a")
		if before.Phase != state.Closed {
			t.Fatalf("the entry is %+v", before)
		}
		clock.set(longestSpan)
		r.pass(time.Second)
		if e := r.entry("a"); !e.Changed.Equal(before.Changed) || !e.FirstSeen.Equal(before.FirstSeen) {
			t.Errorf("the entry is %+v, and was %+v", e, before)
		}
	})
}

// The last good look was a moment after the event was missed. To set the clock back makes it no later.
func TestAClockThatIsSetBackWhileLooksFailWithdrawsNothing(t *testing.T) {
	t.Parallel()
	ticking(t, func(r *rig, clock *wall) {
		r.run()
		r.announce(r.spot("a", 20*time.Hour))
		r.announce()
		r.trouble(event.SpotInterruption, "connection refused")
		r.begins()
		clock.set(-longestSpan)
		r.pass(time.Minute)
		for _, call := range r.begins() {
			if call == "uncordon" {
				t.Error("it was withdrawn without a look")
			}
		}
	})
}

// How long logind can be held is a span, which logind tells as a time.
func TestAShutdownKeepsTheTimeThatItHad(t *testing.T) {
	t.Parallel()
	ticking(t, func(r *rig, clock *wall) {
		down := func(id string, in time.Duration) event.Event {
			return event.Event{ID: id, Kind: event.Shutdown, State: event.Pending, Deadline: r.in(in)}
		}
		wantTimes := func(id string, want time.Duration) {
			t.Helper()
			if e := r.entry(id); !e.Event.Deadline.Equal(r.in(want)) {
				t.Errorf("after %s, %s is for %s, want %s", time.Since(r.start), id, e.Event.Deadline.Sub(r.start), want)
			}
		}
		r.node.toGuard(stuck)
		r.run()
		r.announce(down("a", 4*time.Minute))
		r.pass(time.Second)
		r.announce(down("a", 5*time.Minute), down("b", 6*time.Minute)) // it gets no farther
		wantTimes("a", 4*time.Minute)
		wantTimes("b", 6*time.Minute)
		clock.set(longestSpan)
		r.pass(time.Second)
		wantTimes("a", longestSpan+4*time.Minute)
		r.announce(down("a", 4*time.Minute), down("b", 6*time.Minute)) // as logind has told it before
		wantTimes("a", longestSpan+4*time.Minute)
		wantTimes("b", longestSpan+6*time.Minute)
	})
}

// The power button is pressed in the midst of a reboot for which logind grants more than EC2 leaves then.
func TestAShutdownThatTurnsOutToBeNearerIsNearer(t *testing.T) {
	t.Parallel()
	for name, set := range map[string]time.Duration{"by a clock that is right": 0, "after it was set ahead": longestSpan, "after it was set back": -longestSpan} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ticking(t, func(r *rig, clock *wall) {
				down := event.Event{ID: "a", Kind: event.Shutdown, State: event.Pending, Deadline: r.in(295 * time.Second)}
				r.node.toGuard(stuck)
				r.run()
				r.announce(down)
				r.pass(10 * time.Second)
				clock.set(set)
				r.begins()
				down.Deadline = r.in(155 * time.Second)
				r.announce(down)
				r.wantBegun("adjust to a: drain, hard in 2m25s")
				if e := r.entry("a"); !e.Event.Deadline.Equal(r.in(set + 155*time.Second)) {
					t.Errorf("it is for %s, want %s", e.Event.Deadline.Sub(r.start), set+155*time.Second)
				}
			})
		})
	}
}

// A guard counts on the monotonic clock. It is told anew what is worth it.
func TestAGuardIsToldOfADeadlineThatHasMoved(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		clock   []time.Duration // by which it is put right, once a second: never by so much that it counts as set
		moved   time.Duration   // in the document
		adjusts bool
	}{
		"by nothing":                                     {},
		"by less than a tenth of a second":               {moved: 100*time.Millisecond - 1},
		"by a tenth of a second":                         {moved: 100 * time.Millisecond, adjusts: true},
		"by as much to the other side":                   {moved: -100 * time.Millisecond, adjusts: true},
		"while the clock is put right":                   {clock: []time.Duration{time.Second}},
		"while the clock is put right by two seconds":    {clock: []time.Duration{time.Second, time.Second}},
		"while the clock is put right by more than that": {clock: []time.Duration{time.Second, time.Second, 1}, adjusts: true},
		"with the clock, and in the document":            {clock: []time.Duration{time.Second}, moved: time.Minute, adjusts: true},
		"in the document so that it stays where it was":  {clock: []time.Duration{time.Second}, moved: time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ticking(t, func(r *rig, clock *wall) {
				r.node.toGuard(stuck)
				r.runFor(r.spot("a", time.Hour))
				for _, by := range row.clock {
					clock.set(by)
					r.pass(time.Second)
				}
				r.announce(r.spot("a", time.Hour+row.moved))
				calls := r.tape.take()
				if adjusts := slices.ContainsFunc(calls, func(call string) bool { return strings.HasPrefix(call, "adjust") }); adjusts != row.adjusts {
					t.Errorf("what was done is %q", calls)
				}
			})
		})
	}
}

// foremost is what the status is about while nothing is being done.
func TestTheStatusIsAboutWhatWasActedUponLast(t *testing.T) {
	t.Parallel()
	spot, stop, asg := event.SpotInterruption, event.ScheduledMaintenance, event.ASGTermination
	type past struct {
		kind    event.Kind
		phase   state.Phase
		changed time.Duration
	}
	for want, rows := range map[string][][]past{
		"node node-a is drained for spot-interruption": {
			{{spot, state.Drained, 0}},
			{{spot, state.Drained, 0}, {stop, state.Seen, time.Minute}},
			{{stop, state.Seen, time.Minute}, {spot, state.Drained, 0}},
			{{spot, state.Drained, time.Minute}, {asg, state.Drained, 0}},
			{{asg, state.Drained, 0}, {spot, state.Drained, time.Minute}},
			{{spot, state.Drained, 0}, {asg, state.Closed, time.Minute}},
			{{asg, state.Closed, time.Minute}, {spot, state.Drained, 0}},
		},
		"watching; nothing is announced for node node-a": {
			nil, {{spot, state.Closed, 0}}, {{spot, state.Closed, 0}, {asg, state.Closed, time.Minute}},
		},
		"watching node node-a: EC2 will terminate this spot instance; nothing will be done": {
			{{spot, state.Seen, 0}}, {{spot, state.Seen, time.Minute}, {asg, state.Seen, 0}}, {{asg, state.Seen, 0}, {spot, state.Seen, time.Minute}},
		},
	} {
		for i, row := range rows {
			t.Run(fmt.Sprint(want, " ", i), func(t *testing.T) {
				t.Parallel()
				bubble(t, func(r *rig) {
					r.start = r.start.Add(-time.Hour)
					for _, p := range row {
						e := state.Entry{
							Event: event.Event{ID: string(p.kind), Kind: p.kind, Code: "terminate", State: event.Pending}, Phase: p.phase,
							BootID: "boot-1", ListedIn: "boot-1", FirstSeen: r.start, Changed: r.in(p.changed), CordonedAt: r.start,
						}
						if p.phase == state.Closed {
							e.Ending = state.Rebooted
						}
						r.record.entries = append(r.record.entries, e)
						rule := r.cfg.Policy[p.kind]
						if rule.Action, rule.Budget, rule.Codes = policy.Drain, 0, nil; p.phase == state.Seen {
							rule.Action = policy.Notify
						}
						r.cfg.Policy[p.kind] = rule
					}
					r.run()
					r.wantStatus(want)
				})
			})
		}
	}
}
