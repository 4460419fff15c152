package agent_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/systemd"
)

func TestStart_ReadyWaitsForNothing(t *testing.T) {
	bubble(t, func(r *rig) {
		r.ident.name = ""
		r.node.toClaim(func(ctx context.Context) (drain.Claim, bool, error) {
			<-ctx.Done()
			return drain.Claim{}, false, ctx.Err()
		})
		r.run()
		if took := time.Since(r.start); !r.service.ready || took > 0 {
			t.Errorf("ready: %t, after %s", r.service.ready, took)
		}
	})
}

// A start finds the same goal in each phase, and reports only what has not ended.
func TestRestart_InAnyPhaseHasTheSameGoal(t *testing.T) {
	type row struct{ tape, heard []string }
	guard, begins, continues := []string{"guard for a: drain, hard in 2m0s"}, "begun a drain after 0s", "begun a drain after 1s"
	fresh := append([]string{"put a draining"}, guard...)
	for phase, row := range map[state.Phase]row{
		state.Seen: {fresh, []string{begins}}, state.Cordoning: {fresh, []string{"preempted a cordon after 1s", begins}},
		state.Draining: {guard, []string{continues}},
		state.Drained:  {guard, nil}, state.Incomplete: {guard, nil},
	} {
		t.Run(string(phase), func(t *testing.T) {
			bubble(t, func(r *rig) {
				r.node.toGuard(stuck)
				e := r.drained(r.spot("a", 2*time.Minute), phase, "boot-1")
				e.OnNode, e.Changed = phase != state.Seen, r.in(-time.Second)
				r.record.entries = []state.Entry{e}
				r.run()
				r.announce(r.spot("a", 2*time.Minute))
				r.wantTape(row.tape...)
				r.wantHeard(row.heard...)
			})
		})
	}
}

func TestRestart_WhatRanOutOfTimeWhileNthWasStopped(t *testing.T) {
	bubble(t, func(r *rig) {
		r.node.toGuard(stuck)
		r.runFor(r.spot("a", time.Minute))
		r.restart(func() { r.pass(2 * time.Minute) })
		r.wantTape("put a incomplete", "guard for a: drain, hard in -1m0s")
		r.wantSaid(systemd.DrainIncomplete,
			"error: the drain ran out of time: the deadline passed before nth could begin, so no pod was evicted; nth keeps trying while the machine runs")
	})
}

func TestStop_LeavesADrainToBeContinued(t *testing.T) {
	t.Parallel()
	repeat(t, 20, func(r *rig) {
		r.node.toGuard(stuck)
		r.run()
		r.service.slow = time.Second // What the loop is told meanwhile is handled in any order.
		r.announce(r.spot("a", time.Hour))
		r.stop()
		r.pass(time.Minute)
		r.end()
		if e := r.entry("a"); e.Phase != state.Draining || e.Error != "" || !e.OnNode {
			t.Errorf("the entry is %+v", e)
		}
		for _, e := range r.hook.AllEntries() {
			if e.Level <= logrus.ErrorLevel {
				t.Errorf("logged: %s", e.Message)
			}
		}
		if !r.service.stopping {
			t.Error("the service manager does not know that nth stops")
		}
	})
}

// A failing volume is just when EC2 retires a machine.
func TestRecord_ADiskThatHangsDelaysNoDrain(t *testing.T) {
	each(t, map[string]time.Duration{"for 10 s": 10 * time.Second, "for ever": 1000 * time.Hour}, func(r *rig, hangs time.Duration) {
		r.record.hangs = hangs
		r.run()
		r.announce(r.spot("a", 2*time.Minute))
		r.wantTape("put a seen", "put a draining")
		r.pass(250 * time.Millisecond)
		r.wantTape("guard for a: drain, hard in 1m59.75s", "put a drained")
		r.pass(time.Minute)
		if beats, _ := r.service.counts(); beats != 60 {
			r.t.Errorf("%d beats in a minute", beats)
		}
		if took := r.endWithin(); took > 10*time.Second {
			r.t.Errorf("Run took %s to end", took)
		}
		r.tape.take()
		r.run() // What is on disk already is not waited for.
		r.wantTape("guard for a: drain, hard in " + (2*time.Minute - time.Since(r.start)).String())
		r.endWithin()
	})
}

func TestRecord_WhatIsNotWrittenInTheEndIsLogged(t *testing.T) {
	each(t, map[string]time.Duration{"as it cannot be": 0, "as it takes more than ten seconds": time.Hour}, func(r *rig, hangs time.Duration) {
		why := "context deadline exceeded"
		r.record.hangs = hangs
		r.run()
		if hangs == 0 {
			why = "no space left on device"
			r.record.set(func() { r.record.err = errors.New(why) })
		} else {
			r.announce(recommended("a"))
		}
		if took := r.endWithin(); took != min(hangs, 10*time.Second) {
			r.t.Errorf("Run took %s to end", took)
		}
		r.wantSaid(systemd.StateTrouble, "error: cannot write nth's state record: "+why+"; after a restart, nth may not know what it has done")
	})
}

// claim is a claim of nth's on the Node for the event a, made an hour ago.
func (r *rig) claim(kind event.Kind, boot string) *drain.Claim {
	return &drain.Claim{Event: "a", Kind: string(kind), BootID: boot, Since: r.in(-time.Hour)}
}

// The record was lost: the claim on the Node says that the cordon is nth's.
func TestClaim_IsAdopted(t *testing.T) {
	lifted := []string{"put a undoing", "uncordon", "uncordon ended", "put a closed withdrawn"}
	type row struct {
		then func(r *rig)
		want []string
	}
	each(t, map[string]row{
		"and nothing else is known": {func(r *rig) { r.pass(time.Hour) }, nil},
		"and its event is over":     {func(r *rig) { r.announce(); r.pass(30 * time.Second) }, lifted},
		"and its event is announced": {
			func(r *rig) { r.announce(r.spot("a", time.Minute)) }, []string{"put a draining", "guard for a: drain, hard in 50s", "put a drained"},
		},
	}, func(r *rig, row row) {
		r.node.toClaim(func(ctx context.Context) (drain.Claim, bool, error) {
			if time.Since(r.start) < 7*time.Second {
				return unanswered(ctx)
			}
			return *r.claim(event.SpotInterruption, "boot-0"), true, nil
		})
		r.run()
		r.pass(10*time.Second - 1)
		r.wantTape()
		r.wantSaid(systemd.Cordoned)
		r.pass(1) // It is read again every five seconds.
		r.wantTape("put a cordoned")
		r.wantSaid(systemd.Cordoned, "warning: nth cordoned this Node for spot-interruption, as the Node's annotation says, but its own record of that is lost; nth will uncordon the node if the event is not announced again")
		if e := r.entry("a"); !e.OnNode || e.BootID != "boot-0" || !e.FirstSeen.Equal(r.in(-time.Hour)) || !e.CordonedAt.Equal(r.in(-time.Hour)) {
			r.t.Errorf("the entry is %+v", e)
		}
		row.then(r)
		r.wantTape(row.want...)
	})
}

// The last entries did not reach the disk: the record has the event, and not its cordon.
func TestClaim_OfAnEventOnRecord(t *testing.T) {
	bubble(t, func(r *rig) {
		ev := r.spot("a", time.Minute)
		r.record.entries = []state.Entry{{Event: ev, Phase: state.Seen, BootID: "boot-1", FirstSeen: r.start}}
		r.node.toClaim(claims(r.claim(event.SpotInterruption, "boot-1")))
		r.run()
		if e := r.entry("a"); !e.OnNode || !e.Event.Deadline.Equal(ev.Deadline) || !e.FirstSeen.Equal(r.start) {
			t.Errorf("the entry is %+v", e)
		}
	})
}

// Anybody who may write to the Node can write any time there.
func TestClaim_OfAnIncredibleTimeIsOfNow(t *testing.T) {
	bubble(t, func(r *rig) {
		claim := r.claim(event.ScheduledMaintenance, "boot-1")
		claim.Since = incredible
		r.node.toClaim(claims(claim))
		r.run()
		if e := r.entry("a"); !e.FirstSeen.Equal(r.start) || !e.CordonedAt.Equal(r.start) || !e.ActedAt.Equal(r.start) {
			t.Errorf("the entry is %+v", e)
		}
	})
}

func TestClaim_ThatIsReadWhileTheNodeIsUncordoned(t *testing.T) {
	bubble(t, func(r *rig) {
		r.rule(event.SpotInterruption, func(rule *policy.Rule) { rule.Action = policy.Ignore })
		r.record.entries = []state.Entry{r.drained(r.spot("a", time.Minute), state.Drained, "boot-1")}
		r.node.toClaim(func(ctx context.Context) (drain.Claim, bool, error) {
			rest(ctx, time.Second) // The answer of before the uncordon comes after it.
			return *r.claim(event.SpotInterruption, "boot-1"), true, nil
		})
		r.run()
		r.pass(2 * time.Second)
		r.wantTape("put a undoing", "uncordon", "uncordon ended", "put a closed ignored")
	})
}
