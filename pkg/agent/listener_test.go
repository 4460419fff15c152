package agent_test

import (
	"context"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/systemd"
)

func TestListener_ADrainFromNoticeToEnd(t *testing.T) {
	bubble(t, func(r *rig) {
		r.node.toGuard(func(ctx context.Context, g *guard) {
			pod := func(what state.TransitionKind, left int, detail string) drain.Progress {
				return drain.Progress{Kind: what, Pod: "default/web", PodUID: "u1", Total: 1, Left: left, Detail: detail}
			}
			if !rest(ctx, time.Second) {
				return
			}
			g.close()
			g.say(
				drain.Progress{Kind: state.PodsFound, Total: 1, Left: 1}, pod(state.PodHeld, 1, "default/pdb"),
				pod(state.PodEvicted, 1, ""), pod(state.PodGone, 0, ""),
			)
			g.drain()
			if !rest(ctx, 5*time.Second) {
				return
			} // A pod that was bound late is evicted, too.
			g.becomes(func(s *drain.State) { s.Drained = false }, pod(state.PodArrived, 1, ""))
			g.say(pod(state.PodEvicted, 1, ""), pod(state.PodGone, 0, ""))
			emptied(ctx, g)
		})
		r.run()
		r.announce(r.spot("a", 2*time.Minute))
		r.pass(time.Second)
		r.wantHeard("announced a", "begun a drain after 0s", "cordoned a drain after 1s",
			"pod-held a drain after 1s default/web (u1) 1 of 1 default/pdb",
			"pod-evicted a drain after 1s default/web (u1) 1 of 1",
			"pod-gone a drain after 1s default/web (u1) 0 of 1", "done a drain after 1s")
		r.pass(time.Minute)
		r.wantHeard("pod-evicted a drain after 5s default/web (u1) 1 of 1", "pod-gone a drain after 5s default/web (u1) 0 of 1")
		r.wantSaid(systemd.Drained, "warning: drained the node: 0 pods evicted, 0 deleted, 0 exempt (such as DaemonSet pods); 119 s before the deadline")
		r.announce()
		r.pass(time.Minute)
		r.wantHeard("missed a", "begun a uncordon after 0s", "done a uncordon after 0s")
		r.announce(r.spot("a", time.Hour)) // It had been given up.
		r.wantHeard("announced a", "begun a drain after 0s")
	})
}

func TestListener_WhenWhereWhyAndUntilWhen(t *testing.T) {
	const reason = "EC2 will terminate this spot instance at 00:02:00 UTC on 1 Jan 2000"
	bubble(t, func(r *rig) {
		r.node.toGuard(after(10 * time.Second))
		r.run()
		r.look(r.spot("a", 2*time.Minute))
		for what, at := range map[state.TransitionKind]time.Duration{state.Begun: 0, state.NodeCordoned: 0, state.Done: 10 * time.Second} {
			h := r.heard.find(what)
			if !h.At.Equal(r.in(at)) || h.Node != "node-a" || h.Reason != reason || !h.Deadline.Equal(r.in(2*time.Minute)) || !h.Hard {
				t.Errorf("%s: at %s on %q, as %q, until %s, hard: %t", what, h.At, h.Node, h.Reason, h.Deadline, h.Hard)
			}
		}
		if h := r.heard.find(state.Announced); h.Plan != reason+"; plan: drain now" {
			t.Errorf("the plan is %q", h.Plan)
		}
	})
	t.Run("a cordon has no end", func(t *testing.T) {
		bubble(t, func(r *rig) {
			r.runFor(r.hibernating("a", 2*time.Minute))
			if h := r.heard.find(state.Done); h.Action != "cordon" || !h.Deadline.IsZero() || h.Hard {
				t.Errorf("a cordon is until %s, hard: %t", h.Deadline, h.Hard)
			}
			r.wantHeard("announced a", "begun a cordon after 0s", "cordoned a cordon after 0s", "done a cordon after 0s")
		})
	})
}

func TestListener_AnOperatorOpensTheNode(t *testing.T) {
	bubble(t, func(r *rig) { // That calls a cordon back.
		r.node.toGuard(func(_ context.Context, g *guard) {
			time.Sleep(time.Second)
			g.open()
		})
		r.run()
		r.announce(r.hibernating("a", 2*time.Minute))
		r.pass(2 * time.Second)
		r.wantHeard("announced a", "begun a cordon after 0s", "preempted a cordon after 1s")
		if e := r.wantPhase("a", state.Cordoned); !e.Released() {
			t.Errorf("the entry is %+v", e)
		}
	})
}

// Each event is reported on its own, for someone who may wait for either.
func TestListener_EachEventThatIsPutOff(t *testing.T) {
	repeat(t, 1, func(r *rig) { // While another one keeps the node closed.
		notice := r.spot("b", time.Hour)
		r.runFor(r.rebooting("a", 5*time.Minute), notice)
		r.heard.take()
		r.announce(r.rebooting("a", 5*time.Hour), notice)
		r.wantHeard("changed a", "put-off a")
		r.announce(r.rebooting("a", 6*time.Hour), notice)
		r.wantHeard("changed a")
	})
	for left, detail := range map[drain.UncordonResult]string{drain.UncordonLifted: "", "left to Karpenter": " Karpenter"} {
		repeat(t, 1, func(r *rig) {
			r.node.toUncordon(func(context.Context) (drain.UncordonResult, error) { return left, nil })
			r.runFor(r.rebooting("a", 5*time.Minute), r.rebooting("b", 6*time.Minute))
			r.heard.take()
			r.announce(r.rebooting("a", 5*time.Hour), r.rebooting("b", 6*time.Hour))
			r.wantHeard("begun a uncordon after 0s", "done a uncordon after 0s"+detail, "done b uncordon after 0s"+detail)
		})
	}
}

// A guard may be in the midst of something when it is stopped.
func TestListener_NothingOfAGuardThatIsOver(t *testing.T) {
	bubble(t, func(r *rig) {
		var late *guard
		r.node.toGuard(func(_ context.Context, g *guard) {
			late = g
			g.close()
		})
		r.node.toUncordon(func(ctx context.Context) (drain.UncordonResult, error) {
			if rest(ctx, 10*time.Second) {
				return drain.UncordonLifted, nil
			}
			return "", ctx.Err()
		})
		stop := r.stopping("a", time.Hour)
		r.runFor(stop)
		r.announce(canceled(stop))
		r.heard.take()
		late.say(pod(state.PodGone, ""))
		r.pass(10 * time.Second)
		r.wantHeard("done a uncordon after 10s")
		late.say(pod(state.PodGone, ""))
		r.pass(time.Second)
		r.wantHeard()
	})
}
