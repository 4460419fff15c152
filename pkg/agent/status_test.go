package agent_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
)

func TestStatus_WhileNothingHappens(t *testing.T) {
	bubble(t, func(r *rig) {
		r.ident.name = ""
		r.run()
		r.wantStatus("watching; waiting for the kubelet's credential")
		r.ident.tell("", errors.New("there is no kubeconfig"))
		r.wantStatus("watching; cannot drain the node until the kubelet's credential is confirmed: there is no kubeconfig")
		r.announce(r.rebooting("a", time.Hour))
		const waits = ": EC2 has scheduled system-reboot at 01:00:00 UTC on 1 Jan 2000; plan: drain begins at 00:50:00 UTC on 1 Jan 2000"
		r.wantStatus("watching the node" + waits + "; cannot drain the node until the kubelet's credential is confirmed: there is no kubeconfig")
		r.ident.tell("node-a", nil)
		r.wantStatus("watching node node-a" + waits)
		r.announce(r.spot("b", 2*time.Minute))
		r.wantStatus("node node-a is drained for spot-interruption")
	})
}

func TestStatus_DuringADrain(t *testing.T) {
	bubble(t, func(r *rig) {
		about := func(what state.TransitionKind, detail string, left int) drain.Progress {
			return drain.Progress{Kind: what, Detail: detail, Total: 3, Left: left}
		}
		held := func(by map[string]string) drain.Result { return drain.Result{Cordon: drain.CordonSet, HeldBy: by} }
		r.node.toGuard(func(_ context.Context, g *guard) {
			time.Sleep(1500 * time.Millisecond)
			g.did(held(map[string]string{"default/web-1": "PDB default/web", "default/web-2": "PDB default/web", "default/api-1": "the webhook says no"}))
			g.say(about(state.PodsFound, "", 3))
			time.Sleep(time.Second)
			g.did(held(map[string]string{"default/api-1": "the webhook says no"}))
			g.say(about(state.TargetsLeft, "2 targets are still draining in tg/web", 1))
			time.Sleep(time.Second)
			refused := about(state.NodeCordonFailed, `cannot cordon node "node-a": forbidden`, 1)
			g.say(about(state.TargetsOut, "", 1))
			g.becomes(func(s *drain.State) { s.Trouble = refused.Detail }, refused)
			time.Sleep(time.Second)
			g.did(held(nil))
			g.becomes(func(s *drain.State) { s.Trouble = "" }, about(state.NodeCordoned, "", 1))
		})
		r.run()
		r.announce(r.spot("a", 2*time.Minute))
		const draining = "draining node node-a for spot-interruption"
		for _, want := range []string{
			", 119 s left",
			": 0 of 3 pods gone, 118 s left, held by PDB default/web, the webhook says no",
			": 2 of 3 pods gone, 117 s left, held by the webhook says no; 2 targets are still draining in tg/web",
			`: 2 of 3 pods gone, 116 s left, held by the webhook says no; cannot cordon node "node-a": forbidden`,
			": 2 of 3 pods gone, 115 s left",
		} {
			r.wantStatus(draining + want)
		}
		r.ident.tell("", errors.New("the certificate has expired"))
		r.wantStatus(draining + ": 2 of 3 pods gone, 114 s left; cannot drain the node until the kubelet's credential is confirmed: the certificate has expired")
	})
}

// An API server that refuses the cordon keeps a drain without a hard deadline from its first eviction, for good.
func TestStatus_OtherWorkAndWhyItFails(t *testing.T) {
	type row struct {
		guard    script
		uncordon func(context.Context) (drain.UncordonResult, error)
		run      func(r *rig)
		want     string
	}
	uncordoned := func(_ context.Context, g *guard) {
		g.close()
		g.drain()
		g.open()
	}
	withdrawn := func(after time.Duration) func(r *rig) {
		return func(r *rig) {
			r.runFor(r.spot("a", 2*time.Minute))
			r.announce()
			r.pass(after)
		}
	}
	each(t, map[string]row{
		"it is being cordoned": {reports(), nil, func(r *rig) {
			r.ident.name = ""
			r.runFor(r.hibernating("a", 2*time.Minute))
		}, "cordoning the node: EC2 will hibernate this spot instance at 00:02:00 UTC on 1 Jan 2000; waiting for the kubelet's credential"},
		"it is cordoned, and pods do not count": {func(_ context.Context, g *guard) {
			g.close()
			g.say(drain.Progress{Kind: state.StateChanged, Total: 2, Left: 1})
		}, nil, func(r *rig) { r.runFor(r.hibernating("a", 2*time.Minute)) }, "node node-a is cordoned for spot-interruption"},
		"pods have come since the drain": {func(_ context.Context, g *guard) {
			g.close()
			g.drain()
			g.say(drain.Progress{Kind: state.PodHeld, Pod: "default/web-1", Detail: "default/web", Total: 2, Left: 1})
		}, nil, func(r *rig) { r.runFor(r.spot("a", 2*time.Minute)) },
			"node node-a is drained for spot-interruption"},
		"it is drained, and was uncordoned after that": {uncordoned, nil, func(r *rig) { r.runFor(r.spot("a", 2*time.Minute)) },
			"watching node node-a: EC2 will terminate this spot instance at 00:02:00 UTC on 1 Jan 2000; nothing more will be done"},
		"it is drained for a later event, too": {uncordoned, nil, func(r *rig) {
			notice := r.spot("s", time.Hour)
			r.runFor(notice)
			r.node.toGuard(empty)
			r.announce(notice, r.stopping("m", 72*time.Hour))
		}, "node node-a is drained for scheduled-maintenance"},
		"it is being uncordoned": {empty, hangs, withdrawn(30 * time.Second), "uncordoning node node-a: the event was withdrawn"},
		"it cannot be cordoned": {forbidden, nil, func(r *rig) {
			r.runFor(r.stopping("a", time.Hour))
			r.pass(10 * time.Minute)
		}, "draining node node-a for scheduled-maintenance, 2999 s left; forbidden"},
		"it cannot be uncordoned, and nth will try again": {
			empty, refused, withdrawn(5*time.Minute + 10*time.Second),
			"watching node node-a: EC2 will terminate this spot instance at 00:02:00 UTC on 1 Jan 2000; the node is being uncordoned; the last attempt failed: forbidden",
		},
		"it is not known whether its drain is still wanted": {empty, nil, func(r *rig) {
			r.cfg.BootID = "boot-2"
			r.record.entries = []state.Entry{r.drained(terminated("a"), state.Draining, "boot-1")}
			r.run()
			r.trouble(event.ASGTermination, "status 403")
			r.wantTape()
		}, "watching node node-a: the Auto Scaling group takes this instance out of service (target state Terminated); plan: drain now; cannot check for asg-termination events since 00:00:00"},
		"it ran out of time, and another event cordons it": {func(ctx context.Context, g *guard) {
			g.close()
			g.say(drain.Progress{Kind: state.PodHeld, Pod: "default/web-1", Detail: "default/web", Total: 2, Left: 1})
			for g.next(ctx) {
				g.say(drain.Progress{Kind: state.StateChanged, Total: 2, Left: 1})
			}
		}, nil, func(r *rig) {
			r.rule(event.RebalanceRecommendation, cordons)
			stop := r.stopping("a", 5*time.Minute)
			r.runFor(stop)
			r.pass(6 * time.Minute)
			r.announce(stop, recommended("b"))
		}, "draining node node-a for scheduled-maintenance: 1 of 2 pods gone"},
	}, func(r *rig, row row) {
		r.node.toGuard(row.guard)
		if row.uncordon != nil {
			r.node.toUncordon(row.uncordon)
		}
		row.run(r)
		r.wantStatus(row.want)
	})
}

func TestBoard_ShowsADrain(t *testing.T) {
	bubble(t, func(r *rig) {
		r.node.toGuard(reports(
			drain.Progress{Kind: state.PodsFound, Total: 3, Left: 3},
			drain.Progress{Kind: state.PodHeld, Pod: "default/web-1", Detail: "web", Total: 3, Left: 2},
		))
		r.run()
		r.announce(r.spot("a", 2*time.Minute))
		r.pass(2 * time.Second)
		got := r.board.last()
		if got.Version != state.StatusVersion || got.Node != "node-a" || !got.Started.Equal(r.start) || !got.Updated.Equal(r.in(2*time.Second)) {
			t.Errorf("the board shows %+v", got)
		}
		if want := "draining node node-a for spot-interruption: 1 of 3 pods gone, 118 s left"; got.Sentence != want {
			t.Errorf("the sentence is %q, want %q", got.Sentence, want)
		}
		step := got.Step
		if step == nil || step.Action != "drain" || step.Event != "a" || !step.Hard || step.PodsTotal != 3 || step.PodsLeft != 2 ||
			!step.Deadline.Equal(r.in(2*time.Minute)) {
			t.Errorf("the step is %+v", step)
		}
		if len(got.Events) != 1 || got.Events[0].Phase != state.Draining || got.Events[0].Kind != event.SpotInterruption {
			t.Errorf("the events are %+v", got.Events)
		}
		if len(got.Documents) != 4 || !got.Documents[0].LastGood.Equal(r.start) || !got.Stopped.IsZero() {
			t.Errorf("the documents are %+v, stopped at %s", got.Documents, got.Stopped)
		}
		r.end()
		if got := r.board.last(); got.Stopped.IsZero() || got.Step != nil || len(got.Events) != 1 {
			t.Errorf("the board shows %+v", got)
		}
	})
}

func TestBoard_ShowsWhatIsWrongUntilItIsOver(t *testing.T) {
	bubble(t, func(r *rig) {
		r.ident.name, r.ident.err = "", errors.New("there is no kubeconfig")
		r.run()
		r.trouble(event.SpotInterruption, "connection refused")
		r.pass(time.Second)
		if got := r.board.last(); got.Identity.Trouble != "there is no kubeconfig" {
			t.Errorf("the identity is %+v", got.Identity)
		}
		want := state.DocumentStatus{Kind: event.SpotInterruption, Trouble: "connection refused", Since: r.start.Round(0)}
		if got := r.board.last(); len(got.Documents) != 1 || got.Documents[0] != want {
			t.Errorf("the documents are %+v, want %+v", got.Documents, want)
		}
		r.announce(r.spot("a", time.Hour))
		r.trouble(event.SpotInterruption, "connection refused")
		r.pass(time.Minute + 500*time.Millisecond)
		r.announce()
		r.pass(time.Second)
		if got := r.board.last().Documents[0]; !got.LastGood.Equal(r.in(time.Minute+1500*time.Millisecond)) || got.Trouble != "" || !got.Since.IsZero() {
			t.Errorf("the document is %+v", got)
		}
		r.pass(time.Minute)
		if got := r.board.last(); len(got.Events) > 0 {
			t.Errorf("the events are %+v", got.Events)
		}
	})
}

func TestBoard_SaysWhetherTheDeadlineIsHard(t *testing.T) {
	type row struct {
		events func(r *rig) []event.Event
		want   bool
	}
	each(t, map[string]row{
		"a hard deadline":    {func(r *rig) []event.Event { return []event.Event{r.spot("a", time.Hour)} }, true},
		"a soft one":         {func(r *rig) []event.Event { return []event.Event{r.stopping("a", time.Hour)} }, false},
		"a soft one is over": {func(r *rig) []event.Event { return []event.Event{r.stopping("a", -time.Hour), terminated("b")} }, true},
		"no deadline":        {func(*rig) []event.Event { return []event.Event{recommended("a")} }, false},
	}, func(r *rig, row row) {
		r.rule(event.RebalanceRecommendation, func(rule *policy.Rule) { rule.Action = policy.Drain })
		r.node.toGuard(reports())
		r.runFor(row.events(r)...)
		r.pass(time.Second)
		if step := r.board.last().Step; step == nil || step.Hard != row.want || step.PodsTotal != 0 || step.PodsLeft != 0 {
			r.t.Errorf("the step is %+v, want hard: %t", step, row.want)
		}
	})
}
