package agent_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/drain/apitest"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/systemd"
)

// pod is what is told of default/web.
func pod(what state.TransitionKind, detail string) drain.Progress {
	return drain.Progress{Kind: what, Pod: "default/web", Detail: detail, Total: 2, Left: 1}
}

func TestWhatAGuardTellsIsSaid(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		told drain.Progress
		id   string
		want []string
	}{
		"pods are found":        {drain.Progress{Kind: state.PodsFound, Total: 2, Left: 2}, systemd.DrainStarted, []string{begun, "info: 2 pods to evict"}},
		"none is":               {drain.Progress{Kind: state.PodsFound}, systemd.DrainStarted, []string{begun, "info: 0 pods to evict"}},
		"a pod is deleted":      {pod(state.PodDeleted, ""), systemd.PodDeleted, []string{"warning: deleted default/web, which could not be evicted in time"}},
		"a pod is overdue":      {pod(state.PodOverdue, "still ending"), systemd.PodHeld, []string{"warning: default/web is still running after its grace period; critical pods no longer wait for it"}},
		"a pod is refused":      {pod(state.PodRefused, "no"), systemd.PodHeld, []string{"warning: default/web is not evicted: no; retrying"}},
		"pods cannot be listed": {drain.Progress{Kind: state.PodRefused, Detail: "the pods cannot be listed"}, systemd.PodHeld, []string{"warning: the pods cannot be listed"}},
		"evictions are delayed": {drain.Progress{Kind: state.EvictionsDelayed, Detail: "30s"}, systemd.DrainStarted, []string{begun, "info: delaying evictions for 30s"}},
		"there is no Node":      {drain.Progress{Kind: state.NodeMissing, Detail: "it was deleted"}, systemd.DrainStarted, []string{begun, "info: no Node object: it was deleted; waiting"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(r *rig) {
				r.node.toGuard(func(_ context.Context, g *guard) { g.say(row.told) })
				r.run()
				r.announce(r.spot("a", 2*time.Minute))
				r.wantSaid(row.id, row.want...)
			})
		})
	}
}

const begun = "warning: draining the node: EC2 will terminate this spot instance at 00:02:00 UTC on 1 Jan 2000 (120 s left)"

// What holds a pod does so until the pod is evicted, deleted or gone, or need not go any more.
func TestTheStatusNamesWhatHoldsPodsForAsLongAsItDoes(t *testing.T) {
	t.Parallel()
	for _, ends := range []state.TransitionKind{state.PodEvicted, state.PodDeleted, state.PodGone, state.PodSpared} {
		for _, row := range []struct {
			holds drain.Progress
			by    string
		}{
			{pod(state.PodHeld, "web"), "PDB web"}, {pod(state.PodRefused, "PDB web"), "PDB web"}, {pod(state.PodOverdue, "PDB web"), "PDB web"},
		} {
			t.Run(string(row.holds.Kind)+" until "+string(ends), func(t *testing.T) {
				t.Parallel()
				bubble(t, func(r *rig) {
					r.node.toGuard(func(_ context.Context, g *guard) {
						g.say(row.holds)
						time.Sleep(time.Second)
						g.say(pod(ends, ""))
					})
					r.runFor(r.spot("a", 2*time.Minute))
					r.wantStatus("draining node node-a for spot-interruption: 1 of 2 pods gone, 120 s left, held by " + row.by)
					r.pass(time.Second)
					r.wantStatus("draining node node-a for spot-interruption: 1 of 2 pods gone, 119 s left")
				})
			})
		}
	}
}

// On call, one would loosen the wrong budget.
func TestABudgetOfAPodThatPeopleLetStayIsNotNamedForOthers(t *testing.T) {
	withNode(t, func(r *rig, s *apitest.Server) {
		s.AddPod(web("web", 30), apitest.Never)
		s.Always("evict default/web", apitest.HeldBy("web-budget", 0))
		r.run()
		stop := r.stopping("a", 24*time.Hour)
		r.announce(stop)
		r.pass(30 * time.Second)
		s.ChangePod("default/web", func(p *corev1.Pod) {
			p.Annotations = map[string]string{drain.EvictAnnotation: drain.Never}
		})
		r.pass(time.Minute)
		if e := r.entry("a"); e.Phase != state.Drained {
			t.Fatalf("the entry is %+v", e)
		}
		s.AddPod(web("api", 60), apitest.Never)
		r.announce(stop, r.spot("b", 4*time.Minute))
		r.pass(5 * time.Second)
		if said := r.service.sentence(); strings.Contains(said, "web-budget") {
			t.Errorf("nothing that has to go is held, and the status is %q", said)
		}
	})
}

func TestThatTheNodeIsCordonedIsSaidOnce(t *testing.T) {
	t.Parallel()
	const cordoned = "warning: cordoned the node: EC2 will hibernate this spot instance at 00:02:00 UTC on 1 Jan 2000"
	t.Run("in a drain, when it is", func(t *testing.T) {
		t.Parallel()
		bubble(t, func(r *rig) {
			r.node.toGuard(func(ctx context.Context, g *guard) {
				time.Sleep(time.Second)
				stuck(ctx, g)
			})
			r.runFor(r.spot("a", 2*time.Minute))
			r.pass(time.Second)
			r.wantSaid(systemd.Cordoned, "warning: cordoned the node after 1s")
		})
	})
	t.Run("for what is only cordoned for, with the reason", func(t *testing.T) {
		t.Parallel()
		bubble(t, func(r *rig) {
			r.runFor(r.hibernating("a", 2*time.Minute))
			r.wantSaid(systemd.Cordoned, cordoned)
		})
	})
	t.Run("not if somebody else had", func(t *testing.T) {
		t.Parallel()
		bubble(t, func(r *rig) {
			r.node.toGuard(func(_ context.Context, g *guard) { g.closeAs(state.NodeFoundClosed, drain.CordonForeign) })
			r.runFor(r.hibernating("a", 2*time.Minute))
			r.wantSaid(systemd.Cordoned)
		})
	})
	for how, want := range map[drain.CordonResult][]string{
		drain.CordonSet: {"warning: cordoned the node after 0s"}, drain.CordonOurs: nil,
	} {
		t.Run("beside what is done already, if it was anew: "+string(how), func(t *testing.T) {
			t.Parallel()
			bubble(t, func(r *rig) {
				r.runFor(r.spot("a", 2*time.Minute))
				r.end(nil)
				r.hook.Reset()
				r.node.toGuard(func(_ context.Context, g *guard) { g.closeAs(state.NodeClosed, how) })
				r.run()
				r.wantSaid(systemd.Cordoned, want...)
			})
		})
	}
}

// On call, one would conclude that somebody had uncordoned the node meanwhile.
func TestACordonThatWasThereBeforeARestartIsNotSaidToBeSetAnew(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		began := r.start.Add(-30 * time.Second).UTC()
		r.record.entries = []state.Entry{{
			Event: r.spot("a", 90*time.Second), Phase: state.Draining, BootID: "boot-1", ListedIn: "boot-1", FirstSeen: began, Changed: began,
			ActedFor: began, OnNode: true, CordonedAt: began, ClosedIn: "boot-1",
		}}
		r.node.toGuard(func(_ context.Context, g *guard) {
			g.closeAs(state.NodeClosed, drain.CordonOurs)
			g.say(drain.Progress{Kind: state.PodsFound, Total: 3, Left: 3})
		})
		r.run()
		r.announce(r.spot("a", 90*time.Second))
		if said := r.said(systemd.Cordoned); len(said) > 0 {
			t.Errorf("the journal says %q", said)
		}
	})
}

// A guard that stands beside what is done has nothing to say, unless something comes.
func TestPodsThatComeToADrainedNodeAreSaid(t *testing.T) {
	t.Parallel()
	for total, want := range map[int][]string{0: nil, 1: {"info: 1 pod to evict"}} {
		bubble(t, func(r *rig) {
			r.runFor(r.spot("a", 2*time.Minute))
			r.end(nil)
			r.hook.Reset()
			r.node.toGuard(func(_ context.Context, g *guard) {
				g.closeAs(state.NodeClosed, drain.CordonOurs)
				g.say(drain.Progress{Kind: state.PodsFound, Total: total, Left: total})
			})
			r.run()
			r.wantSaid(systemd.DrainStarted, want...)
		})
	}
}

func TestWhatLoadBalancersAreWaitedForIsSaidAndShown(t *testing.T) {
	t.Parallel()
	const left = "2 targets are still draining in tg/web"
	for detail, want := range map[string]string{
		"":                    "info: load balancers have deregistered the node",
		"nobody may be asked": "warning: not waiting for load balancers: nobody may be asked",
	} {
		bubble(t, func(r *rig) {
			r.node.toGuard(func(ctx context.Context, g *guard) {
				g.close()
				g.say(drain.Progress{Kind: state.TargetsLeft, Detail: left})
				time.Sleep(10 * time.Second)
				g.say(drain.Progress{Kind: state.TargetsOut, Detail: detail})
				stuck(ctx, g)
			})
			r.runFor(r.spot("a", 2*time.Minute))
			r.pass(5 * time.Second)
			r.wantStatus("draining node node-a for spot-interruption, 115 s left; " + left)
			r.pass(10 * time.Second)
			if status := r.service.sentence(); strings.Contains(status, "target") {
				t.Errorf("the status is %q", status)
			}
			r.wantSaid(systemd.DrainStarted, "warning: draining the node: EC2 will terminate this spot instance at 00:02:00 UTC on 1 Jan 2000 (120 s left)",
				"info: waiting for load balancers: "+left, want)
		})
	}
}

func TestWhatIsWrongWithTheScriptsIsSaid(t *testing.T) {
	bubble(t, func(r *rig) {
		r.node.toGuard(func(ctx context.Context, g *guard) {
			g.close()
			g.say(drain.Progress{Kind: state.ScriptsFailed, Detail: "failed: save.service"})
			stuck(ctx, g)
		})
		r.runFor(r.spot("a", 2*time.Minute))
		r.pass(time.Second)
		r.wantSaid(systemd.DrainStarted, "warning: draining the node: EC2 will terminate this spot instance at 00:02:00 UTC on 1 Jan 2000 (120 s left)",
			"warning: the units that are to run before the drain: failed: save.service")
	})
}

func TestHowADrainEndedIsSaid(t *testing.T) {
	t.Parallel()
	t.Run("of a node whose pods are to be left alone", func(t *testing.T) {
		t.Parallel()
		bubble(t, func(r *rig) {
			r.node.toGuard(func(_ context.Context, g *guard) {
				g.close()
				g.limit(true)
			})
			r.runFor(r.spot("a", 2*time.Minute))
			r.wantSaid(systemd.DrainLeft, "warning: the node is left alone because of its annotation "+drain.ActionAnnotation+": its pods are not evicted for spot-interruption")
		})
	})
	for name, row := range map[string]struct {
		result drain.Result
		want   string
	}{
		"that found no pods in time":  {drain.Result{Cordon: drain.CordonSet}, "0 pods evicted, 0 deleted, left: not known"},
		"that went on without cordon": {drain.Result{Deleted: 1, Left: []string{"default/web"}}, "0 pods evicted, 1 deleted, left: default/web"},
		"that could do nothing":       {drain.Result{}, "the node could not be cordoned; remaining pods unknown"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(r *rig) {
				r.node.toGuard(func(_ context.Context, g *guard) { g.did(row.result) })
				r.runFor(r.spot("a", 2*time.Minute))
				r.pass(2 * time.Minute)
				r.wantSaid(systemd.DrainIncomplete, "error: the drain ran out of time: "+row.want)
			})
		})
	}
}

// The node is empty only after the deadline, or there is no Node any more.
func TestHowADrainEndedIsSaidAsItWas(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		result drain.Result
		after  time.Duration
		want   string
	}{
		"after the deadline": {
			drain.Result{Cordon: drain.CordonSet, Evicted: 1}, 150 * time.Second,
			"drained: 1 pod evicted, 0 deleted, 0 left in place; 30 s after the deadline",
		},
		"at the deadline": {
			drain.Result{Cordon: drain.CordonSet, Evicted: 1}, 2 * time.Minute,
			"drained: 1 pod evicted, 0 deleted, 0 left in place; 0 s before the deadline",
		},
		"when the Node was deleted after as many evictions as deletions": {
			drain.Result{NodeGone: true, Evicted: 1, Deleted: 1}, time.Minute,
			"drained: 1 pod evicted, 1 deleted, 0 left in place; 60 s before the deadline; the Node no longer exists",
		},
		"when the Node was deleted meanwhile": {
			drain.Result{NodeGone: true, Evicted: 3}, time.Minute,
			"drained: 3 pods evicted, 0 deleted, 0 left in place; 60 s before the deadline; the Node no longer exists",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(r *rig) {
				r.node.toGuard(func(_ context.Context, g *guard) {
					g.close()
					time.Sleep(row.after)
					g.did(row.result)
					g.drain()
				})
				r.runFor(r.spot("a", 2*time.Minute))
				r.pass(row.after)
				r.wantSaid(systemd.Drained, "warning: "+row.want)
			})
		})
	}
}

func TestANodeThatCannotBeCordonedIsSaid(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.cfg.Policy[event.RebalanceRecommendation] = policy.Rule{Action: policy.Cordon, WithdrawnAfter: time.Minute}
		r.node.toGuard(forbidden)
		r.runFor(recommended("a"))
		r.wantSaid(systemd.DrainIncomplete, "error: the node could not be cordoned; retrying")
	})
}

// The drain goes on for long after that.
func TestWhatKeptTheNodeOpenIsForgottenWhenItIsClosed(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.node.toGuard(func(ctx context.Context, g *guard) {
			limited, stop := context.WithTimeout(ctx, time.Minute)
			defer stop()
			forbidden(limited, g)
			stuck(ctx, g)
		})
		r.runFor(r.stopping("a", time.Hour))
		r.pass(time.Minute - 1)
		if e := r.entry("a"); e.Error != "forbidden" || e.Failures != 5 {
			t.Errorf("the entry is %+v", e)
		}
		r.pass(1)
		if e := r.entry("a"); e.Phase != state.Draining || e.Error != "" || e.Failures != 0 {
			t.Errorf("the entry is %+v", e)
		}
	})
}

func TestAFailedUncordonIsSaidAndCountedForWhatIsBeingUndone(t *testing.T) {
	t.Parallel()
	listened(t, func(r *rig, heard *ear) {
		r.node.toUncordon(func(context.Context) (drain.UncordonResult, error) { return "", errors.New("forbidden") })
		r.run()
		a, b, other := r.stopping("a", time.Hour), r.stopping("b", 2*time.Hour), r.rebooting("c", 3*time.Hour)
		r.announce(a, b, other)
		heard.take()
		a.State, b.State = event.Canceled, event.Canceled
		r.announce(a, b, other)
		r.wantSaid(systemd.DrainIncomplete, "error: the node could not be uncordoned; retrying")
		heard.want(t, "begun a uncordon after 0s", "failed a uncordon after 0s: forbidden")
		for id, want := range map[string]int{"a": 1, "b": 1, "c": 0} {
			if e := r.entry(id); e.Failures != want {
				t.Errorf("the entry is %+v, want %d failures", e, want)
			}
		}
	})
}

func TestACordonThatIsTakenOverIsSaid(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.node.toClaim(func(context.Context) (drain.Claim, bool, error) {
			if time.Since(r.start) < 3*time.Second {
				return drain.Claim{}, false, errors.New("connection refused")
			}
			return drain.Claim{Event: "a", Kind: string(event.SpotInterruption), BootID: "boot-1", Since: r.start}, true, nil
		})
		r.run()
		r.pass(5*time.Second - 1)
		r.wantSaid(systemd.EventSeen)
		r.pass(1)
		r.wantSaid(systemd.EventSeen, "warning: adopting our cordon, missing from the record")
	})
}

func TestTroubleThatDiffersInItsNumbersOnlyIsTheSame(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.run()
		for _, text := range []string{"reading 10.0.0.1:9999: reset", "reading 10.0.0.1:10000: reset"} {
			r.trouble(event.SpotInterruption, text)
		}
		r.wantSaid(systemd.SourceTrouble, "warning: cannot read spot-interruption: reading 10.0.0.1:9999: reset; keeping last known state")
	})
}

func TestReasonsThatTakeTurnsAreSaidOnceEach(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.run()
		for range 3 {
			r.trouble(event.SpotInterruption, "no token")
			r.trouble(event.SpotInterruption, "no answer")
		}
		r.wantSaid(systemd.SourceTrouble,
			"warning: cannot read spot-interruption: no token; keeping last known state",
			"warning: cannot read spot-interruption: no answer; keeping last known state")
	})
}

// Reasons may have no end of forms: the last sixteen are remembered.
func TestAReasonIsSaidAgainAfterSixteenOthers(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.run()
		var want []string
		hear := func(said bool, reasons ...string) {
			t.Helper()
			for _, reason := range reasons {
				r.trouble(event.SpotInterruption, "reason "+reason)
				if said {
					want = append(want, "warning: cannot read spot-interruption: reason "+reason+"; keeping last known state")
				}
			}
			r.wantSaid(systemd.SourceTrouble, want...)
		}
		hear(true, strings.Split("abcdefghijklmnop", "")...)
		hear(false, "a", "p")
		hear(true, "q")
		hear(false, "b")
		hear(true, "a")
	})
}

func TestTroubleIsOverAfterASecondWithout(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.run()
		r.trouble(event.SpotInterruption, "connection refused")
		r.pass(time.Minute + time.Second)
		r.announce()
		r.pass(time.Second - 1)
		r.wantSaid(systemd.SourceRecovered)
		r.pass(1)
		r.wantSaid(systemd.SourceRecovered, "info: spot-interruption is readable again after 1m1s")
	})
}

func TestAnOutageIsAsOldAsTheFirstTroubleOfTheMetadataService(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.run()
		r.announce()
		for _, kind := range []event.Kind{
			event.Shutdown, event.ScheduledMaintenance, event.SpotInterruption, event.RebalanceRecommendation, event.ASGTermination,
		} {
			r.trouble(kind, "connection refused")
			r.pass(time.Minute)
		}
		r.wantStatus("watching; nothing is announced for node node-a; metadata service unreachable since 00:01:00")
	})
}

// Some kinds may not be looked for at all.
func TestAnOutageIsToldOfTheKindsThatAreLookedFor(t *testing.T) {
	t.Parallel()
	for _, kind := range event.PolledKinds() {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			bubble(t, func(r *rig) {
				r.run()
				r.trouble(kind, "connection refused")
				r.wantStatus("watching; nothing is announced for node node-a; metadata service unreachable since 00:00:00")
			})
		})
	}
}

func TestThatPeopleHaveOpenedTheNodeIsSaidOnce(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.node.toGuard(func(_ context.Context, g *guard) {
			g.close()
			for range 2 {
				g.becomes(func(s *drain.State) { s.Closed = false }, drain.Progress{Kind: state.NodeReopened, Events: g.wants().Events})
				time.Sleep(time.Second)
			}
		})
		r.runFor(r.spot("a", 2*time.Minute))
		const opened = "info: someone uncordoned the node during this event; pods scheduled since then are left alone"
		r.wantSaid(systemd.CordonForeign, opened)
		r.pass(2 * time.Second)
		r.wantSaid(systemd.CordonForeign, opened)
	})
}

// On an instance that is no spot instance, spot notices are not looked for: the only word about them is that of the start.
func TestStatus_SaysThatNoLookSucceedsAnyMore(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.run()
		r.announce()
		r.pass(time.Hour)
		for _, kind := range []event.Kind{event.ScheduledMaintenance, event.RebalanceRecommendation, event.ASGTermination} {
			r.trouble(kind, "dial tcp 169.254.169.254:80: socket: too many open files")
		}
		r.wantStatus("watching; nothing is announced for node node-a; metadata service unreachable since 01:00:00")
		r.announce()
		r.wantStatus("watching; nothing is announced for node node-a")
	})
}
