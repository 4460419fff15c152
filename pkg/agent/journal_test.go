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

const begun = "warning: draining the node: EC2 will terminate this spot instance at 00:02:00 UTC on 1 Jan 2000; 120 s until the deadline"

// pod is a report about default/web.
func pod(what state.TransitionKind, detail string) drain.Progress {
	return drain.Progress{Kind: what, Pod: "default/web", Detail: detail, Total: 2, Left: 1}
}

func TestJournal_WhatAGuardReports(t *testing.T) {
	type row struct {
		report drain.Progress
		id     string
		want   []string
	}
	node := func(what state.TransitionKind, detail string) drain.Progress {
		return drain.Progress{Kind: what, Detail: detail}
	}
	each(t, map[string]row{
		"pods are found":        {drain.Progress{Kind: state.PodsFound, Total: 2, Left: 2}, systemd.DrainStarted, []string{begun, "info: the node has 2 pods to evict"}},
		"no pod is":             {drain.Progress{Kind: state.PodsFound}, systemd.DrainStarted, []string{begun, "info: the node has 0 pods to evict"}},
		"a pod is deleted":      {pod(state.PodDeleted, ""), systemd.PodDeleted, []string{"warning: deleted default/web, ignoring disruption budgets: it would not have terminated before the deadline"}},
		"its grace is cut":      {pod(state.PodDeleted, "8 s of 30 s"), systemd.PodDeleted, []string{"warning: deleted default/web, ignoring disruption budgets: it would not have terminated before the deadline; 8 s of 30 s"}},
		"an evicted pod's is":   {pod(state.PodEvicted, "8 s of 30 s"), systemd.PodEvicted, []string{"warning: evicted default/web; 8 s of 30 s"}},
		"a pod is overdue":      {pod(state.PodOverdue, "still ending"), systemd.PodHeld, []string{"warning: default/web is still terminating after its grace period; the eviction of system-critical pods no longer waits for this pod"}},
		"a pod is refused":      {pod(state.PodRefused, "no"), systemd.PodHeld, []string{"warning: cannot evict default/web: no; retrying"}},
		"a pod is gone":         {pod(state.PodGone, ""), systemd.PodGone, []string{"info: default/web is gone; pods still to go: 1 of 2"}},
		"pods cannot be listed": {node(state.PodRefused, "the pods cannot be listed"), systemd.PodHeld, []string{"warning: the pods cannot be listed; retrying"}},
		"evictions are delayed": {node(state.EvictionsDelayed, "30s"), systemd.DrainStarted, []string{begun, "info: evictions begin in 30s, so that load balancers can deregister the node first"}},
		"there is no Node":      {node(state.NodeMissing, "it was deleted"), systemd.DrainStarted, []string{begun, "info: the Node does not exist: it was deleted; a Node that the kubelet registers later will be cordoned"}},
		"scripts fail":          {node(state.ScriptsFailed, "failed: save.service"), systemd.DrainStarted, []string{begun, "warning: the drain continues without nth-before-drain.target: failed: save.service"}},
		"targets are left":      {node(state.TargetsLeft, "2 targets"), systemd.DrainStarted, []string{begun, "info: waiting for load balancers to deregister the node: 2 targets"}},
		"targets are out":       {node(state.TargetsOut, ""), systemd.DrainStarted, []string{begun, "info: load balancers have deregistered the node"}},
		"targets are given up":  {node(state.TargetsOut, "no permission"), systemd.DrainStarted, []string{begun, "warning: no longer waiting for load balancers, which may still send requests to the node: no permission"}},
		"it was cordoned":       {node(state.CordonFound, ""), systemd.CordonForeign, []string{"info: the node was already cordoned by someone else; that cordon will not be lifted"}},
		"pods are left alone":   {drain.Progress{Kind: state.StateChanged}, systemd.DrainLeft, []string{leftAlone(event.SpotInterruption)}},
	}, func(r *rig, row row) {
		r.node.toGuard(func(_ context.Context, g *guard) {
			if row.id == systemd.DrainLeft {
				g.close()
				g.limit(true)
			}
			g.say(row.report)
		})
		r.run()
		r.announce(r.spot("a", 2*time.Minute))
		r.wantSaid(row.id, row.want...)
	})
}

func TestJournal_ACordonIsLoggedOnce(t *testing.T) {
	each(t, map[string]func(r *rig) (want []string){
		"in a drain, when it is set": func(r *rig) []string {
			r.runFor(r.spot("a", 2*time.Minute))
			r.pass(time.Second)
			return []string{"warning: cordoned the node in 1s"}
		},
		"where no more is wanted": func(r *rig) []string {
			r.runFor(r.hibernating("a", 2*time.Minute))
			r.pass(time.Second)
			return []string{"warning: cordoned the node in 1s"}
		},
		"by an event that joins long after an uncordon": func(r *rig) []string {
			r.node.toGuard(func(ctx context.Context, g *guard) {
				g.open()
				for g.next(ctx) && !g.wants().Cordon {
				}
				stuck(ctx, g)
			})
			r.runFor(r.stopping("m", time.Hour))
			r.pass(10 * time.Minute)
			r.announce(r.stopping("m", time.Hour), r.spot("a", 12*time.Minute))
			r.pass(time.Second)
			return []string{"warning: cordoned the node in 0s"}
		},
		"not again after a restart": func(r *rig) []string {
			r.record.entries = []state.Entry{r.drained(r.spot("a", 90*time.Second), state.Draining, "boot-1")}
			r.node.toGuard(func(_ context.Context, g *guard) { g.closeAs(state.NodeCordoned, drain.CordonKept) })
			r.runFor(r.spot("a", 90*time.Second))
			return nil
		},
	}, func(r *rig, row func(r *rig) []string) {
		r.node.toGuard(func(ctx context.Context, g *guard) {
			time.Sleep(time.Second)
			stuck(ctx, g)
		})
		r.wantSaid(systemd.Cordoned, row(r)...)
	})
}

func TestJournal_HowADrainEnds(t *testing.T) {
	type row struct {
		result drain.Result
		after  time.Duration // 0 if it is not drained in time
		want   string
	}
	each(t, map[string]row{
		"no pods were found in time": {drain.Result{Cordon: drain.CordonSet}, 0, "0 pods evicted, 0 deleted, pods left: not known"},
		"without a cordon":           {drain.Result{Deleted: 1, Left: []string{"default/web"}}, 0, "0 pods evicted, 1 deleted, pods left: default/web"},
		"after the deadline": {
			drain.Result{Cordon: drain.CordonSet, Evicted: 1}, 150 * time.Second,
			"drained the node: 1 pod evicted, 0 deleted, 0 exempt (such as DaemonSet pods); 30 s after the deadline",
		},
		"at the deadline": {
			drain.Result{Cordon: drain.CordonSet, Evicted: 1}, 2 * time.Minute,
			"drained the node: 1 pod evicted, 0 deleted, 0 exempt (such as DaemonSet pods); 0 s before the deadline",
		},
		"the Node was deleted after as many evictions as deletions": {
			drain.Result{NodeGone: true, Evicted: 1, Deleted: 1}, time.Minute,
			"the drain is over, because the Node no longer exists: 1 pod evicted, 1 deleted",
		},
		"the Node was deleted meanwhile": {
			drain.Result{NodeGone: true, Evicted: 3}, time.Minute,
			"the drain is over, because the Node no longer exists: 3 pods evicted, 0 deleted",
		},
	}, func(r *rig, row row) {
		r.node.toGuard(func(_ context.Context, g *guard) {
			if row.after > 0 {
				g.close()
				time.Sleep(row.after)
			}
			g.did(row.result)
			if row.after > 0 {
				g.drain()
			}
		})
		r.runFor(r.spot("a", 2*time.Minute))
		r.pass(max(row.after, 2*time.Minute))
		if row.after > 0 {
			r.wantSaid(systemd.Drained, "warning: "+row.want)
		} else {
			r.wantSaid(systemd.DrainIncomplete, "error: the drain ran out of time: "+row.want+"; nth keeps trying while the machine runs")
		}
	})
}

func TestJournal_AnOperatorsDrainIsAnnouncedAsSuch(t *testing.T) {
	bubble(t, func(r *rig) {
		r.cfg.Policy[event.Manual] = policy.Rule{Action: policy.Drain}
		r.run()
		asked := event.Event{ID: "a", Kind: event.Manual, State: event.Pending}
		r.source.sink.Snapshot(event.Snapshot{Kind: event.Manual, Events: []event.Event{asked}})
		r.pass(time.Second)
		r.wantSaid(systemd.EventSeen, `warning: an operator has run "nth drain"; plan: drain now`)
	})
}

func TestJournal_ADryRunNeverSaysThatSomethingWasDone(t *testing.T) {
	bubble(t, func(r *rig) {
		r.cfg.DryRun = true
		r.node.toGuard(func(ctx context.Context, g *guard) {
			g.close()
			g.did(drain.Result{Cordon: drain.CordonSet, Evicted: 1, Skipped: 2})
			g.say(drain.Progress{Kind: state.PodEvicted, Pod: "default/web-1", Total: 1})
			emptied(ctx, g)
		})
		r.run()
		stop, hibernation := r.stopping("a", time.Hour), r.hibernating("b", time.Minute)
		r.announce(stop)
		r.wantStatus("node node-a is drained for scheduled-maintenance (dry run)")
		r.announce(stop, hibernation)
		r.announce(canceled(stop))
		r.pass(time.Minute)
		for id, want := range map[string][]string{
			systemd.Started:      {"info: watching for interruptions, as a dry run: nothing will be cordoned or evicted"},
			systemd.DrainStarted: {"warning: dry run: would be draining the node: EC2 has scheduled instance-stop at 01:00:00 UTC on 1 Jan 2000; 3600 s until the deadline"},
			systemd.PodEvicted:   {"info: dry run: would have evicted default/web-1"},
			systemd.Drained:      {"warning: dry run: would have drained the node: 1 pod evicted, 2 exempt (such as DaemonSet pods)"},
			systemd.Uncordoned:   {"info: dry run: would have uncordoned the node: the event was withdrawn"},
		} {
			r.wantSaid(id, want...)
		}
		for _, said := range r.said(systemd.Cordoned) {
			if said != "warning: dry run: would have cordoned the node" {
				t.Errorf("logged: %s", said)
			}
		}
	})
}
