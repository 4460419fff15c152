package drain_test

import (
	"strings"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/drain/apitest"
	"github.com/nth-project/nth/pkg/state"
)

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
