// Package policy decides, and does nothing else.
//
// It is pure: from the time, the announced events, the record, the state of the node and the settings it derives what the
// record should say (Fold) and the one goal for the node (Decide), with the reason in words. It reads no clock, calls
// nothing and remembers nothing, so that the same situation gives the same goal after a crash, an upgrade or a reboot.
package policy

import (
	"hash/fnv"
	"slices"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/state"
)

// Action is what nth does about an event. Its text is the one in the configuration.
type Action string

// The actions, from the weakest to the strongest.
const (
	Ignore Action = "ignore"
	Notify Action = "notify"
	Cordon Action = "cordon"
	Drain  Action = "drain"
)

// The actions that only a Goal can have.
const (
	// Uncordon takes back what a cordon or a drain has set on the node.
	Uncordon Action = "uncordon"
	// Wait leaves the node as it is.
	Wait Action = "wait"
)

// When says when a maintenance event is acted upon; see Rule.Codes.
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

// OtherCodes is the key in Rule.Codes for all codes that have no key of their own.
const OtherCodes = "other"

// Rule is how events of one kind are treated.
type Rule struct {
	Action Action
	// Hibernate replaces a stronger Action for a spot instance that will be hibernated; "" changes nothing.
	Hibernate Action
	// Codes says for each maintenance code when it is acted upon; nil means at once.
	Codes map[string]When
	// Lead is how long before the deadline the action begins at the latest for codes with Lead, and Window how long before it the
	// action begins at the earliest for codes with Window. The instances of a fleet begin one after another, over Spread; none
	// of them gets less than Lead.
	Lead, Window, Spread time.Duration
	// Hard: the machine is gone at the deadline, so pods that resist eviction are deleted in time.
	Hard bool
	// Budget is the time for an event without a deadline, counted from when it was first seen; 0 means as
	// long as the event stands. For a spot interruption and a termination by the Auto Scaling group it is also the most that
	// they get from when they were first seen: EC2 gives two minutes from the notice, and the document says about when.
	Budget time.Duration
	// SoftBudget: the machine outlives the Budget, so that this is a soft deadline, even if Hard is set.
	SoftBudget bool
	// CordonFor is how long a cordon without a drain lasts; 0 means as long as the event stands.
	CordonFor time.Duration
	// WithdrawnAfter is how long an event must be missing from a readable document before it counts as withdrawn.
	WithdrawnAfter time.Duration
}

// Settings holds the rule of each kind. A kind without a rule is ignored.
type Settings map[event.Kind]Rule

// Situation is everything that a decision is based on.
type Situation struct {
	Now    time.Time
	BootID string
	// Known is what the source of each kind reported last. A kind without a good look since the start has no key:
	// unknown is different from none.
	Known map[event.Kind][]event.Event
	// Failing has the kinds whose last look failed, with the time of the last good look; zero if there was none since the
	// start. What was last known still stands, but an event is not withdrawn while it cannot be looked for.
	Failing map[event.Kind]time.Time
	// Past is the record.
	Past []state.Entry
	// Node is what the guard reported of the node. It holds for the events whose IDs are in NodeFor; for all if that is nil.
	Node    Node
	NodeFor []string
}

// Node is what the guard reported of the node. The zero value means that nothing is known.
type Node struct {
	// Closed: it takes no more pods. Drained: it is closed, or never will be, and no pod is left that has to go.
	Closed, Drained bool
	// Looked: the Node was read. Then NoCordon says that operators want it left as it is, and NoDrain that they want its pods left alone.
	Looked, NoCordon, NoDrain bool
	// CordonStamp is when it was cordoned, by the API server's clock; zero if that is not known.
	CordonStamp time.Time
}

// node is what the guard reported of the node for an entry's event.
func (sit Situation) node(e state.Entry) Node {
	if sit.NodeFor != nil && !slices.Contains(sit.NodeFor, e.Event.ID) {
		return Node{}
	}
	return sit.Node
}

// leftAlone reports whether operators want no such work on the node: by the last look at it or, until there was one since the event joined, by
// the record.
func (sit Situation) leftAlone(e state.Entry, work state.Phase) bool {
	node := sit.node(e)
	if !node.Looked {
		return e.LeftAlone
	}
	return node.NoCordon || work == state.Draining && node.NoDrain
}

// Goal is the state that the node is to reach. Zero times mean never.
type Goal struct {
	// Action is Drain or Cordon for a node that is to be closed, Uncordon if everything of ours is to be taken off the
	// node, and Wait if the node is to stay as it is.
	Action Action
	// Event is the most urgent event that wants the goal; one whose cordon nobody has lifted, if there is one. Events are the
	// IDs of all events that want it, the most urgent first.
	Event  event.Event
	Events []string
	// Hard is when the machine is gone, and Soft when the work should be done: the nearest such deadline of all events that
	// are due. Both may have passed; a Hard that has passed gives way to one that is still to come.
	Hard, Soft time.Time
	// TimeEnds is when the next event that the node is drained for runs out of time; an event that begins after its deadline
	// gets a while. It has passed if that is so for all. Where there is a hard deadline, soft events do not count.
	TimeEnds time.Time
	// Close: the node is to be cordoned. With a Drain or a Cordon it is false if an operator has uncordoned the node for all events.
	Close bool
	// Before is set if an operator has uncordoned the node for all events that it is drained for: it is the time of the latest
	// cordon, and only pods that were there then are evicted. It is by the API server's clock, if that is recorded.
	Before time.Time
	// Reason says in words why this is the goal.
	Reason string
	// Revisit is when to decide again even without news; zero if only news can change the decision.
	Revisit time.Time
}

// Deadline is the nearer of Hard and Soft; zero if there is none.
func (g Goal) Deadline() time.Time { return soonest(g.Hard, g.Soft) }

const (
	// overtime is the time for an event whose deadline has passed before work for it began, while the machine is still there:
	// enough for most pods to terminate by themselves, short enough to be a last effort.
	overtime = 30 * time.Second
	// uncordonPause is the pause after an attempt to uncordon that failed.
	uncordonPause = 30 * time.Second
)

// plan is what the settings ask for about one entry.
type plan struct {
	action   Action
	start    time.Time // zero: at once
	deadline time.Time
	hard     bool
}

// plan returns what the rules ask for about an entry: the action, when it begins, and the deadline.
func (s Settings) plan(e state.Entry) plan {
	rule := s[e.Event.Kind]
	p := plan{action: rule.Action, deadline: e.Event.Deadline, hard: rule.Hard}
	if p.action == "" {
		p.action = Ignore
	}
	if e.Event.Kind == event.SpotInterruption && e.Event.Code == "hibernate" {
		p.action = weaker(p.action, rule.Hibernate)
	}
	// An entry made from the claim on the Node has no code yet: what was done stands until the source reports the event.
	if claimed := e.Event.State == ""; e.Event.Kind == event.ScheduledMaintenance && !claimed {
		p = rule.forCode(p, e.Event)
	}
	return rule.limit(p, e)
}

// limit keeps a plan within the rule's Budget.
func (r Rule) limit(p plan, e state.Entry) plan {
	if r.Budget <= 0 { // no limit
		return p
	}
	timeless := p.deadline.IsZero()
	p.hard = p.hard && !(timeless && r.SoftBudget)
	switch e.Event.Kind {
	case event.ASGTermination, event.SpotInterruption:
		p.deadline = soonest(p.deadline, e.FirstSeen.Add(r.Budget))
	default:
		if timeless {
			p.deadline = e.FirstSeen.Add(r.Budget)
		}
	}
	return p
}

// forCode returns the plan with what the rule says of the code of scheduled maintenance: whether to act, and from when on.
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

// begins is when the action for an event begins, if the first instance of a fleet begins the time ahead before the deadline. It is zero, which
// means at once, for an event without a deadline.
func (r Rule) begins(ev event.Event, ahead time.Duration) time.Time {
	if ev.Deadline.IsZero() {
		return time.Time{}
	}
	return ev.Deadline.Add(r.offset(ev.Instance) - ahead)
}

// offset is how much later than the first instance of a fleet this one begins: whole seconds, less than Spread. It depends on
// nothing but the instance's ID, so that it is the same after a restart, for nth and for nth-queue. Without an ID it is 0.
func (r Rule) offset(instance string) time.Duration {
	seconds := uint64(r.Spread / time.Second)
	if instance == "" || seconds == 0 {
		return 0
	}
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(instance)) // It never fails.
	return time.Duration(hash.Sum64()%seconds) * time.Second
}

// weaker is the weaker of two actions; the first if the other one is "".
func weaker(a, b Action) Action {
	fromWeakest := []Action{Ignore, Notify, Cordon, Drain}
	if b != "" && slices.Index(fromWeakest, b) < slices.Index(fromWeakest, a) {
		return b
	}
	return a
}

// Asks is the action that the rules ask for about an entry's event, once its time has come.
func (s Settings) Asks(e state.Entry) Action { return s.plan(e).action }

// Ignores reports whether the rules ignore an entry's event.
func (s Settings) Ignores(e state.Entry) bool { return s.plan(e).action == Ignore }

// Deadline is when the time for an entry's event is over, zero if never, and whether the machine is gone then.
func (s Settings) Deadline(e state.Entry) (deadline time.Time, hard bool) {
	p := s.plan(e)
	return p.deadline, p.hard
}

// soonest returns the earlier of two times, where zero means never.
func soonest(a, b time.Time) time.Time {
	if a.IsZero() || (!b.IsZero() && b.Before(a)) {
		return b
	}
	return a
}

// latest returns the last of some times; zero comes before any other.
func latest(times ...time.Time) time.Time { return slices.MaxFunc(times, time.Time.Compare) }

// Find returns the entry of the event with that ID. met is false if the record has none.
func Find(entries []state.Entry, id string) (e state.Entry, met bool) {
	if i := index(entries, id); i >= 0 {
		return entries[i], true
	}
	return state.Entry{}, false
}

// index returns where the entry of the event with that ID is; -1 if there is none.
func index(entries []state.Entry, id string) int {
	return slices.IndexFunc(entries, func(e state.Entry) bool { return e.Event.ID == id })
}

// SameNews reports whether two entries of one event differ in nothing that operators get to see. The rest is bookkeeping.
func SameNews(a, b state.Entry) bool {
	return sameEvent(a.Event, b.Event) && a.Phase == b.Phase && a.Missing.Equal(b.Missing) && a.Ending == b.Ending
}

// sameEvent compares events; a time is the same in every zone.
func sameEvent(a, b event.Event) bool {
	times := a.Noticed.Equal(b.Noticed) && a.Deadline.Equal(b.Deadline) && a.Until.Equal(b.Until)
	a.Noticed, a.Deadline, a.Until = b.Noticed, b.Deadline, b.Until
	return times && a == b
}
