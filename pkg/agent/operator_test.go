package agent_test

import (
	"context"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/event"
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
		r.wantSaid(systemd.CordonFailed, "error: forbidden; retrying")
		r.wantHeard("begun a uncordon after 0s", "failed a uncordon after 0s: forbidden")
		for id, want := range map[string]string{"a": "forbidden", "b": "forbidden", "c": ""} {
			if e := r.entry(id); e.Error != want {
				t.Errorf("the entry is %+v, want the error %q", e, want)
			}
		}
		for range 3 {
			r.pass(30 * time.Second)
			r.wantTape("uncordon", "uncordon ended")
		}
		r.node.toUncordon(func(context.Context) (drain.UncordonResult, error) { return drain.UncordonNotOurs, nil })
		r.pass(time.Minute)
		r.wantTape("uncordon", "uncordon ended", "put a closed canceled", "put b closed canceled")
		r.wantSaid(systemd.Uncordoned, "info: the node has no cordon that nth set; nothing to uncordon")
	})
}

func TestReopened_IsRecordedAndLoggedOnce(t *testing.T) {
	type row struct {
		code, then string
		writes     int32 // more of them: what is left of the cordon is taken off
	}
	each(t, map[string]row{
		"of a drain":  {"terminate", "someone uncordoned the node during the drain; nth still evicts the pods that were on the node before that, but no newer ones", 0},
		"of a cordon": {"hibernate", "someone uncordoned the node; the node will not be cordoned again for this event", 1},
	}, func(r *rig, row row) {
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
		opened := "info: " + row.then
		r.wantSaid(systemd.CordonLifted, opened)
		before := r.record.puts.Load()
		r.pass(2 * time.Second)
		r.wantSaid(systemd.CordonLifted, opened)
		if more := r.record.puts.Load() - before; more != row.writes {
			r.t.Errorf("the record was written %d times more", more)
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
			g.report(drain.Progress{
				Kind: state.NodeUncordoned, Generation: g.wants().Generation, Claim: old.Claim, State: drain.State{Uncordoned: true, Drained: true},
			})
		})
		stop := r.stopping("a", time.Hour)
		r.runFor(stop)
		r.announce(stop, r.spot("b", 2*time.Minute))
		r.pass(time.Second)
		r.wantTape("put b seen", "put b draining", "adjust to b, a: drain, hard in 2m0s, soft in 1h0m0s", "put a draining, reopened",
			"adjust to b, a: drain, hard in 2m0s, soft in 1h0m0s") // b wants pods gone that have come since.
	})
}

// leftAlone is what is logged when a node's annotation keeps its pods from being evicted.
func leftAlone(kind event.Kind) string {
	return "warning: the Node's annotation " + drain.ActionAnnotation + " forbids evictions; no pods are evicted for " + string(kind) + " until the annotation is removed"
}

func TestOptedOut_ACordonWaits(t *testing.T) {
	bubble(t, func(r *rig) {
		r.node.toGuard(func(_ context.Context, g *guard) {
			g.did(drain.Result{Cordon: drain.CordonOptedOut, MayNotEvict: true})
			g.becomes(func(s *drain.State) { s.UID, s.MayNotCordon, s.Looked, s.MayNotEvict = "node", true, true, true }, drain.Progress{Kind: state.NodeOptedOut})
		})
		r.runFor(r.hibernating("a", 2*time.Minute))
		if e := r.entry("a"); e.Phase != state.Cordoning || !e.LeftAlone {
			r.t.Errorf("the entry is %+v", e)
		}
		r.wantHeard("announced a", "begun a cordon after 0s", "left-alone a cordon after 0s")
	})
}

func TestOptedOut_IsDrainedWhenItIsNoLonger(t *testing.T) {
	bubble(t, func(r *rig) {
		r.node.toGuard(func(ctx context.Context, g *guard) {
			g.close()
			g.limit(true)
			if rest(ctx, time.Minute) {
				g.limit(false)
			}
			if rest(ctx, 10*time.Second) {
				emptied(ctx, g)
			}
		})
		var outcomes []string
		r.cfg.Settled = func(_ event.Event, outcome event.Outcome) {
			if n := len(outcomes); n == 0 || outcomes[n-1] != string(outcome) {
				outcomes = append(outcomes, string(outcome))
			}
		}
		r.run()
		r.announce(terminated("a"))
		r.pass(time.Minute - 2*time.Second)
		r.compare("what the outcomes became", outcomes, []string{"", "left-alone"})
		r.wantStatus("watching node node-a: the Auto Scaling group takes this instance out of service (target state Terminated); the node is left alone because of its annotation")
		if e := r.entry("a"); !e.LeftAlone || e.Phase != state.Draining || e.Result != nil {
			t.Errorf("the entry is %+v", e)
		}
		r.wantSaid(systemd.Drained)
		r.pass(time.Minute)
		r.compare("what the outcomes became", outcomes, []string{"", "left-alone", "", "drained"})
		r.wantSaid(systemd.DrainLeft, leftAlone(event.ASGTermination))
		if e := r.entry("a"); e.LeftAlone || e.Phase != state.Drained {
			t.Errorf("the entry is %+v", e)
		}
		r.wantHeard("announced a", "begun a drain after 0s", "cordoned a drain after 0s", "left-alone a drain after 0s",
			"begun a drain after 0s", "done a drain after 10s")
	})
}
