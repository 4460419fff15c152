package agent_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/record"
	"github.com/nth-project/nth/pkg/systemd"
)

// only makes drains for one event stuck and all others end at once.
func only(id string) func(context.Context, drain.Plan) (drain.Result, error) {
	return func(ctx context.Context, plan drain.Plan) (drain.Result, error) {
		if plan.Claim.Event == id {
			return stuck(ctx, plan)
		}
		return empty(ctx, plan)
	}
}

func TestANearerDeadlineOvertakes(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.node.toDrain(only("slow"))
		r.run()
		slow := r.stopping("slow", time.Hour)
		r.announce(slow)
		r.wantTape("put slow seen", "put slow draining", "drain for slow in 1h0m0s")
		r.announce(slow, r.spot("fast", 2*time.Minute))
		r.wantTape("put fast seen", "drain for slow in 1h0m0s ended", "put slow draining",
			"put fast draining", "drain for fast in 2m0s hard", "drain for fast in 2m0s hard ended", "put fast drained",
			"put slow draining", "drain for slow in 1h0m0s")
		if e := r.entry("slow"); e.Error != "" || e.Failures != 0 {
			t.Errorf("being called back counts as a failure: %+v", e)
		}
		if said := r.said(systemd.EventWithdrawn); len(said) != 1 || said[0] != "info: stopping the drain for scheduled-maintenance: spot-interruption comes first" {
			t.Errorf("what was said is %q", said)
		}
	})
}

func TestTheNextStepBeginsWhenTheLastHasLanded(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.node.toDrain(func(ctx context.Context, plan drain.Plan) (drain.Result, error) {
			<-ctx.Done()
			time.Sleep(5 * time.Second) // what has to be finished first
			return drain.Result{}, ctx.Err()
		})
		r.runFor(r.stopping("slow", time.Hour))
		r.announce(r.stopping("slow", time.Hour), r.spot("fast", 2*time.Minute))
		r.pass(5*time.Second - 1)
		r.wantTape("put fast seen")
		r.pass(1)
		r.wantTape("drain for slow in 1h0m0s ended", "put slow draining", "put fast draining", "drain for fast in 1m55s hard")
		r.announce(r.stopping("slow", time.Hour))
		r.pass(time.Minute)
		r.tape.take()
		r.stop()
		time.Sleep(5 * time.Second) // the one in flight lands
	})
}

func TestADeadlineThatMovesBeginsTheDrainAnew(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.node.toDrain(stuck)
		r.runFor(r.stopping("a", time.Hour))
		r.announce(r.stopping("a", time.Minute))
		r.wantTape("put a draining", "drain for a in 1h0m0s ended", "put a draining", "put a draining", "drain for a in 1m0s")
		r.announce(r.stopping("a", 2*time.Hour))
		r.wantTape("put a draining", "drain for a in 1m0s ended", "put a draining", "put a draining", "drain for a in 2h0m0s")
	})
}

func TestAnEventThatIsWithdrawnDuringItsDrain(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.node.toDrain(stuck)
		r.runFor(r.spot("a", 2*time.Minute))
		r.announce()
		r.wantTape("put a draining") // missing
		r.pass(30*time.Second - 1)
		r.wantTape()
		r.pass(1)
		r.wantTape("drain for a in 2m0s hard ended", "put a draining", "put a undoing", "uncordon", "uncordon ended", "put a closed withdrawn")
		if e := r.entry("a"); e.Cordon || e.Ending != record.Withdrawn {
			t.Errorf("the entry is %+v", e)
		}
		r.pass(time.Hour)
		r.wantTape()
	})
}

func TestAnEventThatIsBackInTimeWasNeverGone(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.node.toDrain(stuck)
		r.run()
		for range 10 {
			r.announce(r.spot("a", time.Hour))
			r.pass(20 * time.Second)
			r.announce()
			r.pass(20 * time.Second)
		}
		if said := r.said(systemd.DrainStarted); len(said) != 1 {
			t.Errorf("the drain was begun %d times", len(said))
		}
	})
}

func TestAnEventThatIsBackDuringItsUndoingIsActedUponAnew(t *testing.T) {
	t.Parallel()
	for name, lifted := range map[string]bool{"before the cordon was lifted": false, "after it was lifted": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(r *rig) {
				r.node.toUncordon(func(ctx context.Context) (drain.UncordonResult, error) {
					<-ctx.Done()
					if lifted {
						return drain.UncordonLifted, nil
					}
					return "", ctx.Err()
				})
				r.run()
				r.announce(r.spot("a", time.Hour), r.spot("b", 2*time.Hour))
				r.announce()
				r.pass(30 * time.Second)
				r.tape.take()
				// Both were withdrawn; both are back while the cordon is being lifted for a.
				r.announce(r.spot("a", time.Hour), r.spot("b", 2*time.Hour))
				a, b := r.entry("a"), r.entry("b")
				if !lifted {
					r.wantTape("put a undoing", "put b drained", "uncordon ended", "put a undoing",
						"put a draining", "drain for a in 59m30s hard", "drain for a in 59m30s hard ended", "put a drained")
					return
				}
				if a.Phase != record.Drained || b.Phase != record.Drained || !a.Cordon || !b.Cordon {
					t.Errorf("a: %+v\nb: %+v", a, b)
				}
				if said := r.said(systemd.DrainStarted); len(said) != 4 {
					t.Errorf("what was said is %q", said)
				}
			})
		})
	}
}

// A drain was called back for another event's, and that event is withdrawn while it is being drained for.
func TestADrainThatWasOvertakenGoesOnWhenTheOtherEventIsWithdrawn(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.node.toDrain(stuck)
		r.run()
		slow := r.stopping("slow", time.Hour)
		r.announce(slow)
		r.announce(slow, r.spot("fast", 2*time.Minute))
		r.announce(slow)
		r.tape.take()
		r.pass(30 * time.Second)
		r.wantTape("put fast closed withdrawn", "drain for fast in 2m0s hard ended", "put slow draining", "drain for slow in 59m30s")
		if e := r.entry("fast"); e.Phase != record.Closed || e.Cordon || e.Result != nil {
			t.Errorf("fast: %+v", e)
		}
		if e := r.entry("slow"); !e.Cordon {
			t.Errorf("slow: %+v", e)
		}
		slow.State = event.Canceled
		r.announce(slow)
		r.wantTape("put slow draining", "drain for slow in 59m30s ended", "put slow draining",
			"put slow undoing", "uncordon", "uncordon ended", "put slow closed canceled")
	})
}

func TestAnEventThatIsMovedFarIsUndoneAndActedUponAtItsNewTime(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.run()
		r.announce(r.rebooting("a", time.Hour))
		r.wantTape("put a seen")
		r.pass(50*time.Minute - 1)
		r.wantTape()
		r.pass(1)
		r.wantTape("put a draining", "drain for a in 10m0s", "drain for a in 10m0s ended", "put a drained")
		r.announce(r.rebooting("a", 4*time.Hour))
		r.wantTape("put a drained", "put a undoing", "uncordon", "uncordon ended", "put a seen")
		r.pass(3 * time.Hour)
		r.wantTape("put a draining", "drain for a in 10m0s", "drain for a in 10m0s ended", "put a drained")
	})
}

// If somebody uncordons the node by hand, that is an order. Nothing tells the agent, and it does not look.
func TestWhatIsDoneIsNotDoneAgainHoweverLongItIsAnnounced(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.runFor(r.spot("a", 2*time.Minute))
		for range 20 {
			r.announce(r.spot("a", 2*time.Minute))
			r.pass(time.Minute)
		}
		r.wantTape()
	})
}

func TestFailingLooksChangeNothing(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.runFor(r.spot("a", 2*time.Minute))
		for range 20 {
			r.trouble(event.SpotInterruption, "connection refused")
			r.pass(time.Minute)
		}
		r.wantTape()
	})
}

func TestTimeThatPassesWithoutAGoodLookWithdrawsNothing(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.run()
		r.announce(r.spot("a", 2*time.Minute))
		r.announce()
		r.tape.take()
		r.trouble(event.SpotInterruption, "connection refused")
		r.pass(time.Hour)
		r.wantTape()
		r.announce(r.spot("a", 2*time.Minute)) // it had never gone
		r.announce()
		r.tape.take()
		r.trouble(event.SpotInterruption, "connection refused")
		r.pass(time.Hour)
		r.announce() // it has
		r.wantTape("put a undoing", "uncordon", "uncordon ended", "put a closed withdrawn")
	})
}

// A document of which a part cannot be read gives a snapshot and trouble at once.
func TestAFlawedDocumentStillWithdraws(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.runFor(r.spot("a", 2*time.Minute))
		for range 65 {
			r.source.sink.Snapshot(event.Snapshot{Kind: event.SpotInterruption})
			r.source.sink.Trouble(event.SpotInterruption, context.DeadlineExceeded)
			r.pass(500 * time.Millisecond)
		}
		synctest.Wait()
		r.wantTape("put a drained", "put a undoing", "uncordon", "uncordon ended", "put a closed withdrawn")
	})
}
