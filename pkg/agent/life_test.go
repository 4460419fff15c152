package agent_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
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

func TestARestartGoesOnWithADrainAndRepeatsNothing(t *testing.T) {
	t.Parallel()
	listened(t, func(r *rig, heard *ear) {
		stop, hibernation := r.stopping("a", time.Hour), r.hibernating("b", 2*time.Minute)
		r.node.toGuard(stuck)
		r.runFor(stop, hibernation)
		r.end(nil)
		r.tape.take()
		heard.take()
		r.pass(time.Minute)
		r.run()
		r.wantTape("guard for a, b: drain, soft in 59m0s")
		heard.want(t, "begun a drain after 0s", "cordoned a drain after 0s")
		r.announce(stop, hibernation)
		r.pass(30 * time.Second)
		r.wantTape()
		heard.want(t)
	})
}

// Whoever starts finds the same goal, and tells again only what has not ended.
func TestARestartInAnyPhaseLeadsToTheSameGoal(t *testing.T) {
	t.Parallel()
	for phase, want := range map[state.Phase]struct{ tape, heard []string }{
		state.Seen:       {[]string{"put a draining", "guard for a: drain, hard in 2m0s"}, []string{"begun a drain after 0s", "cordoned a drain after 0s"}},
		state.Draining:   {[]string{"guard for a: drain, hard in 2m0s"}, []string{"begun a drain after 0s", "cordoned a drain after 0s"}},
		state.Drained:    {[]string{"guard for a: drain, hard in 2m0s"}, nil},
		state.Incomplete: {[]string{"guard for a: drain, hard in 2m0s"}, nil},
		state.Cordoning: {
			[]string{"put a draining", "guard for a: drain, hard in 2m0s"}, []string{"begun a drain after 0s", "cordoned a drain after 0s"},
		},
		state.Closed: {nil, nil},
	} {
		t.Run(string(phase), func(t *testing.T) {
			t.Parallel()
			listened(t, func(r *rig, heard *ear) {
				r.node.toGuard(stuck)
				r.record.entries = []state.Entry{{
					Event: r.spot("a", 2*time.Minute), Phase: phase, BootID: "boot-1", ListedIn: "boot-1", FirstSeen: r.start, Changed: r.start,
					OnNode: phase != state.Seen && phase != state.Closed, Ending: map[state.Phase]state.Ending{state.Closed: state.Rebooted}[phase],
				}}
				r.run()
				r.announce(r.spot("a", 2*time.Minute))
				r.wantTape(want.tape...)
				heard.want(t, want.heard...)
			})
		})
	}
}

// A guard that stands when everything is done stands again, and there is nothing new to say.
func TestARestartBesideADrainedNodeIsQuiet(t *testing.T) {
	t.Parallel()
	listened(t, func(r *rig, heard *ear) {
		r.runFor(r.spot("a", 2*time.Minute))
		r.end(nil)
		heard.take()
		r.hook.Reset()
		r.node.toGuard(func(ctx context.Context, g *guard) {
			g.closeAs(state.NodeClosed, drain.CordonOurs)
			emptied(ctx, g)
		})
		r.tape.take()
		r.run()
		r.announce(r.spot("a", 2*time.Minute))
		r.wantTape("guard for a: drain, hard in 2m0s")
		heard.want(t)
		r.wantSaid(systemd.Cordoned)
		r.wantSaid(systemd.Drained)
	})
}

// A soft reboot leaves the kernel's boot ID as it was, and the Node as the kubelet before it has reported it.
func TestUncordon_AfterASoftReboot(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.cfg.Policy[event.Shutdown] = policy.Rule{Action: policy.Drain, Hard: true}
		r.runFor(event.Event{ID: "down", Kind: event.Shutdown, State: event.Pending, Deadline: r.in(2 * time.Minute)})
		before := time.Now()
		r.pass(time.Minute)
		r.end(nil)
		r.tape.take()
		r.run()
		r.announce()
		if tape := r.tape.take(); !slices.Contains(tape, "uncordon when ready") {
			t.Fatalf("%q", tape)
		}
		for reported, want := range map[time.Time]bool{before: false, time.Now(): true, {}: true} {
			if got := r.node.booted("boot-1", reported); got != want {
				t.Errorf("Ready as reported at %s counts: %v, want %v", reported, got, want)
			}
		}
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
		if booted := r.node.booted; booted("boot-1", time.Time{}) || !booted("boot-2", time.Time{}) {
			t.Error("it is not the kubelet of this boot that says that the node is Ready")
		}
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
		r.node.toGuard(stuck)
		r.run()
		r.announce(r.spot("a", 2*time.Minute))
		r.end(nil)
		r.pass(time.Minute)
		r.tape.take()
		r.cfg.BootID = "boot-2"
		r.run()
		r.wantTape("guard for a: drain, hard in 1m0s")
		r.announce(r.spot("a", 2*time.Minute))
		if e := r.entry("a"); e.Phase != state.Draining || !e.OnNode {
			t.Errorf("the entry is %+v", e)
		}
	})
}

func TestStoppingDuringADrainLeavesItToBeGoneOnWith(t *testing.T) {
	t.Parallel()
	for range 20 {
		bubble(t, func(r *rig) {
			r.node.toGuard(stuck)
			r.source.last = context.Canceled
			r.run()
			together(r, r.stop)
			r.end(nil)
			if e := r.entry("a"); e.Phase != state.Draining || e.Error != "" || e.Failures != 0 || !e.OnNode {
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

// On call, "no longer needed" would mean that the interruption is off.
func TestAStepThatIsNotFinishedWhenNthStopsIsSaidToGoOnLater(t *testing.T) {
	t.Parallel()
	for action, begin := range map[policy.Action]func(r *rig){
		policy.Cordon: func(r *rig) { r.announce(r.hibernating("a", time.Hour)) },
		policy.Drain:  func(r *rig) { r.announce(r.spot("a", time.Hour)) },
		policy.Uncordon: func(r *rig) {
			r.announce(r.spot("a", time.Hour))
			r.announce()
			r.pass(time.Minute)
		},
	} {
		t.Run(string(action), func(t *testing.T) {
			t.Parallel()
			bubble(t, func(r *rig) {
				r.node.toGuard(func(context.Context, *guard) {})
				r.node.toUncordon(waiting)
				r.run()
				begin(r)
				r.hook.Reset()
				r.end(nil)
				r.wantSaid(systemd.EventWithdrawn)
				r.wantSaid(systemd.Stopping,
					"info: the "+string(action)+" for spot-interruption is not finished; it continues when nth starts again",
					"info: stopped; the node is left as it is")
			})
		})
	}
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
		r.node.toGuard(stuck)
		r.run()
		r.announce(r.spot("a", time.Minute))
		r.source.fail <- gaveUp
		synctest.Wait()
		r.end(gaveUp)
		r.wantSaid(systemd.Stopping, "info: the drain for spot-interruption is not finished; it continues when nth starts again")
		if e := r.entry("a"); e.Phase != state.Draining || e.Error != "" {
			t.Errorf("the entry is %+v", e)
		}
	})
}

func TestWhatEndsTogetherWithASourceIsRecorded(t *testing.T) {
	t.Parallel()
	for range 20 {
		bubble(t, func(r *rig) {
			gaveUp, finish := errors.New("no such bus"), make(chan struct{})
			r.node.toGuard(func(_ context.Context, g *guard) {
				g.close()
				<-finish
				g.drain()
			})
			r.run()
			together(r, func() {
				r.source.fail <- gaveUp
				synctest.Wait()
				close(finish)
			})
			r.end(gaveUp)
			if e := r.entry("a"); e.Phase != state.Drained {
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
		r.wantTape("put a seen", "put a draining", "guard for a: drain, hard in 2m0s", "put a drained")
		r.pass(time.Minute)
		const loud = "error: cannot write the state record; a restart now may forget what was done"
		for _, said := range r.said(systemd.StateTrouble) {
			if said != loud {
				t.Errorf("said: %s", said)
			}
		}
		if said := r.said(systemd.StateTrouble); len(said) < 3 {
			t.Errorf("it was said %d times", len(said))
		}
	})
}

// Nothing may be to be recorded for hours, until a reboot.
func TestARecordThatCouldNotBeWrittenIsTriedAgainUntilItCanBe(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.run()
		r.record.loses(errors.New("no space left on device"))
		r.announce(recommended("a"))
		said := len(r.said(systemd.StateTrouble))
		puts := r.record.puts()
		r.pass(10*time.Second - 1)
		if again := r.record.puts() - puts; again != 0 {
			t.Errorf("in less than ten seconds it was tried %d times", again)
		}
		r.pass(1)
		if again := r.record.puts() - puts; again != 1 {
			t.Errorf("after ten seconds it was tried %d times", again)
		}
		puts = r.record.puts()
		r.pass(time.Minute)
		if again := r.record.puts() - puts; again < 5 || again > 6 || len(r.said(systemd.StateTrouble)) != said || said == 0 {
			t.Errorf("in a minute it was tried %d times; it was said %d times, and then %d", again, said, len(r.said(systemd.StateTrouble)))
		}
		r.record.loses(nil)
		r.pass(11 * time.Second)
		puts = r.record.puts()
		r.pass(time.Minute)
		if again := r.record.puts() - puts; again != 0 {
			t.Errorf("it was tried %d times after it had been written", again)
		}
	})
}

// A failing volume is just when EC2 retires a machine.
func TestADiskThatHangsHoldsNoDrain(t *testing.T) {
	t.Parallel()
	for name, hangs := range map[string]time.Duration{"for 10 s": 10 * time.Second, "for 45 s": 45 * time.Second, "for ever": 1000 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(r *rig) {
				r.record.hangs, r.cfg.Beat = hangs, time.Second
				r.run()
				r.announce(r.spot("a", 2*time.Minute))
				r.wantTape("put a seen", "put a draining")
				r.pass(250 * time.Millisecond)
				r.wantTape("guard for a: drain, hard in 1m59.75s", "put a drained")
				r.pass(time.Minute)
				r.service.set(func() {
					if r.service.beats != 60 {
						t.Errorf("%d beats in a minute", r.service.beats)
					}
				})
				before := time.Now()
				r.stop()
				if err := <-r.ended; err != nil {
					t.Error(err)
				}
				r.stop = nil
				if took := time.Since(before); took > 5*time.Second {
					t.Errorf("Run took %s to end", took)
				}
			})
		})
	}
}

// What is on disk already is not waited for.
func TestARestartWaitsForNoDisk(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.runFor(r.spot("a", 2*time.Minute))
		r.end(nil)
		r.tape.take()
		r.record.hangsFor(time.Hour)
		r.run()
		r.wantTape("guard for a: drain, hard in 2m0s")
		r.stop()
		if err := <-r.ended; err != nil {
			t.Errorf("Run returned %v", err)
		}
		r.stop = nil
	})
}

// The Node was asked before the cordon was lifted, and has answered afterwards.
func TestACordonThatHasBeenTakenBackIsNotTakenOver(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		reboot := r.stopping("a", -time.Minute)
		reboot.Code = "system-reboot"
		r.node.toClaim(func(context.Context) (drain.Claim, bool, error) {
			time.Sleep(5 * time.Second)
			return drain.Claim{Event: "a", Kind: string(event.ScheduledMaintenance), BootID: "boot-0", Since: r.in(-time.Hour)}, true, nil
		})
		r.record.entries = []state.Entry{{
			Event: reboot, Phase: state.Drained, BootID: "boot-0", FirstSeen: r.start, Changed: r.start, CordonedAt: r.start, OnNode: true,
		}}
		r.run()
		r.pass(time.Minute)
		if e := r.entry("a"); e.Phase != state.Closed || e.Ending != state.Rebooted {
			t.Errorf("the entry is %+v", e)
		}
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
			if e := r.entry("a"); !e.OnNode || e.BootID != "boot-0" || !e.FirstSeen.Equal(r.in(-time.Hour)) {
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
			r.wantTape("put a draining", "guard for a: drain, hard in 50s", "put a drained")
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

// The record was lost, or what was put last has not reached the disk.
func TestACordonOfOursOfWhichTheRecordKnowsOnlyTheEventIsTakenOver(t *testing.T) {
	t.Parallel()
	for _, phase := range []state.Phase{state.Seen, state.Closed} {
		t.Run(string(phase), func(t *testing.T) {
			t.Parallel()
			bubble(t, func(r *rig) {
				r.record.entries = []state.Entry{{
					Event: r.stopping("a", time.Hour), Phase: phase, BootID: "boot-0", FirstSeen: r.start, Changed: r.start,
					Ending: map[state.Phase]state.Ending{state.Closed: state.Canceled}[phase],
				}}
				r.node.toClaim(func(context.Context) (drain.Claim, bool, error) {
					return drain.Claim{Event: "a", Kind: string(event.ScheduledMaintenance), BootID: "boot-0", Since: r.start}, true, nil
				})
				r.cfg.Policy[event.ScheduledMaintenance] = policy.Rule{Action: policy.Notify, WithdrawnAfter: time.Hour}
				r.run()
				r.wantTape("put a cordoned", "put a undoing", "uncordon when ready", "uncordon when ready ended", "put a seen")
			})
		})
	}
}

// What nth-queue has set on the node, it takes back. A claim that no one looks after is given up in time.
func TestWhoseClaimsAreTakenOver(t *testing.T) {
	t.Parallel()
	phantom := func(r *rig, kind string, ours bool) {
		r.node.toClaim(func(context.Context) (drain.Claim, bool, error) {
			return drain.Claim{Event: "a", Kind: kind, BootID: "boot-1", Since: r.start}, ours, nil
		})
		r.cfg.Unwatched = []event.Kind{event.StateChange, event.ReservationEnd}
		r.run()
		r.announce()
	}
	t.Run("another writer's is not", func(t *testing.T) {
		t.Parallel()
		bubble(t, func(r *rig) {
			phantom(r, string(event.RebalanceRecommendation), false)
			r.announce(recommended("b"))
			r.pass(time.Hour)
			r.wantTape("put b seen")
		})
	})
	t.Run("one of an unknown kind is lifted at once", func(t *testing.T) {
		t.Parallel()
		bubble(t, func(r *rig) {
			phantom(r, "made-up", true)
			r.wantTape("put a cordoned", "put a undoing", "uncordon", "uncordon ended", "put a closed ignored")
		})
	})
	t.Run("one of a kind that nobody looks for is lifted in time", func(t *testing.T) {
		t.Parallel()
		bubble(t, func(r *rig) {
			r.cfg.Policy[event.StateChange] = policy.Rule{Action: policy.Cordon}
			phantom(r, string(event.StateChange), true)
			r.pass(10*time.Minute - 1)
			r.wantTape("put a cordoned", "guard for a: cordon")
			r.pass(1)
			r.wantTape("put a undoing", "guard ended", "uncordon", "uncordon ended", "put a closed withdrawn")
		})
	})
	t.Run("and none keeps the node closed after a reboot", func(t *testing.T) {
		t.Parallel()
		bubble(t, func(r *rig) {
			r.cfg.Policy[event.StateChange] = policy.Rule{Action: policy.Cordon}
			phantom(r, string(event.StateChange), true)
			r.announce(r.rebooting("m", 5*time.Minute))
			r.pass(time.Minute)
			r.end(nil)
			r.tape.take()
			r.node.toClaim(func(context.Context) (drain.Claim, bool, error) { return drain.Claim{}, false, nil })
			r.cfg.BootID = "boot-2"
			r.run()
			r.announce()
			r.pass(time.Hour)
			if tape := r.tape.take(); !slices.Contains(tape, "uncordon when ready") {
				t.Errorf("what was done is %q", tape)
			}
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
		r.wantTape("guard for a: drain, hard in 1m0s")
	})
}
