package agent_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

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
			g.report(drain.Progress{
				Kind: state.NodeReopened, Generation: g.wants().Generation, Claim: old.Claim, State: drain.State{Open: true, Drained: true},
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

// What a guard sees of the Node counts for its goal: another UID, and that the kubelet of this boot has reported it Ready.
func TestReopened_EndsByWhatAGuardSees(t *testing.T) {
	type row struct {
		sees func(*drain.State)
		want []string
	}
	each(t, map[string]row{
		"nothing":             {func(*drain.State) {}, nil},
		"another Node":        {func(s *drain.State) { s.UID = "two" }, []string{"put a draining, reopened", "put b closed canceled", "adjust to a: drain, soft in 59m50s"}}, // It no longer is.
		"that the Node is up": {func(s *drain.State) { s.Ready = true }, []string{"guard ended", "uncordon when ready", "uncordon when ready ended", "put b closed canceled", "guard for a: drain, soft in 59m50s, reopened"}},
	}, func(r *rig, row row) {
		stop, other := r.stopping("a", time.Hour), canceled(r.stopping("b", 2*time.Hour))
		a, b := r.drained(stop, state.Draining, "boot-1"), r.drained(other, state.Undoing, "boot-0")
		a.ReleasedAt, a.ReleasedOn = r.start, "one"
		r.record.entries = []state.Entry{a, b}
		r.node.toClaim(unanswered)
		r.node.toGuard(func(ctx context.Context, g *guard) {
			if rest(ctx, 10*time.Second) {
				g.becomes(row.sees, drain.Progress{Kind: state.GoalChanged})
			}
		})
		r.runFor(stop, other)
		r.pass(10 * time.Second)
		r.wantTape(row.want...)
	})
}
