package agent_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/systemd"
)

// nth-queue runs an agent for each node in one process.
func TestAnAgentThatIsOneOfManyKeepsQuietAboutItself(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		b := &board{}
		r.cfg.Service, r.cfg.Board = nil, b
		r.run()
		r.announce(r.spot("a", 2*time.Minute))
		r.wantTape("put a seen", "put a draining", "guard for a: drain, hard in 2m0s", "put a drained")
		r.pass(3 * time.Second)
		if shown := b.all(); len(shown) == 0 || b.last().Sentence != "node node-a is drained for spot-interruption" {
			t.Errorf("the board was shown %+v", shown)
		}
		r.end(nil)
		for _, id := range []string{systemd.Started, systemd.Stopping, systemd.IdentityFound} {
			r.wantSaid(id)
		}
	})
}

// Whoever keeps an agent for a node wants to know when it is not needed for a while.
func TestAnAgentTellsForWhichEventsItRestsAndUntilWhen(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		var mu sync.Mutex
		told := map[string]time.Time{}
		r.cfg.Rested = func(ev event.Event, again time.Time) {
			mu.Lock()
			defer mu.Unlock()
			told[ev.ID] = again
		}
		rested := func(id string) (until time.Time, rests bool) {
			mu.Lock()
			defer mu.Unlock()
			until, rests = told[id]
			return until, rests
		}
		r.node.toGuard(after(time.Minute))
		r.run()
		r.announce(r.spot("a", 2*time.Minute), r.rebooting("b", time.Hour))
		r.pass(59 * time.Second)
		if until, rests := rested("b"); !rests || !until.Equal(r.in(50*time.Minute)) {
			t.Errorf("b rests: %t, until %s", rests, until)
		}
		if until, rests := rested("a"); rests {
			t.Errorf("a rests until %s, while it is drained for", until)
		}
		r.pass(time.Second)
		if until, rests := rested("a"); !rests || !until.IsZero() {
			t.Errorf("a, which is drained for, rests: %t, until %s", rests, until)
		}
	})
}

func TestStoppingIsSaidWhenItWasAskedFor(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.run()
		r.wantSaid(systemd.Stopping)
		r.end(nil)
		r.wantSaid(systemd.Stopping, "info: stopped; the node is left as it is")
	})
}

func TestARecordThatIsNotWrittenInTheEndIsSaid(t *testing.T) {
	t.Parallel()
	const said = "error: cannot write the state record; a restart now may forget what was done"
	t.Run("as it cannot be", func(t *testing.T) {
		t.Parallel()
		bubble(t, func(r *rig) {
			r.run()
			r.record.loses(errors.New("no space left on device"))
			r.end(nil)
			r.wantSaid(systemd.StateTrouble, said)
		})
	})
	t.Run("as that takes more than two seconds", func(t *testing.T) {
		t.Parallel()
		bubble(t, func(r *rig) {
			r.record.hangsFor(time.Hour)
			r.run()
			r.announce(recommended("a"))
			before := time.Now()
			r.stop()
			if err := <-r.ended; err != nil {
				t.Errorf("Run returned %v", err)
			}
			r.stop = nil
			if took := time.Since(before); took != 2*time.Second {
				t.Errorf("Run took %s to end", took)
			}
			r.wantSaid(systemd.StateTrouble, said)
		})
	})
}

// A source gives up; nobody has asked the agent to stop.
func TestAGuardIsStoppedWithTheRunThatASourceEnds(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.node.toGuard(stuck)
		r.runFor(r.spot("a", time.Minute))
		gaveUp := errors.New("no such bus")
		r.source.fail <- gaveUp
		if err := <-r.ended; err != gaveUp { //nolint:errorlint // that very error
			t.Errorf("Run returned %v", err)
		}
		r.stop()
		r.stop = nil
		r.wantTape("guard ended")
	})
}

func TestStoppingWhileWhatIsOnTheNodeIsTakenBackIsNoFailure(t *testing.T) {
	t.Parallel()
	listened(t, func(r *rig, heard *ear) {
		r.node.toUncordon(waiting)
		r.run()
		r.announce(r.spot("a", time.Hour))
		r.announce()
		r.pass(30 * time.Second)
		heard.take()
		r.pass(time.Second)
		r.end(nil)
		if e := r.entry("a"); e.Phase != state.Undoing || e.Error != "" || e.Failures != 0 {
			t.Errorf("the entry is %+v", e)
		}
		heard.want(t, "preempted a uncordon after 1s")
	})
}

// The loop comes by once a second, but nothing waits for that.
func TestWhatIsDueBetweenTwoSecondsIsDoneThen(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.node.toGuard(stuck)
		r.runFor(r.spot("a", time.Minute+500*time.Millisecond))
		r.pass(time.Minute + 500*time.Millisecond - 1)
		r.wantTape()
		r.pass(1)
		r.wantTape("put a incomplete")
	})
}

func TestTheLoopComesByOnceASecondHoweverSeldomTheWatchdogIsFed(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.cfg.Beat = time.Minute
		r.run()
		r.pass(10 * time.Second)
		r.service.set(func() {
			if r.service.beats != 10 {
				t.Errorf("%d beats in ten seconds", r.service.beats)
			}
		})
	})
}

func TestASourceThatIsStuckAgainIsSaidAgain(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		eyes := &numb{source: source{fail: make(chan error, 1)}}
		r.cfg.Sources = append(r.cfg.Sources, eyes)
		r.run()
		for range 2 {
			eyes.become(errors.New("neither an answer nor an error"))
			r.pass(5 * time.Second)
			eyes.become(nil)
			r.pass(5 * time.Second)
		}
		if said := r.said(systemd.SourceTrouble); len(said) != 2 {
			t.Errorf("what was said is %q", said)
		}
	})
}

// What was taken into the record before counts, as does what the Node's API has told.
func TestTheGuardIsToldWhetherThereHasBeenANode(t *testing.T) {
	t.Parallel()
	over := func(r *rig, boot string) []state.Entry {
		return []state.Entry{{
			Event: r.stopping("b", time.Hour), Phase: state.Closed, Ending: state.Canceled, BootID: boot, ListedIn: boot,
			FirstSeen: r.start, Changed: r.start, CordonedAt: r.start, ClosedIn: boot,
		}}
	}
	for name, row := range map[string]struct {
		prepare func(r *rig)
		want    []bool // at first, and once an event has joined
	}{
		"there has not": {func(r *rig) { r.node.toGuard(nothing) }, []bool{false, false}},
		"it was so at the start": {func(r *rig) {
			r.cfg.NodeSeen = true
			r.node.toGuard(nothing)
		}, []bool{true, true}},
		"a guard has not seen it": {func(r *rig) {
			r.node.toGuard(func(_ context.Context, g *guard) { g.say(drain.Progress{Kind: state.GoalChanged}) })
		}, []bool{false, false}},
		"a guard has seen it": {func(r *rig) { r.node.toGuard(glimpse) }, []bool{false, true}},
		"it was asked for its claim": {func(r *rig) {
			r.node.toClaim(newNode(r.t, r.tape).now().claim)
			r.node.toGuard(nothing)
		}, []bool{true, true}},
		"it was cordoned in this boot": {func(r *rig) {
			r.record.entries = over(r, "boot-1")
			r.node.toGuard(nothing)
		}, []bool{true, true}},
		"it was cordoned in another boot": {func(r *rig) {
			r.record.entries = over(r, "boot-0")
			r.node.toGuard(nothing)
		}, []bool{false, false}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(r *rig) {
				r.node.toClaim(noClaim)
				row.prepare(r)
				orders := &orders{node: r.node}
				r.cfg.Node = orders
				r.run()
				r.announce(r.spot("a", time.Hour))
				r.pass(time.Second)
				r.announce(r.spot("a", time.Hour), r.spot("c", time.Hour))
				if got := orders.seen(); !slices.Equal([]bool{got[0], got[len(got)-1]}, row.want) {
					t.Errorf("the guard was told %v, want %v at first and in the end", got, row.want)
				}
			})
		})
	}
}
