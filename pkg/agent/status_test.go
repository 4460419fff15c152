package agent_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
)

// The most urgent event is shown of those that something was done for, and whose cordon nobody has lifted; else of those that something was
// done for.
func TestAtRestTheStatusIsAboutWhatSomethingWasDoneFor(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		urgent, other func(*state.Entry)
		want          string
	}{
		"one of two": {seen, cordonedByUs, "node node-a is drained for scheduled-maintenance"},
		"two":        {cordonedByUs, cordonedByUs, "node node-a is drained for spot-interruption"},
		"one that people opened the node during, beside one that nothing was done for": {
			seen, liftedByPeople, "watching node node-a: EC2 has scheduled instance-stop at 02:00:00 UTC on 1 Jan 2000; nothing more will be done",
		},
		"one that they did not":                     {liftedByPeople, cordonedByUs, "node node-a is drained for scheduled-maintenance"},
		"the urgent one, if they did not during it": {cordonedByUs, liftedByPeople, "node node-a is drained for spot-interruption"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(r *rig) {
				at := r.start.Add(-time.Minute).UTC()
				for i, how := range []func(*state.Entry){row.urgent, row.other} {
					e := state.Entry{Event: []event.Event{r.spot("a", time.Hour), r.stopping("b", 2*time.Hour)}[i], BootID: "boot-1", FirstSeen: at, Changed: at}
					how(&e)
					r.record.entries = append(r.record.entries, e)
				}
				r.run()
				r.wantStatus(row.want)
			})
		})
	}
}

func seen(e *state.Entry) { e.Phase = state.Seen }

func cordonedByUs(e *state.Entry) { e.Phase, e.OnNode, e.CordonedAt = state.Drained, true, e.FirstSeen }

func liftedByPeople(e *state.Entry) { cordonedByUs(e); e.Reopened, e.OnNode = true, false }

// foremost is what the status is about while nothing is being done.
func TestTheStatusIsAboutWhatWasActedUponLast(t *testing.T) {
	t.Parallel()
	spot, stop, asg := event.SpotInterruption, event.ScheduledMaintenance, event.ASGTermination
	type past struct {
		kind    event.Kind
		phase   state.Phase
		changed time.Duration
	}
	for want, rows := range map[string][][]past{
		"node node-a is drained for spot-interruption": {
			{{spot, state.Drained, 0}},
			{{spot, state.Drained, 0}, {stop, state.Seen, time.Minute}},
			{{stop, state.Seen, time.Minute}, {spot, state.Drained, 0}},
			{{spot, state.Drained, time.Minute}, {asg, state.Drained, 0}},
			{{asg, state.Drained, 0}, {spot, state.Drained, time.Minute}},
			{{spot, state.Drained, 0}, {asg, state.Closed, time.Minute}},
			{{asg, state.Closed, time.Minute}, {spot, state.Drained, 0}},
		},
		"watching; nothing is announced for node node-a": {
			nil, {{spot, state.Closed, 0}}, {{spot, state.Closed, 0}, {asg, state.Closed, time.Minute}},
		},
		"watching node node-a: EC2 will terminate this spot instance; nothing will be done": {
			{{spot, state.Seen, 0}}, {{spot, state.Seen, time.Minute}, {asg, state.Seen, 0}}, {{asg, state.Seen, 0}, {spot, state.Seen, time.Minute}},
		},
	} {
		for i, row := range rows {
			t.Run(fmt.Sprint(want, " ", i), func(t *testing.T) {
				t.Parallel()
				bubble(t, func(r *rig) {
					r.start = r.start.Add(-time.Hour)
					for _, p := range row {
						e := state.Entry{
							Event: event.Event{ID: string(p.kind), Kind: p.kind, Code: "terminate", State: event.Pending}, Phase: p.phase,
							BootID: "boot-1", ListedIn: "boot-1", FirstSeen: r.start, Changed: r.in(p.changed), CordonedAt: r.start,
						}
						if p.phase == state.Closed {
							e.Ending = state.Rebooted
						}
						r.record.entries = append(r.record.entries, e)
						rule := r.cfg.Policy[p.kind]
						if rule.Action, rule.Budget, rule.Codes = policy.Drain, 0, nil; p.phase == state.Seen {
							rule.Action = policy.Notify
						}
						r.cfg.Policy[p.kind] = rule
					}
					r.run()
					r.wantStatus(want)
				})
			})
		}
	}
}
