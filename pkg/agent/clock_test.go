package agent_test

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
)

// boottime is the loop's clock, which is ahead of EC2's, and goes on while the machine sleeps. The bubble's clock stops then, like
// the monotonic one, so EC2's is the bubble's and what was slept.
type boottime struct{ ahead, slept atomic.Int64 }

func (c *boottime) now() time.Time { return c.ec2().Add(time.Duration(c.ahead.Load())) }

func (c *boottime) ec2() time.Time { return time.Now().Add(time.Duration(c.slept.Load())) }

func (c *boottime) sleep(d time.Duration) { c.slept.Add(int64(d)) }

// clocked runs f with a rig whose loop's clock is ahead of EC2's, and may differ from the monotonic one.
func clocked(t *testing.T, ahead time.Duration, f func(r *rig, clock *boottime)) {
	t.Helper()
	bubble(t, func(r *rig) {
		clock := &boottime{}
		clock.ahead.Store(int64(ahead))
		r.cfg.Now = clock.now
		r.cfg.Policy[event.RebalanceRecommendation] = policy.Rule{Action: policy.Cordon, CordonFor: time.Hour, WithdrawnAfter: time.Minute}
		r.cfg.Policy[event.Shutdown] = policy.Rule{Action: policy.Drain, Hard: true}
		f(r, clock)
	})
}

// dated is a good look at one document, in an answer that EC2 has dated, which took so long.
func (r *rig) dated(date time.Time, took time.Duration, events ...event.Event) {
	r.source.sink.Snapshot(event.Snapshot{
		Kind: events[0].Kind, Events: events, Clock: date.Truncate(time.Second), Within: time.Second + took,
	})
	r.pass(0)
}

// begins are the calls that begin something on the node since it was last asked.
func (r *rig) begins() []string {
	var begun []string
	for _, call := range r.tape.take() {
		if !strings.HasPrefix(call, "put ") && !strings.HasSuffix(call, " ended") || strings.HasSuffix(call, " incomplete") {
			begun = append(begun, call)
		}
	}
	return begun
}

func (r *rig) wantBegun(want ...string) {
	r.t.Helper()
	if got := r.begins(); strings.Join(got, "; ") != strings.Join(want, "; ") {
		r.t.Errorf("after %s, what was begun is %q, want %q", time.Since(r.start), got, want)
	}
}

func TestClock_DocumentsAreReadByEC2s(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		ahead, took, want time.Duration // want differs from two minutes by what cannot be known
	}{
		"right":                            {want: 2 * time.Minute},
		"right, and an answer takes 4 s":   {took: 4 * time.Second, want: 2 * time.Minute},
		"3 s ahead, which is not known":    {ahead: 3 * time.Second, want: 2*time.Minute - 3*time.Second},
		"a little more":                    {ahead: 3*time.Second + 1, want: 2*time.Minute - time.Second},
		"2 s behind, which is not known":   {ahead: -2 * time.Second, want: 2*time.Minute + 2*time.Second},
		"a little more behind":             {ahead: -2*time.Second - 1, want: 2*time.Minute - time.Second},
		"10 min. ahead":                    {ahead: 10 * time.Minute, want: 2*time.Minute - time.Second},
		"10 min. behind":                   {ahead: -10 * time.Minute, want: 2*time.Minute - time.Second},
		"10 h ahead":                       {ahead: 10 * time.Hour, want: 2*time.Minute - time.Second},
		"10 min. ahead, and it takes 4 s":  {ahead: 10 * time.Minute, took: 4 * time.Second, want: 2*time.Minute - 5*time.Second},
		"10 min. behind, and it takes 4 s": {ahead: -10 * time.Minute, took: 4 * time.Second, want: 2*time.Minute - 5*time.Second},
		"1970, as without a battery":       {ahead: -30 * 365 * 24 * time.Hour, want: 2*time.Minute - time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			clocked(t, row.ahead, func(r *rig, clock *boottime) {
				r.node.toGuard(stuck)
				r.run()
				r.dated(clock.ec2(), row.took, r.spot("a", 2*time.Minute))
				r.wantBegun("guard for a: drain, hard in " + row.want.String())
			})
		})
	}
}

// EC2 dates its answers in whole seconds, and they take their time.
func TestClock_ADocumentThatIsReadAgainDoesNotMove(t *testing.T) {
	t.Parallel()
	for _, ahead := range []time.Duration{0, 10 * time.Minute, -10 * time.Minute} {
		t.Run(ahead.String(), func(t *testing.T) {
			t.Parallel()
			clocked(t, ahead, func(r *rig, clock *boottime) {
				r.node.toGuard(stuck)
				r.run()
				r.dated(clock.ec2(), 0, r.spot("a", time.Hour))
				r.tape.take()
				for range 50 {
					r.pass(370 * time.Millisecond)
					r.dated(clock.ec2(), 0, r.spot("a", time.Hour))
				}
				r.wantTape()
			})
		})
	}
}

func TestClock_WhatSaysNothingOfEC2sIsReadAsItIs(t *testing.T) {
	t.Parallel()
	clocked(t, 10*time.Minute, func(r *rig, clock *boottime) {
		r.node.toGuard(stuck)
		r.run()
		r.dated(clock.ec2(), 0, recommended("a"))
		stop := r.stopping("b", time.Hour)
		r.source.sink.Snapshot(event.Snapshot{Kind: stop.Kind, Events: []event.Event{stop}})
		r.pass(0)
		if e := r.entry("b"); !e.Event.Deadline.Equal(stop.Deadline) {
			t.Errorf("it is for %s, want %s", e.Event.Deadline, stop.Deadline)
		}
	})
}

func TestClock_SleepIsPartOfEachSpan(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		until        func(r *rig, clock *boottime) // brings the agent to where it waits, or drains
		sleep, after time.Duration                 // so long after the sleep, begun happens
		begun        string
	}{
		"a deadline that a document gives": {
			func(r *rig, clock *boottime) { r.dated(clock.ec2(), 0, r.spot("a", 10*time.Hour)) },
			9 * time.Hour, time.Second, "adjust to a: drain, hard in 59m58s",
		},
		"a maintenance's lead": {
			func(r *rig, clock *boottime) { r.dated(clock.ec2(), 0, r.rebooting("a", 11*time.Hour)) },
			10 * time.Hour, 50*time.Minute - time.Second, "guard for a: drain, soft in 10m0s",
		},
		"a budget": {
			func(r *rig, _ *boottime) { r.announce(terminated("a")) },
			10 * time.Minute, 5 * time.Minute, "put a incomplete",
		},
		"a cordon's time to live": {
			func(r *rig, _ *boottime) { r.announce(recommended("a")) },
			50 * time.Minute, 10 * time.Minute, "uncordon",
		},
		"a cordon's time to live that ended meanwhile": {
			func(r *rig, _ *boottime) { r.announce(recommended("a")) },
			10 * time.Hour, time.Second, "uncordon",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			clocked(t, 10*time.Minute, func(r *rig, clock *boottime) {
				r.node.toGuard(stuck)
				r.run()
				row.until(r, clock)
				r.begins()
				clock.sleep(row.sleep)
				r.pass(row.after - 1)
				before := strings.Join(r.begins(), "; ")
				r.pass(1)
				if after := strings.Join(r.begins(), "; "); strings.Contains(before, row.begun) || !strings.Contains(after, row.begun) {
					t.Errorf("after it has slept, it does %q, and then %q; want %q then", before, after, row.begun)
				}
			})
		})
	}
}

// What the machine announces itself, and the end of a hook, is a time that is left, whatever any clock says.
func TestClock_ATimeThatIsLeftIsMovedByNothing(t *testing.T) {
	t.Parallel()
	for name, ev := range map[string]event.Event{
		"a shutdown": {ID: "a", Kind: event.Shutdown, State: event.Pending},
		"a hook":     terminated("a"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			clocked(t, 10*time.Minute, func(r *rig, clock *boottime) {
				r.node.toGuard(stuck)
				r.run()
				ev.Deadline = time.Now().Add(4 * time.Minute)
				r.dated(clock.ec2(), 0, ev)
				if e := r.entry("a"); e.Event.Deadline.Sub(clock.now()) != 4*time.Minute {
					t.Errorf("it is for %s, and now is %s", e.Event.Deadline, clock.now())
				}
				r.begins()
				r.pass(time.Minute)
				r.dated(clock.ec2(), 0, ev)
				r.wantBegun()
			})
		})
	}
}

func TestClock_AShutdownGetsNoLater(t *testing.T) {
	t.Parallel()
	clocked(t, 0, func(r *rig, _ *boottime) {
		r.node.toGuard(stuck)
		r.run()
		for _, row := range []struct{ in, want time.Duration }{
			{295 * time.Second, 295 * time.Second},
			{600 * time.Second, 295 * time.Second},
			{155 * time.Second, 155 * time.Second}, // the power button is pressed meanwhile
			{0, 155 * time.Second},
		} {
			ev := event.Event{ID: "a", Kind: event.Shutdown, State: event.Pending}
			if row.in > 0 {
				ev.Deadline = r.start.Add(row.in)
			}
			r.announce(ev)
			if e := r.entry("a"); !e.Event.Deadline.Equal(r.in(row.want)) {
				t.Errorf("announced with %s, it is for %s, want %s", row.in, e.Event.Deadline.Sub(r.start), row.want)
			}
		}
	})
}

func TestClock_AGuardIsToldOfADeadlineThatHasMoved(t *testing.T) {
	t.Parallel()
	for moved, adjusts := range map[time.Duration]bool{
		0: false, 100*time.Millisecond - 1: false, 100 * time.Millisecond: true, -100 * time.Millisecond: true,
	} {
		clocked(t, 0, func(r *rig, _ *boottime) {
			r.node.toGuard(stuck)
			r.runFor(r.spot("a", time.Hour))
			r.announce(r.spot("a", time.Hour+moved))
			if calls := strings.Join(r.tape.take(), "; "); strings.Contains(calls, "adjust") != adjusts {
				t.Errorf("moved by %s: what was done is %q", moved, calls)
			}
		})
	}
}
