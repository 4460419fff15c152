package agent_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/systemd"
)

func TestTheStatusWhileNothingHappens(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.ident.name = ""
		r.run()
		r.wantStatus("watching; waiting for the kubelet's credential")
		r.ident.tell("", errors.New("there is no kubeconfig"))
		r.pass(0)
		r.wantStatus("watching; waiting for the kubelet's credential: there is no kubeconfig")
		r.ident.tell("node-a", nil)
		r.pass(0)
		r.wantStatus("watching; nothing is announced for node node-a")
		r.announce(r.rebooting("a", time.Hour))
		r.wantStatus("watching node node-a: EC2 has scheduled system-reboot at 01:00:00 UTC on 1 Jan 2000; drain begins at 00:50:00 UTC on 1 Jan 2000 (sooner with kubectl drain)")
		r.announce(r.spot("b", 2*time.Minute))
		r.wantStatus("node node-a is drained for spot-interruption")
	})
}

// A look that failed is never read as "nothing is announced".
func TestTheStatusGivesNoAllClearForADocumentThatWasNeverRead(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.run()
		for _, kind := range event.Kinds() {
			if kind != event.SpotInterruption {
				r.source.sink.Snapshot(event.Snapshot{Kind: kind})
			}
		}
		r.trouble(event.SpotInterruption, "status 403")
		r.wantStatus("watching node node-a; not known whether there is: spot-interruption")
		r.announce()
		r.wantStatus("watching; nothing is announced for node node-a")
	})
}

func TestTheStatusDuringADrain(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.node.toGuard(func(_ context.Context, g *guard) {
			time.Sleep(time.Second)
			g.say(drain.Progress{Kind: state.PodsFound, Total: 3, Left: 3})
			g.say(drain.Progress{Kind: state.PodHeld, Pod: "default/web-1", Detail: "default/web", Total: 3, Left: 3})
			g.say(drain.Progress{Kind: state.PodHeld, Pod: "default/web-2", Detail: "default/web", Total: 3, Left: 3})
			time.Sleep(time.Second)
			g.say(drain.Progress{Kind: state.PodRefused, Pod: "default/api-1", Detail: "the webhook says no", Total: 3, Left: 3})
			time.Sleep(time.Second)
			g.say(drain.Progress{Kind: state.PodEvicted, Pod: "default/web-1", Total: 3, Left: 3})
			g.say(drain.Progress{Kind: state.PodGone, Pod: "default/web-1", Total: 3, Left: 2})
			g.say(drain.Progress{Kind: state.PodGone, Pod: "default/web-2", Total: 3, Left: 1})
		})
		r.run()
		r.announce(r.spot("a", 2*time.Minute))
		r.wantStatus("draining node node-a for spot-interruption, 120 s left")
		r.pass(time.Second)
		r.wantStatus("draining node node-a for spot-interruption: 0 of 3 pods gone, 119 s left, held by PDB default/web")
		r.pass(time.Second)
		r.wantStatus("draining node node-a for spot-interruption: 0 of 3 pods gone, 118 s left, held by PDB default/web, the webhook says no")
		r.pass(time.Second)
		r.wantStatus("draining node node-a for spot-interruption: 2 of 3 pods gone, 117 s left, held by the webhook says no")
		r.pass(10 * time.Second)
		r.wantStatus("draining node node-a for spot-interruption: 2 of 3 pods gone, 107 s left, held by the webhook says no")
		r.ident.tell("", errors.New("the certificate has expired"))
		r.pass(0)
		r.wantStatus("draining node node-a for spot-interruption: 2 of 3 pods gone, 107 s left, held by the webhook says no" +
			"; waiting for the kubelet's credential: the certificate has expired")
	})
}

func TestTheStatusOfAnEarlierGuardIsNotThatOfTheNext(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.node.toGuard(func(ctx context.Context, g *guard) {
			if slices.Contains(g.wants().Events, "b") {
				time.Sleep(time.Second)
				g.say(drain.Progress{Kind: state.PodsFound, Total: 2, Left: 2})
				return
			}
			g.say(drain.Progress{Kind: state.PodHeld, Pod: "default/web-1", Detail: "default/web", Total: 3, Left: 2})
		})
		r.run()
		stop := r.stopping("a", time.Hour)
		r.announce(stop)
		stop.State = event.Canceled
		r.announce(stop)
		r.announce(stop, r.spot("b", 2*time.Minute))
		r.wantStatus("draining node node-a for spot-interruption, 120 s left")
		r.pass(time.Second)
		r.wantStatus("draining node node-a for spot-interruption: 0 of 2 pods gone, 119 s left")
	})
}

// How many pods there are is of no account where none is to go.
func TestTheStatusOfANodeThatIsOnlyCordonedCountsNoPods(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.node.toGuard(func(_ context.Context, g *guard) {
			g.close()
			g.say(drain.Progress{Kind: state.GoalChanged, Total: 2, Left: 1})
		})
		r.runFor(r.hibernating("a", 2*time.Minute))
		r.wantStatus("node node-a is cordoned for spot-interruption")
	})
}

func TestTheStatusOfOtherWork(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.ident.name = ""
		r.node.toGuard(func(context.Context, *guard) {})
		r.node.toUncordon(func(ctx context.Context) (drain.UncordonResult, error) { return "", wait(ctx) })
		r.run()
		r.announce(r.hibernating("a", 2*time.Minute))
		r.wantStatus("cordoning the node: EC2 will hibernate this spot instance at 00:02:00 UTC on 1 Jan 2000")
		r.ident.tell("node-a", nil)
		r.announce()
		r.pass(30 * time.Second)
		r.wantStatus("uncordoning node node-a: the event was withdrawn")
	})
}

// An API server that refuses the cordon keeps a drain without a hard deadline from its first eviction, for good.
func TestTheStatusSaysWhyTheNodeIsNotAsItIsToBe(t *testing.T) {
	t.Parallel()
	refused := func(context.Context) (drain.UncordonResult, error) { return "", errors.New("forbidden") }
	t.Run("it cannot be cordoned", func(t *testing.T) {
		t.Parallel()
		bubble(t, func(r *rig) {
			r.node.toGuard(forbidden)
			r.runFor(r.stopping("a", time.Hour))
			r.pass(10 * time.Minute)
			r.wantStatus("node node-a is to be drained for scheduled-maintenance, 3000 s left; the last attempt failed: forbidden")
		})
	})
	t.Run("it cannot be cordoned for what wants no more", func(t *testing.T) {
		t.Parallel()
		bubble(t, func(r *rig) {
			r.cfg.Policy[event.RebalanceRecommendation] = policy.Rule{Action: policy.Cordon, WithdrawnAfter: time.Minute}
			r.node.toGuard(forbidden)
			r.runFor(recommended("a"))
			r.wantStatus("cordoning node node-a: EC2 recommends rebalancing: this spot instance is at elevated risk of interruption" +
				"; the last attempt failed: forbidden")
		})
	})
	t.Run("it cannot be uncordoned, and is tried again later", func(t *testing.T) {
		t.Parallel()
		bubble(t, func(r *rig) {
			r.node.toUncordon(refused)
			r.runFor(r.spot("a", 2*time.Minute))
			r.announce()
			r.pass(5*time.Minute + 10*time.Second)
			r.wantStatus("node node-a, cordoned for spot-interruption, is to be uncordoned; the last attempt failed: forbidden")
		})
	})
	t.Run("it cannot be uncordoned, and is being tried again", func(t *testing.T) {
		t.Parallel()
		bubble(t, func(r *rig) {
			r.node.toUncordon(refused)
			r.runFor(r.spot("a", 2*time.Minute))
			r.announce()
			r.pass(31 * time.Second)
			r.node.toUncordon(waiting)
			r.pass(2 * time.Minute)
			r.wantStatus("uncordoning node node-a: the event was withdrawn; the last attempt failed: forbidden")
		})
	})
	t.Run("nobody knows whether its drain is still wanted", func(t *testing.T) {
		t.Parallel()
		bubble(t, func(r *rig) {
			r.cfg.BootID = "boot-2"
			r.record.entries = []state.Entry{{
				Event: terminated("a"), Phase: state.Draining, BootID: "boot-1", ListedIn: "boot-1", FirstSeen: r.start, Changed: r.start,
				ActedFor: r.start, OnNode: true, CordonedAt: r.start, ClosedIn: "boot-1",
			}}
			r.run()
			r.trouble(event.ASGTermination, "status 403")
			if r.node.guards > 0 {
				t.Error("a guard stands")
			}
			r.wantStatus("node node-a is to be drained for asg-termination, once that is confirmed; metadata service unreachable since " +
				r.start.Format("15:04:05"))
		})
	})
}

func TestADrainThatRanOutOfTimeIsNotHiddenByACordonForAnother(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.cfg.Policy[event.RebalanceRecommendation] = policy.Rule{Action: policy.Cordon, WithdrawnAfter: 30 * time.Second}
		r.node.toGuard(func(ctx context.Context, g *guard) {
			g.close()
			g.say(drain.Progress{Kind: state.PodHeld, Pod: "default/web-1", Detail: "default/web", Total: 2, Left: 1})
			for g.next(ctx) {
				g.say(drain.Progress{Kind: state.GoalChanged, Total: 2, Left: 1})
			}
		})
		stop := r.stopping("a", 5*time.Minute)
		r.runFor(stop)
		r.pass(6 * time.Minute)
		r.announce(stop, recommended("b"))
		r.wantStatus("node node-a was not drained in time for scheduled-maintenance; still draining: 1 of 2 pods gone, held by PDB default/web")
	})
}

func wait(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

func TestTheStatusTellsOfAnOutageOfTheWholeMetadataService(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.run()
		r.announce()
		metadata := []event.Kind{event.SpotInterruption, event.RebalanceRecommendation, event.ScheduledMaintenance, event.ASGTermination}
		for _, kind := range metadata[1:] {
			r.trouble(kind, "connection refused")
		}
		const fine = "watching; nothing is announced for node node-a"
		r.wantStatus(fine) // one kind can still be told
		since := time.Now().Format("15:04:05")
		r.trouble(metadata[0], "connection refused")
		r.wantStatus(fine + "; metadata service unreachable since " + since)
		r.pass(time.Hour)
		r.wantStatus(fine + "; metadata service unreachable since " + since)
		r.announce()
		r.wantStatus(fine)
	})
}

func TestTroubleIsSaidOnceAndSoIsItsEnd(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.run()
		for range 5 {
			r.trouble(event.SpotInterruption, "reading 10.0.0.1:40001: connection reset")
			r.pass(time.Minute)
			r.trouble(event.SpotInterruption, "reading 10.0.0.1:40002: connection reset")
		}
		r.trouble(event.SpotInterruption, "no answer in time")
		r.announce()
		r.pass(time.Second)
		for range 5 {
			r.announce()
			r.pass(time.Minute)
		}
		r.wantSaid(systemd.SourceTrouble,
			"warning: cannot read spot-interruption: reading 10.0.0.1:40001: connection reset; keeping last known state",
			"warning: cannot read spot-interruption: no answer in time; keeping last known state")
		r.wantSaid(systemd.SourceRecovered, "info: spot-interruption is readable again after 5m0s")
	})
}

// A document of which a part cannot be read gives a snapshot and trouble at each look.
func TestAFlawInADocumentIsSaidOnce(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.run()
		r.pass(time.Second - 1)
		for range 20 {
			r.source.sink.Snapshot(event.Snapshot{Kind: event.ScheduledMaintenance})
			r.pass(2) // not even a tick in between makes it well
			r.trouble(event.ScheduledMaintenance, "entry 1 has no EventId")
			r.pass(time.Second - 2)
		}
		if said := r.said(systemd.SourceTrouble); len(said) != 1 {
			t.Errorf("what was said is %q", said)
		}
		r.wantSaid(systemd.SourceRecovered)
	})
}

func TestTheCredentialsTroubleIsSaidOnce(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.ident.name, r.ident.err = "", errors.New("there is no kubeconfig")
		r.run()
		for _, step := range []struct {
			name string
			err  error
		}{
			{err: errors.New("there is no kubeconfig")},
			{err: errors.New("expired at 10:00:01")},
			{err: errors.New("expired at 10:00:02")},
			{name: "node-a"},
			{name: "node-a"},
			{name: "node-b"},
		} {
			r.ident.tell(step.name, step.err)
			r.pass(time.Second)
		}
		r.wantSaid(systemd.IdentityWaiting, "warning: waiting for the kubelet's credential: there is no kubeconfig",
			"warning: waiting for the kubelet's credential: expired at 10:00:01")
		r.wantSaid(systemd.IdentityFound, "info: acting for node node-a", "info: acting for node node-b")
	})
}

func TestADryRunNeverSaysThatSomethingWasDone(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.cfg.DryRun = true
		r.node.toGuard(func(ctx context.Context, g *guard) {
			g.close()
			g.did(drain.Result{Cordon: drain.CordonSet, Evicted: 1, Skipped: 2})
			g.say(drain.Progress{Kind: state.PodEvicted, Pod: "default/web-1", Total: 1})
			emptied(ctx, g)
		})
		r.run()
		stop, hibernation := r.stopping("a", time.Hour), r.hibernating("b", time.Minute)
		r.announce(stop)
		r.wantStatus("node node-a is drained for scheduled-maintenance (dry run)")
		r.announce(stop, hibernation)
		stop.State = event.Canceled
		r.announce(stop)
		r.pass(time.Minute)
		for id, want := range map[string][]string{
			systemd.Started:      {"info: watching for interruptions, as a dry run: nothing will be cordoned or evicted"},
			systemd.DrainStarted: {"warning: dry run: not draining the node: EC2 has scheduled instance-stop at 01:00:00 UTC on 1 Jan 2000 (3600 s left)"},
			systemd.PodEvicted:   {"info: dry run: would have evicted default/web-1"},
			systemd.Drained:      {"warning: dry run: the node would have been cordoned and drained of 1 pod, 2 left alone"},
			systemd.Uncordoned:   {"info: dry run: would have uncordoned the node: the event was withdrawn"},
		} {
			r.wantSaid(id, want...)
		}
		for _, said := range r.said(systemd.Cordoned) {
			if !strings.Contains(said, "dry run: would have cordoned the node") {
				t.Errorf("said: %s", said)
			}
		}
	})
}

func TestMessagesCarryTheirFields(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.node.toGuard(func(_ context.Context, g *guard) {
			g.say(drain.Progress{Kind: state.PodGone, Pod: "default/web-1", Total: 1})
		})
		r.run()
		r.announce(r.spot("a", 2*time.Minute))
		for _, e := range r.hook.AllEntries() {
			if e.Data[systemd.FieldMessageID] != systemd.PodGone {
				continue
			}
			for field, want := range map[string]string{
				systemd.FieldEventID: "a", systemd.FieldEventKind: "spot-interruption", systemd.FieldPhase: "draining",
				systemd.FieldNode: "node-a", systemd.FieldPod: "default/web-1",
			} {
				if e.Data[field] != want {
					t.Errorf("%s is %v, want %s", field, e.Data[field], want)
				}
			}
			return
		}
		t.Error("it was not said that the pod is gone")
	})
}

func TestTheLoopFeedsTheWatchdogAlsoDuringADrain(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.cfg.Beat = 100 * time.Millisecond
		r.node.toGuard(stuck)
		r.run()
		r.announce(r.stopping("a", time.Hour))
		r.pass(10 * time.Second)
		r.service.set(func() {
			if r.service.beats != 100 {
				t.Errorf("%d beats in ten seconds, want 100", r.service.beats)
			}
		})
	})
}

func TestTheLoopRestsWhileNothingHappens(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.node.toGuard(stuck)
		r.run()
		r.announce(r.stopping("a", time.Hour), r.rebooting("b", 3*time.Hour))
		r.announce(r.stopping("a", time.Hour)) // b is missing
		before := 0
		r.service.set(func() { before = r.service.statuses })
		r.pass(time.Minute)
		r.service.set(func() {
			if turns := r.service.statuses - before; turns > 65 {
				t.Errorf("%d turns in a minute, want about one a second", turns)
			}
		})
	})
}
