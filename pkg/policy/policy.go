// Package policy decides, and does nothing else.
//
// It is pure: from the time, the events that are announced, what was done before, what is known of the node and the
// settings it derives what the record should say (Fold) and the one goal for the node (Decide), with the reason in words.
// It reads no clock, calls nothing and remembers nothing, so that the same situation gives the same goal after a crash,
// an upgrade or a reboot.
package policy

import (
	"hash/fnv"
	"slices"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/state"
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
	// Wait is the goal when the node is to stay as it is.
	Wait Action = "wait"
)

// Exceeds tells whether an action, from Ignore to Drain, does more to a node than another; any does more than "".
func (a Action) Exceeds(other Action) bool {
	order := []Action{Ignore, Notify, Cordon, Drain}
	return slices.Index(order, a) > slices.Index(order, other)
}

// When says for a maintenance code when its kind's action takes place.
type When string

// The times of a maintenance action.
const (
	// Now: as soon as the event is announced.
	Now When = "now"
	// Lead: the rule's Lead before the maintenance begins, or up to Spread sooner.
	Lead When = "lead"
	// Window: near the date, the rule's Window before the maintenance begins, or up to Spread later.
	Window When = "window"
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
	// Lead is how long before the deadline the action begins at the latest, for codes that wait, and Window how long before
	// it those begin that say so. Over Spread the instances of a fleet begin one after another; none has less than Lead. The
	// end of a reservation is waited for until Lead before it, too, unless that is 0.
	Lead, Window, Spread time.Duration
	// Kept is how long after notice was given an event can be waited with, as its announcement is lost then; 0 is for ever.
	Kept time.Duration
	// Hard tells that the machine is gone at the deadline: pods that resist eviction are deleted in time.
	Hard bool
	// Budget is the time given to an event that brings no deadline, counted from when it was first seen, or from when it has lost
	// the deadline that it had; 0 means as long as the event stands. A spot interruption and a termination by the Auto Scaling
	// group have no more than that from when they were first seen, whatever they bring: EC2 gives two minutes from the notice, and
	// the machine's clock may be wrong.
	Budget time.Duration
	// SoftBudget tells that the machine outlives the Budget of an event that brings no deadline: it is a soft one then, also if Hard.
	SoftBudget bool
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
	// Up is how long this process has been at it.
	Up time.Duration
	// Known holds what each kind's source last said. A kind that has not been looked at since the start is not in it:
	// unknown is different from none.
	Known map[event.Kind][]event.Event
	// Failing holds the kinds whose last look failed, with the time of the last good one; zero if there was none since
	// the start. What was last known of them stands, but time that passes meanwhile proves nothing.
	Failing map[event.Kind]time.Time
	// Unwatched holds the kinds that nobody looks for; nil if somebody looks for each.
	Unwatched map[event.Kind]bool
	// Past is the record.
	Past []state.Entry
	// Node is what the guard has told of the node, and NodeFor are the IDs of the events for which it was told so; nil for all.
	Node    Node
	NodeFor []string
	// LookedFor are the IDs of the events for which the node has been looked at since they came, in this process, and DrainedFor of those
	// for which it was then said to be drained. Limited tells that people want its pods left alone, as the last look has shown.
	LookedFor, DrainedFor []string
	Limited               bool
	// Before tells that what is on the node may be from before the machine was booted, whatever the record says, and Ready that the
	// kubelet has reported the node Ready since.
	Before, Ready bool
}

// Node is what a guard has told of the node. The zero value is that of a node that none has told of.
type Node struct {
	// Closed: it takes no more pods. Left: people want it left as it is. Ours: something on it is ours to take back.
	Closed, Left, Ours bool
	// Drained: it is closed, or will never be, and nothing is left that has to go.
	Drained bool
}

// node is what the guard has told of the node for an entry's event.
func (sit Situation) node(e state.Entry) Node {
	if sit.NodeFor != nil && !slices.Contains(sit.NodeFor, e.Event.ID) {
		return Node{}
	}
	return sit.Node
}

// looked tells whether the node has been looked at since an entry's event came.
func (sit Situation) looked(e state.Entry) bool { return slices.Contains(sit.LookedFor, e.Event.ID) }

// leftAlone tells whether people want the node's pods left alone: as a look has shown or, before the first, as the record says.
func (sit Situation) leftAlone(e state.Entry) bool {
	return sit.looked(e) && sit.Limited || !sit.looked(e) && e.LeftAlone
}

// Goal is what the node is to come to. Zero times mean never.
type Goal struct {
	// Action is Drain or Cordon for a node that is to be closed, Uncordon for one of which everything of ours is to be
	// taken, and Wait for one that is to stay as it is.
	Action Action
	// Event is the one that comes first of those that want it, and whose cordon nobody has lifted if there is such a one.
	// Events are the IDs of all, in order, and Unclosed of those among them that the node was not closed for yet, and
	// Anew of those of the latter that have begun anew, so that what was done for them before counts no more.
	Event                  event.Event
	Events, Unclosed, Anew []string
	// Hard is when the machine is gone, and Soft when the work should have ended: each the nearest of all events that are
	// due. They may be over; a Hard that is over gives way to one that is to come.
	Hard, Soft time.Time
	// TimeEnds is when the next event that is drained for runs out of its time, which is a while where it began after its deadline. It is
	// over if all have. Where a machine is lost, soft events do not count.
	TimeEnds time.Time
	// Reopened is set if someone uncordoned the node for all events that the node is drained for: when it had been set. Only
	// pods go that were there then. Open tells that it was lifted for all events, also for those that only want a cordon.
	Reopened time.Time
	Open     bool
	// AfterReboot tells for an Uncordon that the machine has been rebooted since the cordon, so that the node must be
	// Ready before it takes pods again.
	AfterReboot bool
	// Ending says for an Uncordon how the event ended; empty if it still stands.
	Ending state.Ending
	// Reason says in words why this is the goal.
	Reason string
	// Revisit is when to decide again even if nothing changes; zero if only news can change the decision.
	Revisit time.Time
}

// Deadline is the nearer of the two deadlines; zero if there is none.
func (g Goal) Deadline() time.Time { return soonest(g.Hard, g.Soft) }

const (
	// overtime is what an event gets that is acted upon when its deadline is over and the machine is still there: enough
	// for most pods to end by themselves, short enough to be a last effort.
	overtime = 30 * time.Second
	// firstPause and longestPause bound the wait before a failed attempt is repeated; each failure doubles it.
	firstPause   = 2 * time.Second
	longestPause = time.Minute
	// unwatchedAfter is how long an event is believed that nobody looks for any more, as far as its rule does not say
	// longer. A machine that goes down may have lost its logind.
	unwatchedAfter = 10 * time.Minute
)

// plan is what the settings want done about one entry.
type plan struct {
	action   Action
	start    time.Time // zero: at once
	deadline time.Time
	hard     bool
}

func (s Settings) plan(e state.Entry) plan {
	rule := s[e.Event.Kind]
	p := plan{action: rule.Action, deadline: e.Event.Deadline, hard: rule.Hard}
	if p.action == "" {
		p.action = Ignore
	}
	if e.Event.Kind == event.SpotInterruption && e.Event.Code == "hibernate" {
		p.action = weaker(p.action, rule.Hibernate)
	}
	// A claim that was found on the Node does not say the code: until its source has spoken, what was done stands.
	if claimed := e.Event.State == ""; e.Event.Kind == event.ScheduledMaintenance && !claimed {
		p = rule.forCode(p, e.Event)
	}
	if e.Event.Kind == event.ReservationEnd && rule.Lead > 0 && !p.deadline.IsZero() {
		p.start = p.deadline.Add(-rule.Lead)
	}
	return rule.within(p, e)
}

// within is a plan that keeps to the rule's budget.
func (r Rule) within(p plan, e state.Entry) plan {
	if r.Budget <= 0 {
		return p
	}
	timeless := p.deadline.IsZero()
	p.hard = p.hard && !(timeless && r.SoftBudget)
	switch e.Event.Kind {
	case event.ASGTermination, event.SpotInterruption:
		p.deadline = soonest(p.deadline, e.FirstSeen.Add(r.Budget))
	default:
		if timeless {
			p.deadline = latest(e.FirstSeen, e.Timeless).Add(r.Budget)
		}
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
		p.start = r.begins(ev, r.Lead+r.Spread)
	case Window:
		p.start = r.begins(ev, max(r.Window, r.Lead+r.Spread))
	case Now:
	}
	return p
}

// begins is when the action for an event begins of which the first instance's does that long before the deadline; zero, which is
// at once, if there is none.
func (r Rule) begins(ev event.Event, ahead time.Duration) time.Time {
	if ev.Deadline.IsZero() {
		return time.Time{}
	}
	first := ev.Deadline.Add(-ahead)
	if r.Kept > 0 && !ev.Noticed.IsZero() {
		first = soonest(first, ev.Noticed.Add(r.Kept-r.Spread))
	}
	return first.Add(r.share(ev.Instance))
}

// share is how much later than the first of a fleet an instance begins: less than Spread, in whole seconds. It follows from the ID
// alone, so that it is the same after a restart, and for whoever decides about the instance. One that is not known is the first.
func (r Rule) share(instance string) time.Duration {
	seconds := uint64(r.Spread / time.Second)
	if instance == "" || seconds == 0 {
		return 0
	}
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(instance)) // It never fails.
	return time.Duration(hash.Sum64()%seconds) * time.Second
}

func weaker(a, b Action) Action {
	for _, weakest := range []Action{Ignore, Notify, Cordon} {
		if a == weakest || b == weakest {
			return weakest
		}
	}
	return a
}

// pause is how long to wait after that many failures in a row.
func pause(failures int) time.Duration {
	const doubled = 5 // times, and it is the longest
	return min(firstPause<<min(max(failures-1, 0), doubled), longestPause)
}

// Begins is when what an entry's rule asks for is begun; zero if at once.
func (s Settings) Begins(e state.Entry) time.Time { return s.plan(e).start }

// Asks is what an entry's rule asks for once its time has come.
func (s Settings) Asks(e state.Entry) Action { return s.plan(e).action }

// Ignores tells whether an entry's event is, by the rules, nobody's business.
func (s Settings) Ignores(e state.Entry) bool { return s.plan(e).action == Ignore }

// soonest returns the earlier of two times, where zero means never.
func soonest(a, b time.Time) time.Time {
	if a.IsZero() || (!b.IsZero() && b.Before(a)) {
		return b
	}
	return a
}

func latest(times ...time.Time) time.Time { return slices.MaxFunc(times, time.Time.Compare) }
