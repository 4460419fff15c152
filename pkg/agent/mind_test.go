package agent_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/systemd"
)

func TestANearerDeadlineAdjustsTheGuardThatStands(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.node.toGuard(stuck)
		r.run()
		slow, fast := r.stopping("slow", time.Hour), r.spot("fast", 2*time.Minute)
		r.announce(slow)
		r.wantTape("put slow seen", "put slow draining", "guard for slow: drain, soft in 1h0m0s")
		r.announce(slow, fast)
		r.wantTape("put fast seen", "put fast draining", "adjust to fast, slow: drain, hard in 2m0s, soft in 1h0m0s")
		r.pass(2 * time.Minute)
		r.wantTape("put fast incomplete")
		if e := r.entry("slow"); e.Phase != state.Draining || e.Error != "" || e.Failures != 0 {
			t.Errorf("the entry is %+v", e)
		}
		r.wantSaid(systemd.EventWithdrawn)
	})
}

func TestTheGuardIsToldTheKindsOfAllEventsThatWantIt(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		var told []string
		r.node.toGuard(func(ctx context.Context, g *guard) {
			for told = g.wants().Kinds; g.next(ctx); told = g.wants().Kinds {
				r.tape.take()
			}
		})
		r.run()
		maintenance := r.stopping("m", time.Hour)
		r.announce(maintenance)
		r.pass(time.Second)
		if want := []string{string(event.ScheduledMaintenance)}; !slices.Equal(told, want) {
			t.Errorf("told %v; want %v", told, want)
		}
		r.announce(maintenance, r.stopping("n", time.Hour), r.spot("s", time.Minute), recommended("r")) // for which nothing is done
		r.pass(time.Second)
		want := []string{string(event.ScheduledMaintenance), string(event.SpotInterruption)}
		if slices.Sort(told); !slices.Equal(told, want) {
			t.Errorf("told %v; want %v", told, want)
		}
	})
}

// However near or overdue what is soft may be, it takes nothing from a machine that will be lost.
func TestASoftDeadlineTakesNothingFromAHardOne(t *testing.T) {
	t.Parallel()
	for name, at := range map[string]time.Duration{"is nearer": 50 * time.Second, "is overdue": -time.Minute} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(r *rig) {
				r.node.toGuard(stuck)
				r.run()
				stop := r.stopping("m", at)
				r.announce(stop)
				r.tape.take()
				r.announce(stop, r.spot("s", time.Minute))
				r.wantTape("put s seen", "put s draining", "adjust to s, m: drain, hard in 1m0s, soft in "+at.String())
				r.pass(time.Minute)
				if r.node.guards != 1 {
					t.Errorf("%d guards were begun", r.node.guards)
				}
			})
		})
	}
}

// The next guard begins when the one before has ended, whatever was wanted and found meanwhile.
func TestWhatIsWantedWhileAGuardEndsWaitsForItsEnd(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.node.toGuard(func(ctx context.Context, g *guard) {
			g.close()
			g.drain()
			<-ctx.Done()
			time.Sleep(5 * time.Second) // what has to be finished first
			g.say(drain.Progress{Kind: state.PodGone, Pod: "default/web"})
		})
		stop := r.stopping("slow", time.Hour)
		r.runFor(stop)
		stop.State = event.Canceled
		r.announce(stop)
		r.wantTape("put slow undoing")
		r.announce(stop, r.spot("fast", 2*time.Minute))
		r.pass(5*time.Second - 1)
		r.wantTape("put fast seen", "put slow closed canceled", "put fast draining") // and not drained, as that guard is not for it
		r.node.toGuard(stuck)
		r.pass(1)
		r.wantTape("guard ended", "guard for fast: drain, hard in 1m55s")
		if e := r.entry("fast"); !e.OnNode {
			t.Errorf("the entry is %+v", e)
		}
	})
}

func TestADeadlineThatMovesAdjustsTheGuard(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.node.toGuard(stuck)
		r.runFor(r.stopping("a", time.Hour))
		r.announce(r.stopping("a", time.Minute))
		r.wantTape("put a draining, changed", "adjust to a: drain, soft in 1m0s")
		r.announce(r.stopping("a", 2*time.Hour))
		r.wantTape("put a draining, changed", "adjust to a: drain, soft in 2h0m0s")
	})
}

// amazon-ec2-metadata-mock computes the time of its notice anew at each look.
func TestANoticeWhoseTimeMovesIsOneInterruption(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.node.toGuard(stuck)
		rule := r.cfg.Policy[event.SpotInterruption]
		rule.Budget = 2 * time.Minute
		r.cfg.Policy[event.SpotInterruption] = rule
		r.run()
		puts := 0
		for n := range 120 {
			passed := time.Duration(n) * 500 * time.Millisecond
			r.announce(r.spot(fmt.Sprint("notice-", n), passed+2*time.Minute))
			if n == 0 {
				r.wantTape("put notice-0 seen", "put notice-0 draining", "guard for notice-0: drain, hard in 2m0s")
				puts = r.record.puts()
			}
			r.pass(500 * time.Millisecond)
		}
		r.wantTape()
		if entries := r.record.Entries(); len(entries) != 1 || r.record.puts() != puts {
			t.Errorf("%d entries, %d writes after the first notice", len(entries), r.record.puts()-puts)
		}
		r.pass(time.Minute)
		r.wantTape("put notice-0 incomplete")
	})
}

func TestAnEventThatIsWithdrawnDuringItsDrain(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.node.toGuard(stuck)
		r.runFor(r.spot("a", 2*time.Minute))
		r.announce()
		r.wantTape("put a draining, missing")
		r.pass(30*time.Second - 1)
		r.wantTape()
		r.pass(1)
		r.wantTape("put a undoing", "guard ended", "uncordon", "uncordon ended", "put a closed withdrawn")
		if e := r.entry("a"); e.OnNode || e.Ending != state.Withdrawn {
			t.Errorf("the entry is %+v", e)
		}
		r.pass(time.Hour)
		r.wantTape()
	})
}

func TestAnEventThatIsBackInTimeWasNeverGone(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.node.toGuard(stuck)
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
				// Both were withdrawn; both are back while what is on the node is being taken back.
				r.announce(r.spot("a", time.Hour), r.spot("b", 2*time.Hour))
				want := []string{"put a draining", "put b draining", "uncordon ended"}
				if lifted {
					want = append(want, "put a seen", "put b seen", "put a draining", "put b draining")
				}
				r.wantTape(append(want, "guard for a, b: drain, hard in 59m30s", "put a drained", "put b drained")...)
				if a, b := r.entry("a"), r.entry("b"); !a.OnNode || !b.OnNode {
					t.Errorf("a: %+v\nb: %+v", a, b)
				}
			})
		})
	}
}

// Somebody has lifted the cordon, which nth found only when it was to lift it, and the event is back meanwhile.
func TestAnOrderThatIsFoundDuringTheUndoingStands(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.node.toUncordon(func(ctx context.Context) (drain.UncordonResult, error) {
			<-ctx.Done()
			return drain.UncordonOpened, nil
		})
		r.runFor(r.spot("a", time.Hour))
		r.announce()
		r.pass(30 * time.Second)
		r.tape.take()
		r.announce(r.spot("a", time.Hour))
		r.wantTape("put a draining", "uncordon ended", "put a draining, reopened", "guard for a: drain, hard in 59m30s, reopened",
			"put a drained", "guard ended")
	})
}

// An event that joined is withdrawn, and the guard goes on for the one that it stood for before.
func TestADrainGoesOnWhenAnEventThatJoinedItIsWithdrawn(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.node.toGuard(stuck)
		r.run()
		slow := r.stopping("slow", time.Hour)
		r.announce(slow)
		r.announce(slow, r.spot("fast", 2*time.Minute))
		r.announce(slow)
		r.tape.take()
		r.pass(30 * time.Second)
		r.wantTape("put fast closed withdrawn", "adjust to slow: drain, soft in 59m30s")
		if e := r.entry("fast"); e.Phase != state.Closed || e.OnNode || e.Result != nil {
			t.Errorf("fast: %+v", e)
		}
		if e := r.entry("slow"); !e.OnNode {
			t.Errorf("slow: %+v", e)
		}
		slow.State = event.Canceled
		r.announce(slow)
		r.wantTape("put slow undoing", "guard ended", "uncordon", "uncordon ended", "put slow closed canceled")
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
		r.wantTape("put a draining", "guard for a: drain, soft in 10m0s", "put a drained")
		r.announce(r.rebooting("a", 2*time.Hour))
		r.wantTape("put a undoing", "guard ended", "uncordon", "uncordon ended", "put a seen")
		r.pass(time.Hour)
		r.wantTape("put a draining", "guard for a: drain, soft in 10m0s", "put a drained")
	})
}

// If somebody uncordons the node by hand, that is an order, for all events that wanted the cordon.
func TestAnOrderByHandStandsUntilAnotherEventComes(t *testing.T) {
	t.Parallel()
	reopen := func(ctx context.Context, g *guard) {
		g.close()
		rest(ctx, 10*time.Second)
		g.becomes(func(s *drain.State) { s.Closed = false }, drain.Progress{Kind: state.NodeReopened, Events: g.wants().Events})
		if rest(ctx, 10*time.Second) {
			emptied(ctx, g)
		}
	}
	bubble(t, func(r *rig) {
		r.node.toGuard(reopen)
		stop, hibernation := r.stopping("a", time.Hour), r.hibernating("b", 30*time.Minute)
		r.runFor(stop, hibernation)
		r.pass(10 * time.Second)
		r.wantTape("put a draining, reopened", "put b cordoned, reopened", "adjust to a: drain, soft in 59m50s, reopened")
		r.pass(5 * time.Second)
		r.end(nil)
		r.tape.take()
		r.run() // It is remembered.
		r.wantTape("guard for a: drain, soft in 59m45s, reopened")
		r.announce(stop, hibernation)
		r.pass(20 * time.Second)
		r.wantTape("put a drained", "guard ended")
		r.wantSaid(systemd.Uncordoned)
		r.announce(stop, hibernation, r.spot("c", 2*time.Minute))
		r.wantTape("put c seen", "put c draining", "guard for c: drain, hard in 1m25s")
	})
}

// An event joins while the word of the order is on its way.
func TestAnOrderByHandIsNotForEventsThatItDidNotKnow(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.node.toGuard(func(ctx context.Context, g *guard) {
			g.close()
			old := g.wants()
			g.next(ctx)
			g.told(drain.Progress{Kind: state.NodeReopened, Goal: old.Number, Events: old.Events})
		})
		stop := r.stopping("a", time.Hour)
		r.runFor(stop)
		r.announce(stop, r.spot("b", 2*time.Minute))
		r.pass(time.Second)
		r.wantTape("put b seen", "put b draining", "adjust to b, a: drain, hard in 2m0s, soft in 1h0m0s", "put a draining, reopened")
	})
}

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
		r.pass(10 * time.Minute)
		r.wantTape()
		r.announce(r.spot("a", 2*time.Minute)) // it had never gone
		r.announce()
		r.tape.take()
		r.trouble(event.SpotInterruption, "connection refused")
		r.pass(10 * time.Minute)
		r.announce() // it has
		r.wantTape("put a undoing", "guard ended", "uncordon", "uncordon ended", "put a closed withdrawn")
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
		r.wantTape("put a drained, missing", "put a undoing", "guard ended", "uncordon", "uncordon ended", "put a closed withdrawn")
	})
}
