package policy

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/record"
)

// Decide names the one step to take now. It expects a record that Fold has brought up to date. What is doomed comes
// before what is over: a drain first, the nearest deadline before the others, then a cordon, then undoing.
func (s Settings) Decide(sit Situation) Step {
	var due []Step
	var revisit time.Time
	for _, e := range sit.Past {
		step, again := s.stepFor(sit, e)
		revisit = soonest(revisit, again)
		if step.Action != Wait {
			due = append(due, step)
		}
	}
	if len(due) == 0 {
		return Step{Action: Wait, Revisit: revisit}
	}
	next := slices.MinFunc(due, urgency)
	next.Revisit = revisit
	return next
}

// stepFor is the step that one entry asks for, or Wait, and when to ask again.
func (s Settings) stepFor(sit Situation, e record.Entry) (Step, time.Time) {
	none := Step{Action: Wait}
	if e.Phase == record.Closed {
		return none, time.Time{}
	}
	ending, revisit := s.standing(sit, e)
	if ending != "" || s.rescheduled(sit, e) {
		if !e.Cordon || s.neededByOther(sit, e) {
			return none, revisit
		}
		step := Step{Action: Uncordon, Event: e.Event, AfterReboot: e.BootID != sit.BootID, Ending: ending, Reason: undoReason(ending)}
		return ifDue(sit, e, step, revisit)
	}
	p := s.plan(e)
	if p.action != Cordon && p.action != Drain || done(e.Phase, p.action) || !sit.announced(e) {
		return none, revisit
	}
	if p.start.After(sit.Now) {
		return none, soonest(revisit, p.start)
	}
	step := Step{Action: p.action, Event: e.Event, Hard: p.hard, Reason: reason(e.Event)}
	if p.action == Drain && !p.deadline.IsZero() {
		step.Deadline = p.deadline
		if !step.Deadline.After(sit.Now) {
			step.Deadline = sit.Now.Add(overtime)
		}
	}
	return ifDue(sit, e, step, revisit)
}

// Again returns when an announced event may call for a step without further news: now if one is due, zero if never. It
// expects a record that Fold has brought up to date.
func (s Settings) Again(sit Situation, ev event.Event) time.Time {
	for _, e := range sit.Past {
		if e.Event.ID != ev.ID {
			continue
		}
		step, again := s.stepFor(sit, e)
		if step.Action != Wait {
			return sit.Now
		}
		return again
	}
	return time.Time{}
}

// done tells whether a phase is as far as an action goes.
func done(phase record.Phase, action Action) bool {
	switch phase {
	case record.Drained:
		return true
	case record.Cordoned, record.Incomplete:
		return action == Cordon
	case record.Seen, record.Cordoning, record.Draining, record.Undoing, record.Closed:
	}
	return false
}

// ifDue holds a step back for a while after an attempt at it that ended in an error. An attempt under way has none.
func ifDue(sit Situation, e record.Entry, step Step, revisit time.Time) (Step, time.Time) {
	if e.Error == "" || e.Changed.After(sit.Now) {
		return step, revisit
	}
	if again := e.Changed.Add(pause(e.Failures)); again.After(sit.Now) {
		return Step{Action: Wait}, soonest(revisit, again)
	}
	return step, revisit
}

// urgency orders steps, the first to take first.
func urgency(a, b Step) int {
	rank := map[Action]int{Drain: 0, Cordon: 1, Uncordon: 2}
	return cmp.Or(
		cmp.Compare(rank[a.Action], rank[b.Action]),
		byDeadline(a.Deadline, b.Deadline),
		byDeadline(a.Event.Deadline, b.Event.Deadline),
		cmp.Compare(kindOrder(a.Event.Kind), kindOrder(b.Event.Kind)),
		cmp.Compare(a.Event.ID, b.Event.ID),
	)
}

// byDeadline puts the nearer deadline first, and none last.
func byDeadline(a, b time.Time) int {
	if a.IsZero() != b.IsZero() {
		if a.IsZero() {
			return 1
		}
		return -1
	}
	return a.Compare(b)
}

func kindOrder(k event.Kind) int { return slices.Index(event.AllKinds(), k) }

func reason(ev event.Event) string {
	at := ""
	if !ev.Deadline.IsZero() {
		at = " at " + ev.Deadline.UTC().Format("15:04:05 UTC on 2 Jan 2006")
	}
	switch ev.Kind {
	case event.SpotInterruption:
		return fmt.Sprintf("EC2 will %s this spot instance%s", ev.Code, at)
	case event.RebalanceRecommendation:
		return "EC2 recommends to rebalance away from this spot instance"
	case event.ScheduledMaintenance:
		return fmt.Sprintf("EC2 has scheduled %s%s", ev.Code, at)
	case event.ASGTermination:
		if at != "" {
			at = "," + at + " at the latest"
		}
		return "the Auto Scaling group terminates this instance" + at
	case event.Shutdown:
		return "the system is shutting down"
	case event.ReservationEnd:
		return fmt.Sprintf("the %s reservation of this instance ends%s", ev.Code, at)
	case event.StateChange:
		return "EC2 says that the instance is " + ev.Code
	}
	return string(ev.Kind)
}

func undoReason(ending record.Ending) string {
	switch ending {
	case record.Withdrawn:
		return "the event was withdrawn"
	case record.Canceled:
		return "the event was canceled"
	case record.Completed:
		return "the event is over"
	case record.Rebooted:
		return "the machine is back after its reboot"
	case record.Expired:
		return "the cordon's time to live ended"
	}
	return "the event was moved to a later time"
}

// Describe says in words what an entry's event is and what will be done about it, when.
func (s Settings) Describe(e record.Entry) string {
	text := reason(e.Event)
	p := s.plan(e)
	switch {
	case p.action == Ignore || p.action == Notify:
		return text + "; nothing will be done"
	case done(e.Phase, p.action):
		return text + "; nothing more will be done"
	case p.start.After(e.Changed):
		return fmt.Sprintf("%s; %s at %s", text, p.action, p.start.UTC().Format("15:04:05 UTC on 2 Jan 2006"))
	}
	return fmt.Sprintf("%s; %s now", text, p.action)
}
