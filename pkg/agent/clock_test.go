package agent_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/systemd"
)

// wall is a clock that can be set. The machine's own cannot be, from within a test: neither a container nor a time
// namespace has a wall clock of its own.
type wall struct{ ahead atomic.Int64 }

func (w *wall) now() time.Time       { return time.Now().Add(time.Duration(w.ahead.Load())) }
func (w *wall) set(by time.Duration) { w.ahead.Add(int64(by)) }

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

// A stepped row sets the clock in the midst of something and says what is begun afterwards, and how long it takes.
type stepped struct {
	name string
	// until brings the agent to where it waits, or drains.
	until func(r *rig)
	// back and ahead are how long it takes from when the system clock was stepped by five hours until begun happens.
	back, ahead time.Duration
	// begun is what happens then; if the time left was counted anew, it differs with the direction.
	begun func(by time.Duration) string
}

const longestSpan = 5 * time.Hour

func always(what string) func(time.Duration) string {
	return func(time.Duration) string { return what }
}

var steps = []stepped{
	{
		name: "waiting for a maintenance's lead, which hangs on an announced time",
		until: func(r *rig) {
			r.announce(r.rebooting("a", 10*time.Hour))
			r.pass(time.Hour)
		},
		ahead: 3*time.Hour + 50*time.Minute, back: 13*time.Hour + 50*time.Minute,
		begun: always("guard for a: drain, soft in 10m0s"),
	},
	{
		name: "waiting until an event counts as withdrawn",
		until: func(r *rig) {
			r.announce(r.hibernating("a", 20*time.Hour))
			r.announce()
			r.pass(10 * time.Second)
		},
		ahead: 20 * time.Second, back: 20 * time.Second,
		begun: always("uncordon"),
	},
	{
		name: "waiting until a cordon's time to live ends",
		until: func(r *rig) {
			r.announce(recommended("a"))
			r.pass(10 * time.Minute)
		},
		ahead: 50 * time.Minute, back: 50 * time.Minute,
		begun: always("uncordon"),
	},
	{
		name: "waiting to try again",
		until: func(r *rig) {
			r.node.toUncordon(func(context.Context) (drain.UncordonResult, error) { return "", errors.New("forbidden") })
			r.announce(r.spot("a", 20*time.Hour))
			r.announce()
			r.pass(30*time.Second + 200*time.Second) // the pause has become a minute
			r.pass(20 * time.Second)
		},
		ahead: 22 * time.Second, back: 22 * time.Second,
		begun: always("uncordon"),
	},
	{
		name: "draining until an announced deadline",
		until: func(r *rig) {
			r.node.toGuard(stuck)
			r.announce(r.spot("a", 10*time.Hour))
			r.pass(time.Hour)
		},
		ahead: time.Second, back: time.Second, // it is noticed in the next tick
		begun: func(by time.Duration) string {
			return "adjust to a: drain, hard in " + (9*time.Hour - time.Second - by).String()
		},
	},
	{
		name: "draining within a budget",
		until: func(r *rig) {
			r.node.toGuard(stuck)
			r.announce(terminated("a"))
			r.pass(5 * time.Minute)
		},
		ahead: 10 * time.Minute, back: 10 * time.Minute,
		begun: always("put a incomplete"),
	},
	{
		name: "draining until Auto Scaling takes the machine, which has a clock of its own",
		until: func(r *rig) {
			r.node.toGuard(stuck)
			ends := terminated("a")
			ends.Deadline = r.in(10 * time.Minute)
			r.announce(ends)
			r.pass(5 * time.Minute)
		},
		ahead: 5 * time.Minute, back: 5 * time.Minute,
		begun: always("put a incomplete"),
	},
	{
		name: "draining for a shutdown, as long as it can be held",
		until: func(r *rig) {
			r.node.toGuard(stuck)
			r.announce(event.Event{ID: "a", Kind: event.Shutdown, State: event.Pending, Deadline: r.in(4 * time.Minute)})
			r.pass(time.Minute)
		},
		ahead: 3 * time.Minute, back: 3 * time.Minute,
		begun: always("put a incomplete"),
	},
}

func TestAClockThatIsSetMovesAnnouncedTimesAndNoSpans(t *testing.T) {
	t.Parallel()
	for _, row := range steps {
		for direction, by := range map[string]time.Duration{"ahead": longestSpan, "back": -longestSpan} {
			t.Run(row.name+", "+direction, func(t *testing.T) {
				t.Parallel()
				bubble(t, func(r *rig) {
					row.play(r, by)
				})
			})
		}
	}
}

func (row stepped) play(r *rig, by time.Duration) {
	clock := &wall{}
	r.cfg.Now = clock.now
	r.cfg.Policy = rules()
	r.cfg.Policy[event.RebalanceRecommendation] = policy.Rule{Action: policy.Cordon, CordonFor: time.Hour, WithdrawnAfter: time.Minute}
	r.cfg.Policy[event.Shutdown] = policy.Rule{Action: policy.Drain, Hard: true}
	r.run()
	row.until(r)
	r.begins()
	clock.set(by)
	takes := row.ahead
	if by < 0 {
		takes = row.back
	}
	r.pass(takes - 1)
	r.wantBegun()
	r.pass(1)
	r.wantBegun(row.begun(by))
	if said := r.said(systemd.EventSeen); !strings.HasPrefix(said[len(said)-1], "warning: the system clock was stepped by "+by.String()) {
		r.t.Errorf("what was said last is %q", said[len(said)-1])
	}
}

func TestByHowMuchTheClockWasSetIsSaidToASecond(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		clock := &wall{}
		r.cfg.Now = clock.now
		r.run()
		clock.set(3400 * time.Millisecond)
		r.pass(2 * time.Second)
		r.wantSaid(systemd.EventSeen, "warning: the system clock was stepped by 3s; recomputing deadlines")
	})
}

// Where the clock is set right after a reboot, what was noted before the reboot was right already.
func TestTimesNotedBeforeARebootDoNotMoveWithTheClock(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		clock := &wall{}
		clock.set(longestSpan)
		r.cfg.Now = clock.now
		r.cfg.Policy[event.RebalanceRecommendation] = policy.Rule{Action: policy.Cordon, WithdrawnAfter: time.Hour}
		earlier := r.start.Add(-time.Hour).UTC()
		r.record.entries = []state.Entry{{
			Event: recommended("a"), Phase: state.Cordoned, BootID: "boot-0",
			FirstSeen: earlier, Changed: earlier, OnNode: true, CordonedAt: earlier,
		}}
		r.run()
		r.announce()
		missing := r.entry("a").Missing
		clock.set(-longestSpan)
		r.pass(time.Second)
		e := r.entry("a")
		if !e.FirstSeen.Equal(earlier) || !e.CordonedAt.Equal(earlier) {
			t.Errorf("first seen at %s and cordoned at %s, want both at %s", e.FirstSeen, e.CordonedAt, earlier)
		}
		if want := missing.Add(-longestSpan); !e.Missing.Equal(want) {
			t.Errorf("missing since %s, want %s", e.Missing, want)
		}
	})
}

func TestAnOutageIsNoOlderBecauseTheClockWasPutRight(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		clock := &wall{}
		r.cfg.Now = clock.now
		r.run()
		r.announce()
		for _, kind := range event.PolledKinds() {
			r.trouble(kind, "connection refused")
		}
		clock.set(5 * time.Hour)
		r.pass(time.Minute)
		if said, want := r.service.sentence(), clock.now().Add(-time.Minute).UTC().Format("15:04"); !strings.Contains(said, "since "+want) {
			t.Errorf("at %s: %q, want since %s", clock.now().UTC().Format("15:04"), said, want)
		}
	})
}

// bootClock is what is remembered of this boot.
type bootClock struct{ start, booted time.Time }

func (c *bootClock) Uptime() time.Duration  { return time.Since(c.start) }
func (c *bootClock) Booted() time.Time      { return c.booted }
func (c *bootClock) SetBooted(at time.Time) { c.booted = at }

func TestAClockThatIsSetWhileNthDoesNotRunMovesNoSpans(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name  string
		until func(r *rig)
		// again is what is announced after the restart, and begun what happens so long after it.
		again []event.Event
		in    time.Duration
		begun string
	}{
		{
			name:  "a budget",
			until: func(r *rig) { r.node.toGuard(stuck); r.announce(terminated("a")); r.pass(5 * time.Minute) },
			again: []event.Event{terminated("a")},
			begun: "guard for a: drain, hard in 10m0s",
		},
		{
			name:  "a cordon's time to live",
			until: func(r *rig) { r.announce(recommended("a")); r.pass(10 * time.Minute) },
			again: []event.Event{recommended("a")},
			in:    50 * time.Minute, begun: "uncordon",
		},
		{
			name:  "a withdrawal",
			until: func(r *rig) { r.announce(r.hibernating("a", 20*time.Hour)); r.announce(); r.pass(10 * time.Second) },
			in:    20 * time.Second, begun: "uncordon",
		},
	} {
		for direction, by := range map[string]time.Duration{"ahead": longestSpan, "back": -longestSpan} {
			t.Run(row.name+", "+direction, func(t *testing.T) {
				t.Parallel()
				bubble(t, func(r *rig) {
					clock := &wall{}
					r.cfg.Now, r.cfg.BootClock = clock.now, &bootClock{start: r.start.Add(-time.Hour)}
					r.cfg.Policy[event.RebalanceRecommendation] = policy.Rule{Action: policy.Cordon, CordonFor: time.Hour, WithdrawnAfter: time.Minute}
					r.run()
					row.until(r)
					r.end(nil)
					clock.set(by)
					r.tape.take()
					r.run()
					r.announce(row.again...)
					if row.in > 0 {
						r.pass(row.in - time.Second)
						if begun := r.begins(); slices.Contains(begun, row.begun) {
							t.Errorf("too early begun is %q", begun)
						}
						r.pass(time.Second)
					}
					r.wantBegun(row.begun)
				})
			})
		}
	}
}

// It is for the running process or for the next one, and not for both.
func TestAClockThatIsSetIsNoticedOnceAlsoOverARestart(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		clock := &wall{}
		r.cfg.Now, r.cfg.BootClock = clock.now, &bootClock{start: r.start.Add(-time.Hour)}
		r.node.toGuard(stuck)
		r.runFor(terminated("a"))
		clock.set(longestSpan)
		r.pass(5 * time.Minute)
		for range 2 {
			r.end(nil)
			r.tape.take()
			r.run()
			r.announce(terminated("a"))
			r.wantBegun("guard for a: drain, hard in 10m0s")
		}
		if said := r.said(systemd.EventSeen); len(said) != 2 || !strings.Contains(said[1], "stepped by 5h") {
			t.Errorf("said %q", said)
		}
	})
}

func TestWhatIsNoStepInARunningProcessIsNoneOverARestart(t *testing.T) {
	t.Parallel()
	for by, want := range map[time.Duration]int{0: 0, 2 * time.Second: 0, -2 * time.Second: 0, 2*time.Second + 1: 1, -2*time.Second - 1: 1} {
		t.Run(by.String(), func(t *testing.T) {
			t.Parallel()
			bubble(t, func(r *rig) {
				clock := &wall{}
				r.cfg.Now, r.cfg.BootClock = clock.now, &bootClock{start: r.start.Add(-time.Hour)}
				r.run()
				r.end(nil)
				clock.set(by)
				r.run()
				if said := r.said(systemd.EventSeen); len(said) != want {
					t.Errorf("said %q", said)
				}
			})
		})
	}
}

// An event is of an earlier boot; that it is missing was noted in this one.
func TestOfAnEventOfAnEarlierBootOnlyTheTimesOfThisOneMoveOverARestart(t *testing.T) {
	t.Parallel()
	for _, by := range []time.Duration{longestSpan, -longestSpan} {
		t.Run(by.String(), func(t *testing.T) {
			t.Parallel()
			bubble(t, func(r *rig) {
				clock := &wall{}
				r.cfg.Now, r.cfg.BootClock = clock.now, &bootClock{start: r.start.Add(-time.Minute)}
				r.cfg.Policy[event.RebalanceRecommendation] = policy.Rule{Action: policy.Cordon, WithdrawnAfter: 9 * time.Hour}
				earlier := r.start.Add(-time.Hour).UTC()
				r.record.entries = []state.Entry{{
					Event: recommended("a"), Phase: state.Cordoned, BootID: "boot-0",
					FirstSeen: earlier, Changed: earlier, OnNode: true, CordonedAt: earlier,
				}}
				r.run()
				r.announce()
				missing := r.entry("a").Missing
				r.end(nil)
				clock.set(by)
				r.run()
				e := r.entry("a")
				if !e.Missing.Equal(missing.Add(by)) || by > 0 && !e.FirstSeen.Equal(earlier) {
					t.Errorf("the entry is %+v", e)
				}
			})
		})
	}
}

func TestAnOutageEndsInTimeThoughTheClockIsSetBackInTheMomentOfItsEnd(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		clock := &wall{}
		r.cfg.Now = clock.now
		r.run()
		r.announce()
		r.trouble(event.SpotInterruption, "connection refused")
		r.pass(10 * time.Second)
		r.announce()
		clock.set(-longestSpan)
		r.pass(3 * time.Second)
		r.wantSaid(systemd.SourceRecovered, "info: spot-interruption is readable again after 10s")
	})
}

// The most urgent event is shown of those that something was done for, and whose cordon nobody has lifted; else of those that something was
// done for.
func TestAtRestTheStatusIsAboutWhatSomethingWasDoneFor(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		urgent, other func(*state.Entry)
		want          string
	}{
		"one of two": {seen, cordonedByUs, "node node-a is drained for scheduled-maintenance"},
		"two":        {cordonedByUs, cordonedByUs, "node node-a is drained for spot-interruption"},
		"one that people opened the node during, beside one that nothing was done for": {
			seen, liftedByPeople, "watching node node-a: EC2 has scheduled instance-stop at 02:00:00 UTC on 1 Jan 2000; nothing more will be done",
		},
		"one that they did not":                     {liftedByPeople, cordonedByUs, "node node-a is drained for scheduled-maintenance"},
		"the urgent one, if they did not during it": {cordonedByUs, liftedByPeople, "node node-a is drained for spot-interruption"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(r *rig) {
				at := r.start.Add(-time.Minute).UTC()
				for i, how := range []func(*state.Entry){row.urgent, row.other} {
					e := state.Entry{Event: []event.Event{r.spot("a", time.Hour), r.stopping("b", 2*time.Hour)}[i], BootID: "boot-1", FirstSeen: at, Changed: at}
					how(&e)
					r.record.entries = append(r.record.entries, e)
				}
				r.run()
				r.wantStatus(row.want)
			})
		})
	}
}

func seen(e *state.Entry) { e.Phase = state.Seen }

func cordonedByUs(e *state.Entry) { e.Phase, e.OnNode, e.CordonedAt = state.Drained, true, e.FirstSeen }

func liftedByPeople(e *state.Entry) { cordonedByUs(e); e.Reopened, e.OnNode = true, false }
