package agent_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/record"
	"github.com/nth-project/nth/pkg/systemd"
)

func TestAStepIsRecordedBeforeItActsAndAfterItEnded(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.run()
		stop, hibernation := r.stopping("a", time.Hour), r.hibernating("b", 2*time.Minute)
		r.announce(stop)
		r.wantTape("put a seen", "put a draining", "drain for a in 1h0m0s", "drain for a in 1h0m0s ended", "put a drained")
		r.announce(stop, hibernation)
		r.wantTape("put b seen", "put b cordoning", "cordon for b", "cordon for b ended", "put b cordoned")
		stop.State = event.Canceled
		r.announce(stop, hibernation)
		r.wantTape("put a closed canceled") // b holds the cordon
		r.announce(stop)
		r.wantTape("put b cordoned")
		r.pass(30 * time.Second)
		r.wantTape("put b undoing", "uncordon", "uncordon ended", "put b closed withdrawn")
	})
}

// There is one cordon, however many events hold it.
func TestEventsThatEndTogetherAreUndoneOnce(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.run()
		a, b := r.stopping("a", time.Hour), r.stopping("b", 2*time.Hour)
		r.announce(a, b)
		r.tape.take()
		a.State, b.State = event.Canceled, event.Canceled
		r.announce(a, b)
		r.wantTape("put a drained", "put b drained", "put a undoing", "uncordon", "uncordon ended",
			"put a closed canceled", "put b drained", "put b closed canceled")
		if a, b := r.entry("a"), r.entry("b"); a.Cordon || b.Cordon {
			t.Errorf("a: %+v\nb: %+v", a, b)
		}
	})
}

func TestADrainsResultIsRemembered(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.node.toDrain(func(context.Context, drain.Plan) (drain.Result, error) {
			time.Sleep(time.Second)
			return drain.Result{Cordon: drain.CordonSet, Evicted: 3, Deleted: 2, Skipped: 1}, nil
		})
		r.run()
		r.announce(r.spot("a", 2*time.Minute))
		r.pass(time.Second)
		e := r.entry("a")
		if e.Result == nil || e.Result.Evicted != 3 || e.Result.Deleted != 2 || e.Result.Skipped != 1 {
			t.Errorf("the result is %+v", e.Result)
		}
		if !e.Cordon || !e.CordonedAt.Equal(r.in(time.Second)) || !e.ActedFor.Equal(r.in(2*time.Minute)) || e.BootID != "boot-1" {
			t.Errorf("the entry is %+v", e)
		}
		r.wantSaid(systemd.Drained, "warning: drained: 3 pods evicted, 2 deleted, 1 left alone as they should be; 119 s before the deadline")
	})
}

func TestADeadlineThatPassesLeavesTheDrainIncompleteAndIsTriedAgain(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.node.toDrain(stuck)
		r.runFor(r.spot("a", 2*time.Minute))
		r.pass(2 * time.Minute)
		r.wantTape("drain for a in 2m0s hard ended", "put a incomplete")
		e := r.entry("a")
		if e.Failures != 1 || e.Error == "" || len(e.Result.Left) != 1 || e.Result.HeldBy["default/web-1"] != "PDB default/web" {
			t.Errorf("the entry is %+v, the result %+v", e, e.Result)
		}
		r.wantSaid(systemd.DrainIncomplete,
			"error: the drain ran out of time: 2 pods evicted, 0 deleted, left: default/web-1 (held by PDB default/web)")
		r.wantStatus("node node-a is incomplete for spot-interruption")

		r.pass(2*time.Second - 1)
		r.wantTape()
		r.pass(1)
		r.wantTape("put a draining", "drain for a in 30s hard")
		r.pass(30 * time.Second)
		r.wantTape("drain for a in 30s hard ended", "put a incomplete")
		r.pass(4*time.Second - 1)
		r.wantTape()
		r.node.toDrain(empty)
		r.pass(1)
		r.wantTape("put a draining", "drain for a in 30s hard", "drain for a in 30s hard ended", "put a drained")
		if e := r.entry("a"); e.Failures != 0 || e.Error != "" || !e.CordonedAt.Equal(r.in(2*time.Minute)) {
			t.Errorf("the entry is %+v", e)
		}
	})
}

func TestAFailedStepIsTriedAgainAfterAPauseThatGrows(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.node.toDrain(fails)
		r.runFor(r.stopping("a", time.Hour))
		for _, pause := range []time.Duration{2 * time.Second, 4 * time.Second, 8 * time.Second, 16 * time.Second, 32 * time.Second, time.Minute, time.Minute} {
			r.pass(pause - 1)
			r.wantTape()
			r.pass(1)
			if got := r.tape.take(); len(got) != 4 {
				t.Errorf("after a pause of %s, what was done is %q", pause, got)
			}
		}
		if e := r.entry("a"); e.Phase != record.Draining || e.Error != "forbidden" || !e.Cordon {
			t.Errorf("the entry is %+v", e)
		}
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
		r.node.toUncordon(func(context.Context) (drain.UncordonResult, error) { return drain.UncordonNotOurs, nil })
		r.pass(2 * time.Second)
		r.wantTape("put a undoing", "uncordon", "uncordon ended", "put a closed canceled")
		r.wantSaid(systemd.Uncordoned, "info: no cordon of ours is left on the node")
	})
}

func TestAForeignCordonIsLeft(t *testing.T) {
	t.Parallel()
	for name, code := range map[string]string{"found by a drain": "terminate", "found by a cordon": "hibernate"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(r *rig) {
				r.node.toDrain(func(context.Context, drain.Plan) (drain.Result, error) {
					return drain.Result{Cordon: drain.CordonForeign}, nil
				})
				r.node.toCordon(func(context.Context) (drain.CordonResult, error) { return drain.CordonForeign, nil })
				r.run()
				ev := r.spot("a", 2*time.Minute)
				ev.Code = code
				r.announce(ev)
				if r.entry("a").Cordon {
					t.Error("the record takes the cordon for ours")
				}
				phase := string(r.entry("a").Phase)
				r.tape.take()
				r.announce()
				r.pass(time.Minute)
				r.wantTape("put a "+phase, "put a closed withdrawn")
			})
		})
	}
}

func TestANodeThatIsGoneNeedsNothing(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.node.toDrain(func(context.Context, drain.Plan) (drain.Result, error) { return drain.Result{NodeGone: true}, nil })
		r.run()
		r.announce(r.spot("a", 2*time.Minute))
		r.wantSaid(systemd.Drained, "warning: there is no Node any more; nothing to drain")
	})
}

// A step belongs to the event that it was begun for, whatever else is announced meanwhile.
func TestWhatLandsIsRecordedForTheEventItWasFor(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		finish := make(chan struct{})
		r.node.toDrain(func(ctx context.Context, plan drain.Plan) (drain.Result, error) {
			if plan.Claim.Event == "b" {
				return drain.Result{Cordon: drain.CordonOurs, Evicted: 7}, nil
			}
			<-finish
			return drain.Result{Cordon: drain.CordonSet, Evicted: 1}, nil // done in spite of being called back
		})
		r.run()
		r.announce(r.stopping("a", time.Hour))
		r.announce(r.stopping("a", time.Hour), r.spot("b", 2*time.Minute))
		close(finish)
		synctest.Wait()
		a, b := r.entry("a"), r.entry("b")
		if a.Phase != record.Drained || a.Result.Evicted != 1 || b.Phase != record.Drained || b.Result.Evicted != 7 {
			t.Errorf("a: %+v\nb: %+v", a, b)
		}
	})
}
