package agent_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/systemd"
)

func TestWorkIsRecordedBeforeItBeginsAndAfterItHasEnded(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.run()
		stop, hibernation := r.stopping("a", time.Hour), r.hibernating("b", 2*time.Minute)
		r.announce(stop)
		r.wantTape("put a seen", "put a draining", "guard for a: drain, soft in 1h0m0s", "put a drained")
		r.announce(stop, hibernation)
		r.wantTape("put b seen", "put b cordoning", "adjust to a, b: drain, soft in 1h0m0s", "put b cordoned")
		stop.State = event.Canceled
		r.announce(stop, hibernation)
		r.wantTape("put a closed canceled", "adjust to b: cordon") // b holds what is on the node
		r.announce(stop)
		r.wantTape("put b cordoned, missing")
		r.pass(30 * time.Second)
		r.wantTape("put b undoing", "guard ended", "uncordon", "uncordon ended", "put b closed withdrawn")
	})
}

// What is on the node is there once, however many events hold it.
func TestEventsThatEndTogetherAreUndoneOnce(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.run()
		a, b := r.stopping("a", time.Hour), r.stopping("b", 2*time.Hour)
		r.announce(a, b)
		r.tape.take()
		a.State, b.State = event.Canceled, event.Canceled
		r.announce(a, b)
		r.wantTape("put a undoing", "put b undoing", "guard ended", "uncordon", "uncordon ended",
			"put a closed canceled", "put b closed canceled")
		if a, b := r.entry("a"), r.entry("b"); a.OnNode || b.OnNode {
			t.Errorf("a: %+v\nb: %+v", a, b)
		}
	})
}

func TestADrainsResultIsRemembered(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.node.toGuard(func(ctx context.Context, g *guard) {
			g.close()
			time.Sleep(time.Second)
			g.did(drain.Result{Cordon: drain.CordonSet, Evicted: 3, Deleted: 2, Skipped: 1})
			emptied(ctx, g)
		})
		r.run()
		r.announce(r.spot("a", 2*time.Minute))
		r.pass(time.Second)
		e := r.entry("a")
		if e.Result == nil || e.Result.Evicted != 3 || e.Result.Deleted != 2 || e.Result.Skipped != 1 {
			t.Errorf("the result is %+v", e.Result)
		}
		if !e.OnNode || !e.CordonedAt.Equal(r.start) || !e.ActedFor.Equal(r.start) || e.BootID != "boot-1" {
			t.Errorf("the entry is %+v", e)
		}
		r.wantSaid(systemd.Drained, "warning: drained: 3 pods evicted, 2 deleted, 1 left in place; 119 s before the deadline")
	})
}

func TestADeadlineThatPassesLeavesTheDrainIncompleteAndTheGuardGoesOn(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.node.toGuard(func(ctx context.Context, g *guard) {
			stuck(ctx, g)
			time.Sleep(3 * time.Minute)
			g.did(drain.Result{Cordon: drain.CordonSet, Evicted: 3})
			emptied(ctx, g)
		})
		r.runFor(r.spot("a", 2*time.Minute))
		r.pass(2*time.Minute - 1)
		r.wantTape()
		r.pass(1)
		r.wantTape("put a incomplete")
		e := r.entry("a")
		if e.Failures != 1 || e.Error == "" || len(e.Result.Left) != 1 || e.Result.HeldBy["default/web-1"] != "PDB default/web" {
			t.Errorf("the entry is %+v, the result %+v", e, e.Result)
		}
		r.wantSaid(systemd.DrainIncomplete,
			"error: the drain ran out of time: 2 pods evicted, 0 deleted, left: default/web-1 (held by PDB default/web)")
		r.wantStatus("node node-a was not drained in time for spot-interruption; still draining")

		r.pass(time.Minute)
		r.wantTape("put a drained") // by the same guard
		if e := r.entry("a"); e.Failures != 0 || e.Error != "" || e.Result.Evicted != 3 || !e.CordonedAt.Equal(r.start) {
			t.Errorf("the entry is %+v", e)
		}
	})
}

func TestAnEventWhoseTimeWasOverWhileNothingRanIsIncomplete(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.node.toGuard(stuck)
		r.runFor(r.spot("a", time.Minute))
		r.end(nil)
		r.tape.take()
		r.pass(2 * time.Minute)
		r.run()
		r.wantTape("put a incomplete", "guard for a: drain, hard in -1m0s")
		r.wantSaid(systemd.DrainIncomplete,
			"error: the drain ran out of time: the deadline passed before nth could continue; remaining pods unknown")
	})
}

func TestANodeThatCannotBeClosedIsToldAndForgottenWhenItCan(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.node.toGuard(func(ctx context.Context, g *guard) {
			limited, stop := context.WithTimeout(ctx, time.Minute)
			defer stop()
			forbidden(limited, g)
			empty(ctx, g)
		})
		r.run()
		r.announce(r.stopping("a", time.Hour))
		r.wantTape("put a seen", "put a draining", "guard for a: drain, soft in 1h0m0s", "put a draining: forbidden")
		r.pass(59 * time.Second)
		if e := r.entry("a"); e.Phase != state.Draining || e.Error != "forbidden" || e.Failures != 5 || !e.OnNode {
			t.Errorf("the entry is %+v", e)
		}
		if said := r.said(systemd.DrainIncomplete); len(said) != 5 || said[0] != "error: the drain failed; retrying" {
			t.Errorf("what was said is %q", said)
		}
		r.pass(time.Second)
		if e := r.entry("a"); e.Phase != state.Drained || e.Error != "" || e.Failures != 0 {
			t.Errorf("the entry is %+v", e)
		}
	})
}

// Where the machine is lost, the guard goes on without a cordon, and that is no failure of the drain.
func TestANodeThatCannotBeClosedIsNoFailureBeforeAHardDeadline(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.node.toGuard(forbidden)
		r.run()
		r.announce(r.stopping("a", time.Hour), r.spot("b", 2*time.Minute))
		r.pass(time.Minute)
		for _, id := range []string{"a", "b"} {
			if e := r.entry(id); e.Error != "" || e.Failures != 0 {
				t.Errorf("the entry is %+v", e)
			}
		}
		if said := r.said(systemd.PodHeld); len(said) == 0 || said[0] != "warning: forbidden" {
			t.Errorf("what was said is %q", said)
		}
		r.pass(time.Minute)
		r.wantSaid(systemd.DrainIncomplete,
			"error: the drain ran out of time: the node could not be cordoned; remaining pods unknown")
	})
}

func TestAFailedUncordonIsTriedAgain(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.node.toUncordon(func(context.Context) (drain.UncordonResult, error) { return "", errors.New("forbidden") })
		ev := r.stopping("a", time.Hour)
		r.run()
		r.announce(ev)
		ev.State = event.Canceled
		r.announce(ev)
		r.tape.take()
		for _, pause := range []time.Duration{2 * time.Second, 4 * time.Second, 8 * time.Second, 16 * time.Second, 32 * time.Second, time.Minute, time.Minute} {
			r.pass(pause - 1)
			r.wantTape()
			r.pass(1)
			r.wantTape("uncordon", "uncordon ended")
		}
		r.node.toUncordon(func(context.Context) (drain.UncordonResult, error) { return drain.UncordonNotOurs, nil })
		r.pass(time.Minute)
		r.wantTape("uncordon", "uncordon ended", "put a closed canceled")
		r.wantSaid(systemd.Uncordoned, "info: our cordon is already gone")
	})
}

func TestAForeignCordonIsLeft(t *testing.T) {
	t.Parallel()
	for name, code := range map[string]string{"found by a drain": "terminate", "found by a cordon": "hibernate"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(r *rig) {
				r.node.toGuard(func(ctx context.Context, g *guard) {
					g.closeAs(state.NodeFoundClosed, drain.CordonForeign)
					emptied(ctx, g)
				})
				r.run()
				ev := r.spot("a", 2*time.Minute)
				ev.Code = code
				r.announce(ev)
				if r.entry("a").OnNode {
					t.Error("the record takes the cordon for ours")
				}
				r.wantSaid(systemd.CordonForeign, "info: the node was already cordoned by someone else; nth will not uncordon it")
				phase := string(r.entry("a").Phase)
				r.tape.take()
				r.announce()
				r.pass(time.Minute)
				r.wantTape("put a "+phase+", missing", "put a closed withdrawn", "guard ended")
			})
		})
	}
}

// People's word by the node's annotation is heard: a drain waits for them, and a cordon has got what it can get.
func TestANodeThatIsToBeLeftAloneIsLeftAlone(t *testing.T) {
	t.Parallel()
	for code, phase := range map[string]state.Phase{"terminate": state.Draining, "hibernate": state.Cordoned} {
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			listened(t, func(r *rig, heard *ear) {
				r.node.toGuard(func(_ context.Context, g *guard) {
					g.did(drain.Result{Cordon: drain.CordonLeft, Limited: true})
					g.becomes(func(s *drain.State) { s.Seen, s.Left, s.Looked, s.Limited = true, true, true, true }, drain.Progress{Kind: state.NodeOptedOut})
				})
				r.run()
				ev := r.spot("a", 2*time.Minute)
				ev.Code = code
				r.announce(ev)
				if e := r.entry("a"); e.Phase != phase || e.OnNode || e.LeftAlone != (code == "terminate") {
					t.Errorf("the entry is %+v", e)
				}
				ended := map[string][]string{
					"terminate": {"begun a drain after 0s", "left-alone a drain after 0s"}, "hibernate": {"begun a cordon after 0s", "done a cordon after 0s"},
				}[code]
				heard.want(t, append([]string{"announced a"}, ended...)...)
			})
		})
	}
}

func TestANodeThatIsGoneNeedsNothing(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.node.toGuard(func(ctx context.Context, g *guard) {
			g.did(drain.Result{NodeGone: true})
			g.becomes(func(s *drain.State) { s.Seen = true }, drain.Progress{Kind: state.NodeMissing, Detail: "it was deleted"})
			emptied(ctx, g)
		})
		r.run()
		r.announce(r.spot("a", 2*time.Minute))
		r.wantSaid(systemd.Drained, "warning: the Node no longer exists; nothing to drain")
	})
}

// Each event gets what came of the work until it was done.
func TestTheResultOfEachEventIsThatOfItsMoment(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.node.toGuard(func(ctx context.Context, g *guard) {
			g.close()
			for n := 1; ; n++ {
				g.did(drain.Result{Cordon: drain.CordonSet, Evicted: n})
				g.drain()
				if !g.next(ctx) {
					return
				}
			}
		})
		r.run()
		r.announce(r.stopping("a", time.Hour))
		r.announce(r.stopping("a", time.Hour), r.spot("b", 2*time.Minute))
		a, b := r.entry("a"), r.entry("b")
		if a.Phase != state.Drained || a.Result.Evicted != 1 || b.Phase != state.Drained || b.Result.Evicted != 2 {
			t.Errorf("a: %+v\nb: %+v", a, b)
		}
	})
}
