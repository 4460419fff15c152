package agent_test

import (
	"context"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/systemd"
)

func TestGoal_WorkIsRecordedBeforeAndAfterIt(t *testing.T) {
	bubble(t, func(r *rig) {
		r.run()
		stop, hibernation := r.stopping("a", time.Hour), r.hibernating("b", 2*time.Minute)
		r.announce(stop)
		r.wantTape("put a seen", "put a draining", "guard for a: drain, soft in 1h0m0s", "put a drained")
		r.announce(stop, hibernation)
		r.wantTape("put b seen", "put b cordoning", "adjust to a, b: drain, soft in 1h0m0s", "put b cordoned")
		r.announce(canceled(stop), hibernation)
		r.wantTape("put a closed canceled", "adjust to b: cordon") // b needs what is on the node
		for range 20 {
			r.announce(hibernation)
			r.pass(time.Minute)
		}
		r.wantTape()
		r.announce()
		r.wantTape("put b cordoned, missing")
		r.pass(30*time.Second - 1)
		r.wantTape()
		r.pass(1)
		r.wantTape("put b undoing", "guard ended", "uncordon", "uncordon ended", "put b closed withdrawn")
		if e := r.entry("b"); e.OnNode || e.Ending != state.Withdrawn {
			t.Errorf("the entry is %+v", e)
		}
	})
}

func TestGoal_TheGuardKnowsOfAShutdown(t *testing.T) {
	bubble(t, func(r *rig) {
		r.node.toGuard(stuck)
		r.cfg.Policy[event.Shutdown] = policy.Rule{Action: policy.Drain, Hard: true}
		stop := r.stopping("m", time.Hour)
		r.runFor(stop)
		r.announce(stop, event.Event{ID: "d", Kind: event.Shutdown, State: event.Pending, Deadline: r.in(time.Minute)})
		if first, last := r.node.firstAndLast(); first.Shutdown || !last.Shutdown {
			t.Errorf("the goals are %+v and %+v", first, last)
		}
	})
}

// The kubelet may not have registered the Node yet.
func TestGoal_TheGuardKnowsWhetherANodeWasSeen(t *testing.T) {
	type row struct{ remote, unanswered, want bool }
	each(t, map[string]row{
		"it was at the start":                {remote: true, unanswered: true, want: true},
		"its claim was read":                 {want: true},
		"its claim could not be read so far": {unanswered: true},
	}, func(r *rig, row row) {
		r.cfg.Remote = row.remote
		if row.unanswered {
			r.node.toClaim(unanswered)
		}
		r.node.toGuard(reports())
		r.run()
		r.announce(r.spot("a", time.Hour))
		if first, _ := r.node.firstAndLast(); first.NodeSeen != row.want {
			r.t.Errorf("NodeSeen is %t", first.NodeSeen)
		}
	})
}

func TestGoal_ADeadlineThatPassesLeavesTheGuardAtWork(t *testing.T) {
	bubble(t, func(r *rig) {
		r.node.toGuard(func(ctx context.Context, g *guard) {
			stuck(ctx, g)
			time.Sleep(3 * time.Minute)
			g.did(drain.Result{Cordon: drain.CordonSet, Evicted: 3})
			emptied(ctx, g)
		})
		r.runFor(r.spot("a", 2*time.Minute))
		r.pass(2*time.Minute - 1)
		r.wantTape()
		r.pass(1)
		r.wantTape("put a incomplete")
		e := r.entry("a")
		if len(e.Result.Left) != 1 || e.Result.HeldBy["default/web-1"] != "PDB default/web" {
			t.Errorf("the entry is %+v, the result %+v", e, e.Result)
		}
		r.wantSaid(systemd.DrainIncomplete,
			"error: the drain ran out of time: 2 pods evicted, 0 deleted, pods left: default/web-1 (held by PDB default/web); nth keeps trying while the machine runs")
		r.pass(time.Minute)
		r.wantTape("put a drained") // by the same guard
		if e := r.entry("a"); e.Result.Evicted != 3 || !e.CordonedAt.Equal(r.start) {
			t.Errorf("the entry is %+v", e)
		}
	})
}

func TestGoal_ANodeThatCannotBeCordoned(t *testing.T) {
	bubble(t, func(r *rig) {
		r.node.toGuard(func(ctx context.Context, g *guard) {
			limited, stop := context.WithTimeout(ctx, time.Minute)
			defer stop()
			forbidden(limited, g)
			stuck(ctx, g)
		})
		r.run()
		r.announce(r.stopping("a", time.Hour))
		r.wantTape("put a seen", "put a draining", "guard for a: drain, soft in 1h0m0s", "put a draining: forbidden")
		r.pass(3 * time.Second)
		r.wantHeard("announced a", "begun a drain after 0s", "failed a drain after 0s: forbidden")
		r.pass(56 * time.Second)
		if e := r.entry("a"); e.Phase != state.Draining || e.Error != "forbidden" || !e.OnNode {
			t.Errorf("the entry is %+v", e)
		}
		if said := r.said(systemd.CordonFailed); len(said) != 1 || said[0] != "error: forbidden; retrying" {
			t.Errorf("what was logged is %q", said)
		}
		r.pass(time.Second) // It can, and the drain takes long after that.
		if e := r.entry("a"); e.Phase != state.Draining || e.Error != "" {
			t.Errorf("the entry is %+v", e)
		}
	})
	t.Run("before a hard deadline", func(t *testing.T) { // The guard evicts without a cordon: that is no failure.
		bubble(t, func(r *rig) {
			r.node.toGuard(forbidden)
			r.run()
			r.announce(r.stopping("a", time.Hour), r.spot("b", 2*time.Minute))
			r.pass(time.Minute)
			for _, id := range []string{"a", "b"} {
				if e := r.entry(id); e.Error != "" {
					t.Errorf("the entry is %+v", e)
				}
			}
			if said := r.said(systemd.CordonFailed); len(said) == 0 || said[0] != "warning: forbidden; retrying" {
				t.Errorf("what was logged is %q", said)
			}
		})
	})
}

func TestUncordon_AnEventThatComesMeanwhile(t *testing.T) {
	each(t, map[string]func(context.Context) (drain.UncordonResult, error){
		"while it waits": hangs,
		"when its request is sent": func(context.Context) (drain.UncordonResult, error) {
			time.Sleep(2 * time.Second) // It is not canceled.
			return drain.UncordonLifted, nil
		},
	}, func(r *rig, uncordons func(context.Context) (drain.UncordonResult, error)) {
		r.node.toUncordon(uncordons)
		stop := r.stopping("a", time.Hour)
		r.runFor(stop)
		r.announce(canceled(stop))
		r.pass(time.Second)
		r.heard.take()
		r.announce(canceled(stop), r.spot("b", 2*time.Minute))
		r.pass(2 * time.Second)
		if put := r.heard.find(state.PutOff); put.Kind != "" || r.heard.find(state.CalledBack).Action != "uncordon" {
			r.t.Errorf("what listeners heard is %q", r.heard.take())
		}
	})
}
