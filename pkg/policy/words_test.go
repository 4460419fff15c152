package policy_test

import (
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/record"
)

func TestStepsAreTheSameIfTheyAreTheSameWork(t *testing.T) {
	t.Parallel()
	step := policy.Step{Action: policy.Drain, Event: spot("a", time.Minute), Deadline: at(time.Minute), Hard: true}
	for _, row := range []struct {
		name   string
		change func(*policy.Step)
		want   bool
	}{
		{"if nothing differs", func(*policy.Step) {}, true},
		{"if overtime goes on", func(s *policy.Step) { s.Deadline = at(time.Hour) }, true},
		{"if only the words or the next look differ", func(s *policy.Step) { s.Reason, s.Revisit = "x", at(0) }, true},
		{"if the zone of the deadline differs", func(s *policy.Step) { s.Event = inZone(s.Event) }, true},
		{"not with another action", func(s *policy.Step) { s.Action = policy.Cordon }, false},
		{"not for another event", func(s *policy.Step) { s.Event.ID = "b" }, false},
		{"not if the event's time has changed", func(s *policy.Step) { s.Event.Deadline = at(time.Second) }, false},
		{"not if the deadline has become hard", func(s *policy.Step) { s.Hard = false }, false},
	} {
		other := step
		row.change(&other)
		if step.Same(other) != row.want || other.Same(step) != row.want {
			t.Errorf("%s: Same is not %t", row.name, row.want)
		}
	}
}

func TestStepsSayWhy(t *testing.T) {
	t.Parallel()
	canceled := inState(maintenance("a", "instance-stop", time.Hour), event.Canceled)
	moved := maintenance("a", "system-reboot", 48*time.Hour)
	limited := termination("a")
	limited.Deadline = at(5 * time.Minute)
	for _, row := range []struct {
		known map[event.Kind][]event.Event
		entry record.Entry
		want  string
	}{
		{known(spot("a", time.Minute)), entry(spot("a", time.Minute), record.Seen), "EC2 will terminate this spot instance at 12:01:00 UTC on 1 Mar 2026"},
		{known(termination("a")), entry(termination("a"), record.Seen), "the Auto Scaling group terminates this instance"},
		{known(limited), entry(limited, record.Seen), "the Auto Scaling group terminates this instance, at 12:05:00 UTC on 1 Mar 2026 at the latest"},
		{known(shutdown("a", 0)), entry(shutdown("a", 0), record.Seen), "the system is shutting down"},
		{known(maintenance("a", "instance-stop", time.Hour)), entry(maintenance("a", "instance-stop", time.Hour), record.Seen), "EC2 has scheduled instance-stop at 13:00:00 UTC on 1 Mar 2026"},
		{known(canceled), entry(canceled, record.Drained), "the event was canceled"},
		{known(), entry(spot("a", time.Hour), record.Drained, missing(-time.Hour)), "the event was withdrawn"},
		{known(), entry(shutdown("a", 0), record.Drained, before), "the machine is back after its reboot"},
		{known(moved), entry(moved, record.Drained, actedFor(0)), "the event was moved to a later time"},
	} {
		sit := policy.Situation{Now: noon, BootID: thisBoot, Known: row.known, Past: past(row.entry)}
		if got := rules().Decide(sit).Reason; got != row.want {
			t.Errorf("the reason is %q, want %q", got, row.want)
		}
	}
}

func TestEventsAreDescribedWithWhatWillBeDone(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		entry record.Entry
		want  string
	}{
		{entry(spot("a", time.Minute), record.Seen), "EC2 will terminate this spot instance at 12:01:00 UTC on 1 Mar 2026; drain now"},
		{entry(spot("a", time.Minute), record.Drained), "EC2 will terminate this spot instance at 12:01:00 UTC on 1 Mar 2026; nothing more will be done"},
		{entry(rebalance("a"), record.Seen), "EC2 recommends to rebalance away from this spot instance; nothing will be done"},
		{
			entry(maintenance("a", "system-reboot", time.Hour), record.Seen),
			"EC2 has scheduled system-reboot at 13:00:00 UTC on 1 Mar 2026; drain at 12:50:00 UTC on 1 Mar 2026",
		},
	} {
		if got := rules().Describe(row.entry); got != row.want {
			t.Errorf("described as %q\n        want %q", got, row.want)
		}
	}
}
