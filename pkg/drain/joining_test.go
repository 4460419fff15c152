package drain_test

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/drain/apitest"
	"github.com/nth-project/nth/pkg/state"
)

// The Node has registered anew, nobody had opened the one before. People open the new one; then an event that only cordons joins. The order
// about the new Node stands for the first event.
func TestAnOrderAboutTheNewNodeStandsWhenAnEventJoins(t *testing.T) {
	for name, anew := range map[string]bool{"the same Node": false, "registered anew": true} {
		run(t, name, func(t *testing.T) {
			s := apitest.New(t)
			r := beginWithin(t, s, drain.Options{}, true, 30*time.Minute)
			r.await(state.NodeEmpty)
			if anew {
				s.RegisterNode()
			}
			time.Sleep(time.Minute)
			closedAt := time.Now()
			s.UncordonAs("kubectl")
			r.await(state.NodeReopened)
			r.adjust(func(g *drain.Goal) { g.Open, g.Reopened, g.Unclosed = true, closedAt, nil }) // as the agent does
			time.Sleep(time.Minute)
			s.AddPod(pod("new"), 0)
			time.Sleep(time.Minute)
			if !s.HasPod("default/new") {
				t.Fatal("not as it should be")
			}
			before := len(r.of(state.NodeClosed))
			r.adjust(func(g *drain.Goal) { joining(g); g.Open = false })
			time.Sleep(time.Minute)
			if !s.HasPod("default/new") {
				t.Errorf("the pod that came after people had opened the node was evicted")
			}
			for _, p := range r.of(state.NodeClosed)[before:] {
				if slices.Contains(p.Events, claim.Event) {
					t.Errorf("the agent is told to forget the order: %+v", p.Events)
				}
			}
		})
	}
}

// What holds a pod changes back to what held it before.
func TestWhatWasToldLastHoldsThePod(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		free := addHeld(s, pod("a"))
		r := begin(t, s, drain.Options{})
		time.Sleep(time.Minute)
		free()
		s.Always("evict default/a", apitest.Unavailable())
		time.Sleep(10 * time.Second)
		s.Always("evict default/a", apitest.HeldBy("budget", 0))
		time.Sleep(30 * time.Minute)
		var last drain.Progress
		r.mu.Lock()
		for _, p := range r.told {
			if p.Pod == "default/a" {
				last = p
			}
		}
		r.mu.Unlock()
		if held := r.guard.Result().HeldBy["default/a"]; held != strings.TrimPrefix(last.Detail, "PDB ") {
			t.Errorf("for half an hour it is held by %q, and what was told last is %q", held, last.Detail)
		}
	})
}

// A webhook has refused a pod's eviction while there was no hard deadline; then the machine is to be lost in two minutes, and the webhook
// gives way.
func TestARefusedPodIsAskedForSoonWhenAHardDeadlineComes(t *testing.T) {
	for _, after := range []time.Duration{5 * time.Minute, 5*time.Minute + 7*time.Second, 6 * time.Minute, 6*time.Minute + 20*time.Second} {
		run(t, after.String(), func(t *testing.T) {
			s := apitest.New(t)
			s.AddPod(pod("a", grace(30)), apitest.Ending(time.Second))
			s.Always("evict", apitest.Forbidden("a backup is under way"))
			r := beginWithin(t, s, drain.Options{}, false, 0)
			time.Sleep(after)
			s.Always("evict", nil)
			began := time.Now()
			r.adjust(func(g *drain.Goal) { joining(g); g.Hard = began.Add(2 * time.Minute); g.TimeEnds = g.Hard })
			n := count(s, "evict")
			await(t, "an eviction", func() bool { return count(s, "evict", "delete") > n })
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("the pod was asked for after %s of the two minutes", took)
			}
		})
	}
}

// The same with a deletion that was refused after the deadline before.
func TestADeletionIsNotLateForTheNextHardDeadline(t *testing.T) {
	for _, after := range []time.Duration{5 * time.Minute, 5*time.Minute + 7*time.Second, 6 * time.Minute, 6*time.Minute + 20*time.Second} {
		run(t, after.String(), func(t *testing.T) {
			s := apitest.New(t)
			s.AddPod(pod("a", grace(110)), apitest.Ending(100*time.Second))
			s.Always("evict", apitest.Forbidden("no"))
			s.Always("delete", apitest.Forbidden("no"))
			r := beginWithin(t, s, drain.Options{}, true, 2*time.Minute)
			time.Sleep(after)
			s.Always("delete", nil)
			s.Always("evict", nil)
			began := time.Now()
			r.adjust(func(g *drain.Goal) { joining(g); g.Hard = began.Add(2 * time.Minute); g.TimeEnds = g.Hard })
			n := count(s, "evict", "delete")
			await(t, "a deletion", func() bool { return count(s, "evict", "delete") > n })
			if took := time.Since(began); took > 12*time.Second {
				t.Errorf("the pod, whose turn was after 10 s, was asked for after %s of the two minutes", took)
			}
		})
	}
}

// A cordon without a hard deadline hangs; two minutes before the machine is lost that counts.
func TestCordon_ThatHangsIsGivenUpForAHardDeadline(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.Answer("patch", apitest.Hang())
		r := beginWithin(t, s, drain.Options{}, false, 0)
		time.Sleep(time.Second)
		began := time.Now()
		r.adjust(func(g *drain.Goal) { joining(g); g.Hard = began.Add(2 * time.Minute); g.TimeEnds = g.Hard })
		await(t, "the cordon", func() bool { return s.CurrentNode().Spec.Unschedulable })
		if took := time.Since(began); took > 13*time.Second {
			t.Errorf("the node was closed after %s of the two minutes", took)
		}
	})
}

// The cordon is carried out, and its answer is lost.
func TestACordonWhoseAnswerIsLostIsTheGuards(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.Answer("patch", apitest.Lost())
		r := begin(t, s, drain.Options{})
		r.succeed()
		if told := r.of(state.NodeClosed); len(told) != 1 || told[0].Detail != string(drain.CordonSet) {
			t.Errorf("told %+v", told)
		}
	})
}

// A Node that others write all the time, and a claim from which an event is to be taken that has begun anew.
func TestAClaimIsMendedThoughOthersWriteTheNodeAllTheTime(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.AddPod(pod("a"), 0)
		c := claim
		c.Writer, c.Events, c.Lifted = drain.Host, []string{claim.Event, "event-2"}, []string{claim.Event}
		text, _ := json.Marshal(c)
		s.ChangeNode(cordoned(string(text)))
		s.Always("patch", func(w http.ResponseWriter, r *http.Request) bool {
			s.ChangeNode(func(n *corev1.Node) {
				if n.Annotations == nil {
					n.Annotations = map[string]string{}
				}
				n.Annotations["other"] = time.Now().String()
			}, "other")
			return false
		})
		goal := goalWithin(false, plenty)
		goal.Anew = goal.Unclosed
		r := start(t, s, drain.Options{}, goal)
		time.Sleep(5 * time.Minute)
		if s.HasPod("default/a") || len(r.of(state.NodeClosed)) == 0 {
			t.Errorf("after five minutes, the pod is there; %d patches; the last told is %+v", count(s, "patch"), r.last())
		}
	})
}

// People want nothing done to the node. The API server is away for a while.
func TestNoCordonIsMissedOnANodeThatPeopleWantLeftAlone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.ChangeNode(asking(drain.ActionAnnotation, drain.LeaveNode))
		r := begin(t, s, drain.Options{})
		r.leave()
		s.Always("get node", apitest.Unavailable())
		time.Sleep(time.Minute)
		if told := r.of(state.NodeUnclosable); len(told) != 0 {
			t.Errorf("told %+v", told)
		}
	})
}
