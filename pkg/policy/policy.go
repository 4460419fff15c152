// Package policy decides, and does nothing else.
//
// It is pure: from the time, the events that are announced, what was done before and the settings it derives what the
// record should say (Fold) and the one step to take next (Decide), with the reason in words. It reads no clock, calls
// nothing and remembers nothing, so that the same situation gives the same step after a crash, an upgrade or a reboot.
package policy

import (
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/record"
)

// Action is what can be done about an event; the text is the one used in the configuration.
type Action string

// The actions, from the weakest to the strongest, and the undoing of the last two.
const (
	Ignore   Action = "ignore"
	Notify   Action = "notify"
	Cordon   Action = "cordon"
	Drain    Action = "drain"
	Uncordon Action = "uncordon"
	// Wait is the step to take when there is nothing to do yet.
	Wait Action = "wait"
)

// When says for a maintenance code when its kind's action takes place.
type When string

// The times of a maintenance action.
const (
	// Now: as soon as the event is announced.
	Now When = "now"
	// Lead: the rule's Lead before the window opens.
	Lead When = "lead"
	// OnlyNotify and Never replace the action.
	OnlyNotify When = "notify"
	Never      When = "ignore"
)

// OtherCodes is the key in Rule.Codes for codes that are not named there.
const OtherCodes = "other"

// Rule is how events of one kind are treated.
type Rule struct {
	Action Action
	// Hibernate replaces a stronger Action for a spot instance that will be hibernated; "" changes nothing.
	Hibernate Action
	// Codes says when a maintenance event of a code is acted upon; nil means at once.
	Codes map[string]When
	// Lead is how long before the deadline the action begins, for codes that say so.
	Lead time.Duration
	// Hard tells that the machine is gone at the deadline: pods that resist eviction are deleted in time.
	Hard bool
	// Budget is the time given to an event that brings no deadline, counted from when it was first seen; 0 means as
	// long as the event stands. A termination by its Auto Scaling group has its budget, or less if there is less time.
	Budget time.Duration
	// CordonFor is how long a cordon (without a drain) for such an event lasts; 0 means as long as the event stands.
	CordonFor time.Duration
	// WithdrawnAfter is how long an event must have been missing from a document that can be read before it counts as
	// withdrawn.
	WithdrawnAfter time.Duration
}

// Settings holds the rule of every kind. A kind without one is ignored.
type Settings map[event.Kind]Rule

// Situation is all that a decision is made from.
type Situation struct {
	Now    time.Time
	BootID string
	// Known holds what each kind's source last said. A kind that has not been looked at since the start is not in it:
	// unknown is different from none.
	Known map[event.Kind][]event.Event
	// Failing holds the kinds whose last look failed, with the time of the last good one; zero if there was none since
	// the start. What was last known of them stands, but time that passes meanwhile proves nothing.
	Failing map[event.Kind]time.Time
	// Past is the record.
	Past []record.Entry
}

// Step is what to do next. The zero Deadline means none.
type Step struct {
	Action Action
	// Event is the one that the step is for.
	Event event.Event
	// Deadline is when the step must have ended; Hard tells whether the machine is gone then.
	Deadline time.Time
	Hard     bool
	// AfterReboot tells for an Uncordon that the machine has been rebooted since the cordon, so that the node must be
	// Ready before it takes pods again.
	AfterReboot bool
	// Ending says for an Uncordon how the event ended; empty if it still stands and was only moved to a later time.
	Ending record.Ending
	// Reason says in words why this is the step.
	Reason string
	// Revisit is when to decide again even if nothing changes; zero if only news can change the decision.
	Revisit time.Time
}

// Same tells whether two steps are the same piece of work, so that one in flight need not give way to the other.
func (s Step) Same(o Step) bool {
	return s.Action == o.Action && s.Event.ID == o.Event.ID && s.Event.Deadline.Equal(o.Event.Deadline) && s.Hard == o.Hard
}

const (
	// overtime is what a drain gets when its deadline is over and the machine is still there: enough for most pods to
	// end by themselves, short enough to be a last effort.
	overtime = 30 * time.Second
	// firstPause and longestPause bound the wait before a failed attempt is repeated; each failure doubles it.
	firstPause   = 2 * time.Second
	longestPause = time.Minute
)

// plan is what the settings want done about one entry.
type plan struct {
	action   Action
	start    time.Time // zero: at once
	deadline time.Time
	hard     bool
}

func (s Settings) plan(e record.Entry) plan {
	rule := s[e.Event.Kind]
	p := plan{action: rule.Action, deadline: e.Event.Deadline, hard: rule.Hard}
	if p.action == "" {
		p.action = Ignore
	}
	if e.Event.Kind == event.SpotInterruption && e.Event.Code == "hibernate" {
		p.action = weaker(p.action, rule.Hibernate)
	}
	if e.Event.Kind == event.ScheduledMaintenance {
		p = rule.forCode(p, e.Event)
	}
	// A termination has a deadline only where Auto Scaling waits for less than the budget may be.
	if rule.Budget > 0 && (p.deadline.IsZero() || e.Event.Kind == event.ASGTermination) {
		p.deadline = soonest(p.deadline, e.FirstSeen.Add(rule.Budget))
	}
	return p
}

func (r Rule) forCode(p plan, ev event.Event) plan {
	when, named := r.Codes[ev.Code]
	if !named {
		when = r.Codes[OtherCodes]
	}
	switch when {
	case OnlyNotify:
		p.action = weaker(p.action, Notify)
	case Never:
		p.action = Ignore
	case Lead:
		if !ev.Deadline.IsZero() {
			p.start = ev.Deadline.Add(-r.Lead)
		}
	case Now:
	}
	return p
}

func weaker(a, b Action) Action {
	rank := map[Action]int{Ignore: 0, Notify: 1, Cordon: 2, Drain: 3}
	if b == "" || rank[a] <= rank[b] {
		return a
	}
	return b
}

// pause is how long to wait after that many failures in a row.
func pause(failures int) time.Duration {
	p := firstPause
	for range failures - 1 {
		if p *= 2; p >= longestPause {
			return longestPause
		}
	}
	return p
}

// Ignores tells whether an entry's event is, by the rules, nobody's business.
func (s Settings) Ignores(e record.Entry) bool { return s.plan(e).action == Ignore }
