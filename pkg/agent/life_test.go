package agent_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/record"
	"github.com/nth-project/nth/pkg/systemd"
)

func TestReadyWaitsForNothing(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.ident.name = ""
		r.node.toClaim(func(ctx context.Context) (drain.Claim, bool, error) {
			<-ctx.Done()
			return drain.Claim{}, false, ctx.Err()
		})
		r.run()
		if !r.service.ready {
			t.Error("the service is not ready")
		}
		if took := time.Since(r.start); took > 0 {
			t.Errorf("that took %s", took)
		}
	})
}

func TestARestartGoesOnWithADrainAndRepeatsNone(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.node.toDrain(only("b"))
		r.run()
		r.announce(r.spot("a", 2*time.Minute), r.stopping("b", time.Hour))
		r.end(nil)
		r.tape.take()
		r.pass(time.Minute)
		r.run()
		r.wantTape("put b draining", "drain for b in 59m0s")
		r.announce(r.spot("a", 2*time.Minute), r.stopping("b", time.Hour))
		r.pass(time.Minute)
		r.wantTape()
	})
}

func TestAfterARebootTheCordonIsLiftedWhenTheNodeIsReady(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.run()
		reboot := r.rebooting("a", time.Minute)
		r.announce(reboot)
		r.end(nil)
		r.tape.take()
		r.pass(5 * time.Minute)
		r.cfg.BootID = "boot-2"
		r.run() // the metadata service does not answer
		r.wantTape("put a undoing", "uncordon when ready", "uncordon when ready ended", "put a closed rebooted")
		r.announce(reboot)
		r.pass(time.Hour)
		r.wantTape()
	})
}

// together makes the loop slow, so that what f does waits for it all at once and is taken in by chance.
func together(r *rig, f func()) {
	r.service.slow = time.Second
	r.announce(r.spot("a", time.Hour))
	f()
	r.pass(time.Minute)
}

func TestADrainIsGoneOnWithInTheNextBoot(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.node.toDrain(stuck)
		r.run()
		r.announce(r.spot("a", 2*time.Minute))
		r.end(nil)
		r.pass(time.Minute)
		r.tape.take()
		r.cfg.BootID = "boot-2"
		r.run()
		r.wantTape("put a draining", "drain for a in 1m0s hard")
		if e := r.entry("a"); e.BootID != "boot-2" {
			t.Errorf("the entry is %+v", e)
		}
	})
}

func TestStoppingDuringADrainLeavesItToBeGoneOnWith(t *testing.T) {
	t.Parallel()
	for range 20 {
		bubble(t, func(r *rig) {
			r.node.toDrain(stuck)
			r.source.last = context.Canceled
			r.run()
			together(r, r.stop)
			r.end(nil)
			r.wantTape("put a seen", "put a draining", "drain for a in 1h0m0s hard", "drain for a in 1h0m0s hard ended", "put a draining")
			if e := r.entry("a"); e.Phase != record.Draining || e.Error != "" || e.Failures != 0 || !e.Cordon {
				t.Errorf("the entry is %+v", e)
			}
			for _, e := range r.hook.AllEntries() {
				if e.Level <= logrus.ErrorLevel {
					t.Errorf("said: %s", e.Message)
				}
			}
			if !r.service.stopping {
				t.Error("the service manager was not told")
			}
		})
	}
}

func TestADrainThatEndsWhileStoppingIsRecordedAsEnded(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.node.toDrain(func(ctx context.Context, _ drain.Plan) (drain.Result, error) {
			<-ctx.Done()
			return drain.Result{Cordon: drain.CordonSet}, nil
		})
		r.run()
		r.announce(r.spot("a", 2*time.Minute))
		r.end(nil)
		if e := r.entry("a"); e.Phase != record.Drained {
			t.Errorf("the entry is %+v", e)
		}
	})
}

func TestNothingIsBegunOnceStopped(t *testing.T) {
	t.Parallel()
	for range 50 {
		bubble(t, func(r *rig) {
			r.run()
			sink := r.source.sink
			r.stop()
			sink.Snapshot(event.Snapshot{Kind: event.SpotInterruption, Events: []event.Event{r.spot("a", time.Minute)}})
			r.end(nil)
			r.wantTape()
		})
	}
}

func TestASourceThatGivesUpEndsTheRun(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		gaveUp := errors.New("no such bus")
		r.node.toDrain(stuck)
		r.run()
		r.announce(r.spot("a", time.Minute))
		r.source.fail <- gaveUp
		synctest.Wait()
		r.end(gaveUp)
		r.wantSaid(systemd.Stopping)
		if e := r.entry("a"); e.Phase != record.Draining || e.Error != "" {
			t.Errorf("the entry is %+v", e)
		}
	})
}

func TestWhatEndsTogetherWithASourceIsRecorded(t *testing.T) {
	t.Parallel()
	for range 20 {
		bubble(t, func(r *rig) {
			gaveUp, finish := errors.New("no such bus"), make(chan struct{})
			r.node.toDrain(func(context.Context, drain.Plan) (drain.Result, error) {
				<-finish
				return drain.Result{Cordon: drain.CordonSet}, nil
			})
			r.run()
			together(r, func() {
				r.source.fail <- gaveUp
				synctest.Wait()
				close(finish)
			})
			r.end(gaveUp)
			if e := r.entry("a"); e.Phase != record.Drained {
				t.Errorf("the entry is %+v", e)
			}
		})
	}
}

func TestARecordThatCannotBeWrittenStopsNoDrain(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.record.loses(errors.New("no space left on device"))
		r.run()
		r.announce(r.spot("a", 2*time.Minute))
		r.wantTape("put a seen", "put a draining", "drain for a in 2m0s hard", "drain for a in 2m0s hard ended", "put a drained")
		r.pass(time.Hour)
		const loud = "error: the record cannot be written; a restart now may forget what was done"
		r.wantSaid(systemd.StateTrouble, loud, loud, loud)
	})
}

func TestACordonOfOursThatTheRecordHasLost(t *testing.T) {
	t.Parallel()
	claim := func(r *rig, kind event.Kind) {
		r.node.toClaim(func(context.Context) (drain.Claim, bool, error) {
			if time.Since(r.start) < 7*time.Second {
				return drain.Claim{}, false, errors.New("connection refused")
			}
			return drain.Claim{Event: "a", Kind: string(kind), BootID: "boot-0", Since: r.in(-time.Hour)}, true, nil
		})
		r.run()
		r.pass(10*time.Second - 1)
		r.wantTape()
		r.pass(1) // asked again
		r.wantTape("put a cordoned")
	}
	t.Run("is kept as it is until its source has spoken", func(t *testing.T) {
		t.Parallel()
		bubble(t, func(r *rig) {
			claim(r, event.SpotInterruption)
			r.pass(time.Hour)
			r.wantTape()
			if e := r.entry("a"); !e.Cordon || e.BootID != "boot-0" || !e.FirstSeen.Equal(r.in(-time.Hour)) {
				t.Errorf("the entry is %+v", e)
			}
		})
	})
	t.Run("is lifted if its event is over", func(t *testing.T) {
		t.Parallel()
		bubble(t, func(r *rig) {
			claim(r, event.SpotInterruption)
			r.announce()
			r.pass(30*time.Second - 1)
			r.wantTape()
			r.pass(1)
			r.wantTape("put a undoing", "uncordon when ready", "uncordon when ready ended", "put a closed withdrawn")
		})
	})
	t.Run("is drained if its event is announced", func(t *testing.T) {
		t.Parallel()
		bubble(t, func(r *rig) {
			claim(r, event.SpotInterruption)
			r.announce(r.spot("a", time.Minute))
			r.wantTape("put a cordoned", "put a draining", "drain for a in 50s hard", "drain for a in 50s hard ended", "put a drained")
		})
	})
	t.Run("is lifted after the shutdown that it was for", func(t *testing.T) {
		t.Parallel()
		bubble(t, func(r *rig) {
			r.node.toClaim(func(context.Context) (drain.Claim, bool, error) {
				return drain.Claim{Event: "a", Kind: string(event.Shutdown), BootID: "boot-0", Since: r.start}, true, nil
			})
			r.run()
			r.wantTape("put a cordoned", "put a undoing", "uncordon when ready", "uncordon when ready ended", "put a closed rebooted")
		})
	})
}

func TestACordonOfOursThatTheRecordKnowsIsNotTakenOver(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.run()
		r.announce(r.spot("a", time.Minute))
		r.end(nil)
		r.tape.take()
		r.node.toClaim(func(context.Context) (drain.Claim, bool, error) {
			return drain.Claim{Event: "a", Kind: string(event.SpotInterruption), BootID: "boot-1"}, true, nil
		})
		r.run()
		r.wantTape()
	})
}
