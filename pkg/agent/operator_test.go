package agent_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/drain/apitest"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/systemd"
)

func TestUncordon_AFailedOneIsRepeated(t *testing.T) {
	bubble(t, func(r *rig) {
		r.node.toUncordon(refused)
		a, b, other := r.stopping("a", time.Hour), r.stopping("b", 2*time.Hour), r.rebooting("c", 3*time.Hour)
		r.runFor(a, b, other)
		r.heard.take()
		r.announce(canceled(a), canceled(b), other)
		r.tape.take()
		r.wantSaid(systemd.DrainIncomplete, "error: the node could not be uncordoned; retrying")
		r.wantHeard("begun a uncordon after 0s", "failed a uncordon after 0s: forbidden")
		for id, want := range map[string]int{"a": 1, "b": 1, "c": 0} {
			if e := r.entry(id); e.Failures != want {
				t.Errorf("the entry is %+v, want %d failures", e, want)
			}
		}
		for _, pause := range []time.Duration{2 * time.Second, 4 * time.Second, 8 * time.Second, 16 * time.Second, 32 * time.Second, time.Minute, time.Minute} {
			r.pass(pause - 1)
			r.wantTape()
			r.pass(1)
			r.wantTape("uncordon", "uncordon ended")
		}
		r.node.toUncordon(func(context.Context) (drain.UncordonResult, error) { return drain.UncordonNotOurs, nil })
		r.pass(time.Minute)
		r.wantTape("uncordon", "uncordon ended", "put a closed canceled", "put b closed canceled")
		r.wantSaid(systemd.Uncordoned, "info: nth's cordon is already gone; nothing to uncordon")
	})
}

func TestUncordon_AForeignCordonIsLeft(t *testing.T) {
	each(t, map[string]string{"found by a drain": "terminate", "found by a cordon": "hibernate"}, func(r *rig, code string) {
		r.node.toGuard(func(ctx context.Context, g *guard) {
			g.closeAs(state.NodeFoundClosed, drain.CordonForeign)
			emptied(ctx, g)
		})
		ev := r.spot("a", 2*time.Minute)
		ev.Code = code
		r.runFor(ev)
		r.wantSaid(systemd.CordonForeign, "info: the node was already cordoned by someone else; nth will not uncordon it")
		r.wantSaid(systemd.Cordoned)
		e := r.entry("a")
		if e.OnNode {
			r.t.Error("the record takes the cordon for nth's")
		}
		r.announce()
		r.pass(time.Minute)
		r.wantTape("put a "+string(e.Phase)+", missing", "put a closed withdrawn", "guard ended")
	})
}

// The claim is read once more after a guard has ended that had found the node closed. A Node that registers later has none.
func TestUncordon_TheClaimIsReadAgainAfterAGuard(t *testing.T) {
	type row struct {
		err  error
		want int
	}
	each(t, map[string]row{
		"no Node":   {apierrors.NewNotFound(corev1.Resource("nodes"), "node-a"), 1},
		"no answer": {errors.New("connection refused"), 13},
	}, func(r *rig, row row) {
		r.node.toGuard(func(ctx context.Context, g *guard) {
			g.closeAs(state.NodeFoundClosed, drain.CordonForeign)
			<-ctx.Done()
		})
		r.runFor(r.stopping("a", time.Hour))
		reads := 0
		r.node.toClaim(func(context.Context) (drain.Claim, bool, error) { reads++; return drain.Claim{}, false, row.err })
		r.set(event.ScheduledMaintenance, ignores)
		r.pass(time.Minute + time.Second)
		if reads != row.want {
			r.t.Errorf("the claim was read %d times in a minute, want %d", reads, row.want)
		}
	})
}

// slowly has a request carried out after a while, also if the client is gone by that time, as with an admission webhook.
func slowly(http.ResponseWriter, *http.Request) bool {
	time.Sleep(3 * time.Second)
	return false
}

// The node was closed by nth-queue, which opens it. nth closes it then, and in that moment the event is over: the answer to the patch
// comes when the client is gone. An uncordon of before says nothing of that cordon.
func TestUncordon_ACordonOfTheLastMoment(t *testing.T) {
	each(t, map[string]bool{"on a node that was never opened": false, "on one that was": true}, func(r *rig, opened bool) {
		s := r.serve(drain.Options{})
		r.run()
		if opened {
			r.look(r.spot("first", time.Hour))
			r.announce()
			r.pass(time.Minute)
			r.wantUnschedulable(s, false)
		}
		hold(s, 30)
		s.ChangeNode(func(n *corev1.Node) {
			n.Spec.Unschedulable = true
			n.Annotations[drain.CordonAnnotation] = `{"writer":"nth-queue","event":"q","kind":"asg-termination"}`
		}, drain.Queue)
		r.look(r.stopping("a", 24*time.Hour))
		if e := r.wantPhase("a", state.Draining); e.OnNode {
			r.t.Fatalf("the entry is %+v", e)
		}
		s.Answer("patch node", slowly)
		before := len(s.Requests("patch node"))
		s.ChangeNode(func(n *corev1.Node) {
			n.Spec.Unschedulable = false
			delete(n.Annotations, drain.CordonAnnotation)
		}, drain.Queue)
		for len(s.Requests("patch node")) == before {
			r.pass(time.Second)
		}
		r.set(event.ScheduledMaintenance, ignores)
		r.pass(time.Minute)
		r.wantUnschedulable(s, false)
	})
}

// An uncordon is called back halfway, since its event is back, and the API server carries it out all the same. Or the cordon is not
// nth's, and only the label on the Node is taken back. Neither was an operator's wish.
func TestUncordon_CalledBackHalfwayIsNoReopening(t *testing.T) {
	each(t, map[string]bool{"with nth's cordon": false, "with a foreign one": true}, func(r *rig, foreign bool) {
		s := r.serve(drain.Options{ExcludeFromLoadBalancers: foreign})
		hold(s, 30)
		if foreign {
			s.CordonAs("kubectl")
		}
		r.run()
		a := r.spot("a", time.Hour)
		r.look(a)
		s.Answer("patch node", slowly)
		r.announce()
		r.pass(31 * time.Second)
		r.announce(a)
		r.pass(time.Minute)
		r.wantUnschedulable(s, true)
		r.wantReopened()
		r.wantPhase("a", state.Draining)
	})
}

// An operator who uncordons the node wants it open for all events that it was closed for.
func TestReopened_HoldsUntilAnotherEventComes(t *testing.T) {
	bubble(t, func(r *rig) {
		r.node.toGuard(func(ctx context.Context, g *guard) {
			g.close()
			rest(ctx, 10*time.Second)
			g.open()
			if rest(ctx, 10*time.Second) {
				emptied(ctx, g)
			}
		})
		stop, hibernation := r.stopping("a", time.Hour), r.hibernating("b", 30*time.Minute)
		r.runFor(stop, hibernation)
		r.pass(10 * time.Second)
		r.wantTape("put b cordoned, reopened", "put a draining, reopened", "adjust to a: drain, soft in 59m50s, reopened")
		r.pass(5 * time.Second)
		r.restart()
		r.wantTape("guard for a: drain, soft in 59m45s, reopened")
		r.announce(stop, hibernation)
		r.pass(20 * time.Second)
		r.wantTape("put a drained", "guard ended")
		r.wantSaid(systemd.Uncordoned)
		r.announce(stop, hibernation, r.spot("c", 2*time.Minute))
		r.wantTape("put c seen", "put c draining", "guard for c: drain, hard in 1m25s")
	})
}

func TestReopened_IsRecordedAndLoggedOnce(t *testing.T) {
	each(t, map[string]struct{ code, then string }{
		"of a drain":  {"terminate", "pods from before are still evicted, later ones stay"},
		"of a cordon": {"hibernate", "nth leaves it open"},
	}, func(r *rig, row struct{ code, then string }) {
		r.node.toGuard(func(_ context.Context, g *guard) {
			g.close()
			for range 2 {
				g.open()
				time.Sleep(time.Second)
			}
		})
		spot := r.spot("a", 2*time.Minute)
		spot.Code = row.code
		r.runFor(spot)
		opened := "info: someone uncordoned the node during this event; " + row.then
		r.wantSaid(systemd.CordonLifted, opened)
		before, _ := r.record.counts()
		r.pass(2 * time.Second)
		r.wantSaid(systemd.CordonLifted, opened)
		if after, _ := r.record.counts(); after != before {
			r.t.Errorf("the record was written %d times more", after-before)
		}
	})
}

// An event joins while the report is on its way.
func TestReopened_NotForAnEventThatTheGuardDidNotHave(t *testing.T) {
	bubble(t, func(r *rig) {
		r.node.toGuard(func(_ context.Context, g *guard) {
			g.close()
			old := g.wants()
			<-g.adjusted
			g.report(drain.Progress{Kind: state.NodeReopened, Generation: g.wants().Generation, Claim: old.Claim})
		})
		stop := r.stopping("a", time.Hour)
		r.runFor(stop)
		r.announce(stop, r.spot("b", 2*time.Minute))
		r.pass(time.Second)
		r.wantTape("put b seen", "put b draining", "adjust to b, a: drain, hard in 2m0s, soft in 1h0m0s", "put a draining, reopened")
	})
}

// slow is a listener that takes a while when the step for b begins.
type slow struct{}

func (slow) OnTransition(t state.Transition) {
	if t.Kind == state.Begun && t.Entry.Event.ID == "b" {
		time.Sleep(10 * time.Second)
	}
}

// An event joins just after an uncordon, and the loop is slow: the guard has already found the node empty but for a pod that came since.
func TestReopened_IsNoDrainForAnEventThatJoins(t *testing.T) {
	withServer(t, func(r *rig, s *apitest.Server) {
		r.cfg.Listeners = append(r.cfg.Listeners, slow{})
		r.run()
		a, b := r.stopping("a", 14*24*time.Hour), r.stopping("b", 7*24*time.Hour)
		r.look(a)
		s.UncordonAs("kubectl")
		s.AddPod(web("new", 5), 0)
		r.announce(a, b)
		r.pass(time.Minute)
		r.wantReopened("a")
		r.wantOutcomes("a after 0s", "a drained after 1s", "b after 20s", "b drained after 21s")
	})
}

// The histories that follow have found mistakes; a random one needs thousands of tries for each of them. In all of them EC2 is to
// stop the machine in weeks, a pod is held by a budget, and an operator uncordons the node with kubectl.

// history is a rig whose drain for a has run for ten seconds, with b to come.
type history struct {
	*rig
	s    *apitest.Server
	a, b event.Event
}

func histories(t *testing.T, rows map[string]func(h *history)) {
	t.Helper()
	each(t, rows, func(r *rig, row func(h *history)) {
		h := &history{rig: r, s: r.serve(drain.Options{Margin: 2 * time.Second}), a: r.stopping("a", 14*24*time.Hour), b: r.stopping("b", 7*24*time.Hour)}
		hold(h.s, 30)
		r.run()
		r.look(h.a)
		r.wantUnschedulable(h.s, true)
		row(h)
	})
}

// uncordon has an operator uncordon the node.
func (h *history) uncordon() {
	h.s.UncordonAs("kubectl")
	h.pass(10 * time.Second)
}

// wantHeld expects that the node is closed or open, and for which events an operator has opened it.
func (h *history) wantHeld(unschedulable bool, reopened ...string) {
	h.t.Helper()
	h.wantUnschedulable(h.s, unschedulable)
	h.wantReopened(reopened...)
}

func TestReopened_OutlivesARestart(t *testing.T) {
	histories(t, map[string]func(h *history){
		"during a drain, until another event comes": func(h *history) {
			h.uncordon()
			h.wantHeld(false, "a")
			h.restart()
			h.look(h.a)
			h.wantHeld(false, "a")
			h.look(h.a, h.spot("s", 4*time.Minute))
			h.wantHeld(true, "a")
		},
		"while nth is stopped": func(h *history) {
			h.restart(func() { h.s.UncordonAs("kubectl") })
			h.look(h.a)
			h.wantHeld(false, "a")
		},
		"while nth is stopped, for two events": func(h *history) {
			h.look(h.a, h.b)
			h.restart(func() { h.s.UncordonAs("kubectl") })
			h.look(h.a, h.b)
			h.wantHeld(false, "a", "b")
		},
		"while nth is stopped and the node is opted out": func(h *history) {
			h.restart(func() {
				h.s.ChangeNode(func(n *corev1.Node) { n.Annotations[drain.ActionAnnotation] = drain.LeaveNode }, "kubectl")
				h.s.UncordonAs("kubectl")
			})
			h.look(h.a)
			h.s.ChangeNode(func(n *corev1.Node) { delete(n.Annotations, drain.ActionAnnotation) }, "kubectl")
			h.pass(time.Minute)
			h.wantHeld(false, "a")
		},
		"also if another event comes before the Node is read": func(h *history) {
			h.restart(func() {
				h.s.UncordonAs("kubectl")
				h.s.GoAway()
			})
			h.announce(h.a, h.b)
			h.s.ComeBack()
			h.pass(10 * time.Second)
			h.wantHeld(true, "a")
			h.look(h.a, canceled(h.b))
			h.wantHeld(false, "a")
		},
	})
}

func TestReopened_EndsForAnEventThatBeginsAgain(t *testing.T) {
	histories(t, map[string]func(h *history){
		"it comes back after it": func(h *history) {
			h.set(event.ScheduledMaintenance, func(rule *policy.Rule) { rule.WithdrawnAfter = time.Minute })
			h.look(h.a, h.b)
			h.announce(h.b)
			h.pass(2 * time.Minute)
			h.wantPhase("a", state.Closed)
			h.uncordon()
			h.wantHeld(false, "b")
			h.look(h.a, h.b)
			h.wantHeld(true, "b")
		},
		"it is moved to after it": func(h *history) {
			h.look(canceled(h.a))
			soon := h.rebooting("c", 10*time.Minute)
			h.look(soon)
			h.look(soon, h.b)
			h.look(h.rebooting("c", 40*time.Minute), h.b)
			h.wantPhase("c", state.Seen)
			h.uncordon()
			h.wantHeld(false, "b")
			h.pass(30 * time.Minute)
			h.wantHeld(true, "b")
		},
		"it is put off, and due again, before a restart": func(h *history) {
			h.look(canceled(h.a))
			soon := h.rebooting("c", 10*time.Minute)
			h.look(soon)
			h.uncordon()
			h.look(soon, h.b)
			h.wantHeld(true, "c")
			h.look(h.rebooting("c", 5*time.Hour), h.b)
			h.look(soon, h.b)
			h.restart()
			h.look(soon, h.b)
			h.look(soon, canceled(h.b))
			h.wantHeld(true)
		},
		"another Node registers": func(h *history) {
			h.uncordon()
			h.wantHeld(false, "a")
			h.s.RegisterNode()
			h.pass(10 * time.Second)
			h.wantHeld(true)
			h.announce(canceled(h.a))
			h.pass(5 * time.Minute)
			h.wantHeld(false)
		},
	})
}

func TestReopened_WithAnotherEventThatClosesTheNode(t *testing.T) {
	histories(t, map[string]func(h *history){
		"which is canceled while the drain continues": func(h *history) {
			h.uncordon()
			h.look(h.a, h.b)
			h.wantHeld(true, "a")
			h.look(h.a, canceled(h.b))
			h.wantHeld(false, "a")
			h.wantPhase("a", state.Draining)
		},
		"which is canceled after a reboot, before the node is Ready": func(h *history) {
			h.uncordon()
			h.look(h.a, h.b)
			h.restart(func() { h.cfg.BootID = "boot-2" })
			h.look(h.a, h.b)
			evicts := func(d time.Duration) {
				h.t.Helper()
				before := len(h.s.Requests("evict"))
				if h.pass(d); len(h.s.Requests("evict")) == before {
					h.t.Errorf("no eviction was tried in %s", d)
				}
			}
			h.look(h.a, canceled(h.b))
			evicts(5 * time.Minute)
			h.s.SetBootID("boot-2")
			h.pass(time.Minute)
			h.wantHeld(false, "a")
			h.wantPhase("b", state.Closed)
			evicts(time.Minute)
		},
		"which comes while the uncordon is being read": func(h *history) {
			begun := make(chan struct{})
			h.s.Answer("get node", func(w http.ResponseWriter, _ *http.Request) bool {
				h.s.UncordonAs("kubectl")
				seen := h.s.CurrentNode()
				close(begun)
				time.Sleep(time.Second)
				w.Header().Set("Content-Type", "application/json")
				return json.NewEncoder(w).Encode(seen) == nil
			})
			<-begun
			h.look(h.a, h.b)
			h.wantHeld(true, "a")
			h.look(h.a, canceled(h.b))
			h.wantHeld(false, "a")
		},
		"which stays while another Node registers": func(h *history) {
			h.uncordon()
			h.look(h.a, h.b)
			h.wantHeld(true, "a")
			h.s.RegisterNode()
			h.pass(time.Minute)
			h.look(h.a, canceled(h.b))
			h.wantHeld(true)
		},
	})
}

// An operator has uncordoned the node for the event that drains it. A pod that came since concerns only an event that drains the node, too.
func TestReopened_WithAnotherEventThatOnlyCordons(t *testing.T) {
	rows := map[string]func(h *history){
		"nothing more": func(h *history) { h.wantHeld(true, "a") },
		"it is uncordoned for that, too": func(h *history) {
			h.uncordon()
			h.wantHeld(false, "a", "r")
		},
		"it is uncordoned for that, too, while nth is stopped": func(h *history) {
			h.rule(event.RebalanceRecommendation, cordons)
			h.restart(func() { h.s.UncordonAs("kubectl") })
			h.look(h.a, recommended("r"))
			h.wantHeld(false, "a", "r")
		},
		"that is to drain it now": func(h *history) {
			h.set(event.RebalanceRecommendation, func(rule *policy.Rule) { rule.Action = policy.Drain })
			h.pass(time.Minute)
			h.wantHeld(true, "a")
		},
	}
	for name, row := range rows {
		drains := name == "that is to drain it now"
		rows[name] = func(h *history) {
			h.s.RegisterNode()
			h.pass(time.Minute)
			h.uncordon()
			h.s.AddPod(web("new", 5), 0)
			h.pass(time.Minute)
			h.set(event.RebalanceRecommendation, cordons)
			h.look(h.a, recommended("r"))
			row(h)
			h.pass(time.Minute)
			if h.s.HasPod("default/new") == drains {
				h.t.Errorf("the pod that came since is there: %t", !drains)
			}
		}
	}
	histories(t, rows)
}

// No more than a cordon was wanted, and an operator has lifted it. The settings ask for a drain since.
func TestReopened_ADrainThatIsWantedLaterIsLeftAlone(t *testing.T) {
	withServer(t, func(r *rig, s *apitest.Server) {
		s.AddPod(web("web", 5), 0)
		r.rule(event.ASGTermination, cordons)
		r.run()
		r.look(terminated("a"))
		r.wantOutcomes("a after 0s", "a no-drain after 0s")
		r.wantStatus("node node-a is cordoned for asg-termination")
		s.UncordonAs("kubectl")
		r.pass(10 * time.Second)
		r.wantReopened("a")
		if status := r.service.sentence(); strings.Contains(status, "is cordoned") {
			t.Errorf("the node takes pods, and the status is %q", status)
		}
		r.set(event.ASGTermination, func(*policy.Rule) {})
		r.pass(time.Minute)
		r.wantOutcomes("a left-alone after 20s")
		if len(s.Requests("evict")) > 0 {
			t.Error("a pod was evicted")
		}
	})
}

// leftAlone is what is logged when a node's annotation keeps its pods from being evicted.
func leftAlone(kind event.Kind) string {
	return "warning: the node is left alone because of its annotation " + drain.ActionAnnotation + ": its pods are not evicted for " + string(kind)
}

func TestOptedOut_ADrainWaitsAndACordonIsDone(t *testing.T) {
	type row struct {
		event func(r *rig, id string, deadline time.Duration) event.Event
		phase state.Phase
		alone bool
		heard []string
	}
	each(t, map[string]row{
		"a drain":  {(*rig).spot, state.Draining, true, []string{"announced a", "begun a drain after 0s", "left-alone a drain after 0s"}},
		"a cordon": {(*rig).hibernating, state.Cordoned, false, []string{"announced a", "begun a cordon after 0s", "done a cordon after 0s"}},
	}, func(r *rig, row row) {
		r.node.toGuard(leftOpenFor(time.Hour))
		r.runFor(row.event(r, "a", 2*time.Minute))
		if e := r.entry("a"); e.Phase != row.phase || e.OnNode || e.LeftAlone != row.alone {
			r.t.Errorf("the entry is %+v", e)
		}
		r.wantHeard(row.heard...)
	})
}

func TestOptedOut_IsDrainedWhenItIsNoLonger(t *testing.T) {
	bubble(t, func(r *rig) {
		r.node.toGuard(limitedFor(time.Minute))
		r.run()
		r.announce(terminated("a"))
		r.pass(time.Minute - time.Second)
		r.wantOutcomes("a after 0s", "a left-alone after 0s")
		r.wantStatus("watching node node-a: the Auto Scaling group terminates this instance; the node is left alone because of its annotation")
		if e := r.entry("a"); !e.LeftAlone || e.Phase != state.Draining || e.Result != nil {
			t.Errorf("the entry is %+v", e)
		}
		r.wantSaid(systemd.Drained)
		r.pass(time.Minute)
		r.wantOutcomes("a after 1m0s", "a drained after 1m10s")
		r.wantSaid(systemd.DrainLeft, leftAlone(event.ASGTermination),
			"info: annotation "+drain.ActionAnnotation+" no longer asks to leave the node alone")
		if e := r.entry("a"); e.LeftAlone || e.Phase != state.Drained {
			t.Errorf("the entry is %+v", e)
		}
		r.wantHeard("announced a", "begun a drain after 0s", "cordoned a drain after 0s", "left-alone a drain after 0s",
			"begun a drain after 0s", "cordoned a drain after 0s", "done a drain after 10s")
	})
	t.Run("and again", func(t *testing.T) { // The latest look counts, also after the outcome is known.
		bubble(t, func(r *rig) {
			r.node.toGuard(func(ctx context.Context, g *guard) {
				g.close()
				g.drain()
				for _, limited := range []bool{true, false} {
					if !rest(ctx, time.Minute) {
						return
					}
					g.limit(limited)
				}
				if rest(ctx, time.Second) {
					g.drain()
				}
			})
			r.run()
			r.announce(terminated("a"))
			r.pass(3 * time.Minute)
			r.wantOutcomes("a after 0s", "a drained after 0s", "a left-alone after 1m0s", "a after 2m0s", "a drained after 2m1s")
			r.wantHeard("announced a", "begun a drain after 0s", "cordoned a drain after 0s", "done a drain after 0s",
				"left-alone a drain after 1m0s", "begun a drain after 0s", "cordoned a drain after 0s", "done a drain after 1s")
		})
	})
}

// The API server may not answer for a while after a start, or when the next event comes.
func TestOptedOut_IsKnownToTheNextGuard(t *testing.T) {
	bubble(t, func(r *rig) {
		r.node.toGuard(limitedFor(time.Hour))
		r.run()
		r.announce(terminated("a"))
		r.pass(time.Minute)
		r.wantOutcomes("a after 0s", "a left-alone after 0s")
		r.node.toGuard(func(ctx context.Context, g *guard) {
			if rest(ctx, 10*time.Minute) {
				g.close()
				g.limit(true)
			}
		})
		r.restart()
		r.announce(terminated("a"))
		r.pass(time.Hour)
		r.wantOutcomes()
		r.announce()
		r.pass(time.Minute)
		if e := r.entry("a"); e.Phase != state.Closed || e.LeftAlone {
			t.Errorf("the entry is %+v", e)
		}
		r.wantHeard("missed a", "begun a uncordon after 0s", "done a uncordon after 0s")
		r.node.toGuard(limitedFor(time.Minute))
		r.announce(terminated("b"))
		r.pass(time.Hour) // It is drained in the end.
		r.restart()
		var got []bool
		begun, _ := r.node.all()
		for _, goal := range begun {
			got = append(got, goal.Limited)
		}
		if !slices.Equal(got, []bool{false, true, true, false}) {
			t.Errorf("the guards began with Limited %t", got)
		}
	})
}

// What a look has shown before an event came says nothing about that event.
func TestOptedOut_AnEventThatJoinsWaitsForTheNextLook(t *testing.T) {
	bubble(t, func(r *rig) {
		r.node.toGuard(func(ctx context.Context, g *guard) {
			g.close()
			g.limit(true)
			select { // The look for the one that joins takes a while.
			case <-ctx.Done():
				return
			case <-g.adjusted:
			}
			g.becomes(func(s *drain.State) { s.Looked = false }, drain.Progress{Kind: state.GoalChanged})
			if rest(ctx, 3*time.Second) {
				g.limit(true)
			}
		})
		r.run()
		r.announce(terminated("a"))
		r.pass(time.Minute)
		r.wantOutcomes("a after 0s", "a left-alone after 0s")
		r.announce(terminated("a"), r.spot("s", 2*time.Minute))
		r.pass(time.Minute)
		r.wantOutcomes("s after 1m0s", "s left-alone after 1m3s")
	})
}

// The Node was registered again under its name while nth did not run, or no guard stood.
func TestReopened_NotForAnotherNode(t *testing.T) {
	type row struct {
		now  types.UID
		want []string
	}
	each(t, map[string]row{
		"the same Node": {"one", nil},
		"another one":   {"two", []string{"put a drained, reopened", "guard for a: drain, soft in 1h0m0s"}}, // It no longer is.
	}, func(r *rig, row row) {
		stop := r.stopping("a", time.Hour)
		e := r.drained(stop, state.Drained, "boot-1")
		e.ReleasedAt, e.ReleasedOn = r.start, "one"
		r.record.entries = []state.Entry{e}
		r.node.toClaim(func(context.Context) (drain.Claim, bool, error) { return drain.Claim{UID: row.now}, false, nil })
		r.run()
		r.announce(stop)
		r.wantTape(row.want...)
		if released := r.entry("a").Released(); released == (row.want != nil) {
			r.t.Errorf("released: %t", released)
		}
	})
}
