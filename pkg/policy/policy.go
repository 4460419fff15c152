// Package policy decides, and does nothing else.
//
// It is pure: a Situation and the Settings go in. Fold derives what the record should say, and Decide the one goal for the node. The package
// reads no clock, calls nothing and remembers nothing, so that the same situation gives the same goal after a crash, an upgrade or a reboot.
//
// The package uses these terms:
//   - A look reads a source of events once. It is good if the source answered, and then it says which events are announced.
//   - An event stands until it has an ending: it was withdrawn, canceled or completed, or the machine has survived it.
//   - A plan is what the rules ask for about an event. A want is what the event wants of the node now: its plan, or less if the event is not due, if
//     it is uncertain, or if operators have uncordoned the node.
//   - The guard is pkg/drain's work on the node: it cordons the node, evicts pods, and reports the node's state.
//   - Each event has an entry in the record, whose phase says how far nth has come with it: see package state.
//   - To act upon the node is to cordon or drain it for an event. Entry.Acted reports that, until what was done is taken back.
//   - An entry is released once an operator has uncordoned the node during its event.
//   - An entry is left alone while an annotation on the node forbids its work.
//
// A newcomer starts at Settings.want: it says what one event wants of the node.
package policy

import (
	"hash/fnv"
	"slices"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/hours"
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
	// Lead is how long before the deadline the action begins at the latest, for codes with Lead. Window is how long before the deadline the
	// action begins at the earliest, for codes with Window.
	Lead, Window time.Duration
	// Spread is the time over which the instances of a fleet begin, one after another. Each instance has at least Lead.
	Spread time.Duration
	// Hours are those in which the action for codes with Lead or Window begins, as far as the deadline allows; nil means at any time. The instances
	// of a fleet begin over all of them.
	Hours []hours.Hours
	// Reboot has the codes of the maintenance for which the machine is rebooted once the node is drained, once for each event. EC2 need not do it any
	// more. nth-queue may stop and start the machine, or replace it.
	Reboot []string
	// Hard: the machine is gone at the deadline, so pods that resist eviction are deleted in time.
	Hard bool
	// Budget is the time for an event without a deadline, counted from when it was first seen; 0 means as long as the event stands. For a spot
	// interruption and a termination by the Auto Scaling group, Budget also limits an announced deadline: EC2 gives two minutes from the notice,
	// and the document's time is approximate.
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
	// Known has the events of each kind that the last good look found. A kind without a good look since the start has no key.
	Known map[event.Kind][]event.Event
	// Failing has the kinds whose last look failed, with the time of the last good look; zero if there was none since the
	// start. Known stays as it was meanwhile, and no event of such a kind is withdrawn.
	Failing map[event.Kind]time.Time
	// Past is the record.
	Past []state.Entry
	// Node is what the guard reported of the node. NodeFor has the IDs of the events that this report is about; nil means all events.
	Node    Node
	NodeFor []string
}

// Node is what the guard reported of the node. The zero value means that nothing is known.
type Node struct {
	// Cordoned: the node takes no more pods. Drained: no pod is left that has to go, and the node is cordoned or never will be.
	Cordoned, Drained bool
	// Looked: the Node was read. MayNotCordon, MayNotEvict: its annotation forbids to cordon it, or to evict its pods. Both are false as long as
	// Looked is.
	Looked, MayNotCordon, MayNotEvict bool
	// CordonStamp is when the node was cordoned, by the API server's clock; zero if that is not known.
	CordonStamp time.Time
}

// nodeFor returns what the guard reported of the node for an entry's event; the zero value if the guard does not work for that event yet.
func (sit Situation) nodeFor(e state.Entry) Node {
	if sit.NodeFor != nil && !slices.Contains(sit.NodeFor, e.Event.ID) {
		return Node{}
	}
	return sit.Node
}

// leftAlone reports whether an annotation on the node forbids an entry's work, which is Cordoning or Draining. Until the guard has read the Node for
// the entry's event, what the record says stays true.
func (sit Situation) leftAlone(e state.Entry, work state.Phase) bool {
	node := sit.nodeFor(e)
	if !node.Looked {
		return e.LeftAlone
	}
	if work == state.Draining && node.MayNotEvict {
		return true
	}
	return node.MayNotCordon
}

// Goal is the state that the node is to reach. Zero times mean never.
type Goal struct {
	// Action is Drain or Cordon for a node that is to be cordoned, Uncordon if everything of ours is to be taken off the
	// node, and Wait if the node is to stay as it is.
	Action Action
	// Events are the IDs of all events that want the goal, the most urgent first.
	Events []string
	// Event is the first of them that is not released, or the first of all if operators have released them all.
	Event event.Event
	// Hard is when the machine is gone: the nearest hard deadline that is still to come, or else the first one. Soft is when the work should be
	// done: the nearest soft deadline. Both may have passed.
	Hard, Soft time.Time
	// TimeEnds is when the next event that the node is drained for runs out of time. It has passed if all these events have run out of time.
	// If one of them has a hard deadline, those with soft deadlines do not count.
	TimeEnds time.Time
	// Cordon: the node is to be cordoned. With a Drain or a Cordon it is false if an operator has uncordoned the node for all events.
	Cordon bool
	// Before is the time of the latest cordon, if an operator has uncordoned the node for all events that it is drained for. Then only pods
	// that were on the node at that time are evicted. The time is by the API server's clock, if that is recorded.
	Before time.Time
	// Reboot: the node is drained, and the machine is to be rebooted for all events.
	Reboot bool
	// Reason says in words why this is the goal.
	Reason string
	// Revisit is when to decide again even without news, for nth-queue; zero for never. See revisit.
	Revisit time.Time
}

// Deadline is the nearer of Hard and Soft; zero if there is none.
func (g Goal) Deadline() time.Time { return soonest(g.Hard, g.Soft) }

const (
	// overtime is the time for an event whose deadline had passed when work for it began, and whose machine is still running.
	// Most pods terminate by themselves within it.
	overtime = 30 * time.Second
	// rebootTime is how long it may take until a machine goes down after a request to reboot it. A machine that is still up was not rebooted.
	rebootTime = 10 * time.Minute
	// uncordonPause is the pause after an attempt to uncordon that failed.
	uncordonPause = 30 * time.Second
)

// plan is what the settings ask for about one entry.
type plan struct {
	action   Action
	deadline time.Time // when the action should have ended; zero: never
	hard     bool      // the machine is gone at the deadline
}

// plan returns what the rules ask for about an entry: the action and the deadline. When the action begins, start says.
func (s Settings) plan(e state.Entry) plan {
	rule := s[e.Event.Kind]
	p := plan{action: rule.Action, deadline: e.Event.Deadline, hard: rule.Hard}
	if p.action == "" { // The kind has no rule.
		p.action = Ignore
	}
	if e.Event.Kind == event.SpotInterruption && e.Event.Code == "hibernate" {
		p.action = weaker(p.action, rule.Hibernate)
	}
	if e.Event.Kind == event.ScheduledMaintenance && !e.OnlyClaimed() {
		switch rule.when(e.Event.Code) {
		case OnlyNotify:
			p.action = weaker(p.action, Notify)
		case Never:
			p.action = Ignore
		case Now, Lead, Window: // These are times: see start.
		}
	}
	return rule.withinBudget(p, e)
}

// withinBudget returns the plan with the deadline that the rule's Budget gives: see Rule.Budget.
func (r Rule) withinBudget(p plan, e state.Entry) plan {
	if r.Budget <= 0 { // There is no limit.
		return p
	}
	announced := !p.deadline.IsZero()
	limitsAnnounced := e.Event.Kind == event.ASGTermination || e.Event.Kind == event.SpotInterruption
	if !announced || limitsAnnounced {
		p.deadline = soonest(p.deadline, e.FirstSeen.Add(r.Budget))
	}
	if !announced && r.SoftBudget {
		p.hard = false
	}
	return p
}

// when returns what Rule.Codes says about a code of scheduled maintenance.
func (r Rule) when(code string) When {
	if when, named := r.Codes[code]; named {
		return when
	}
	return r.Codes[OtherCodes]
}

// start returns when the action for an entry's event begins on its instance; zero means at once. For maintenance with a deadline, the first instance
// of a fleet begins a fixed time before the deadline (ahead), and each other one begins its offset later. If Rule.Hours are left before the
// deadline, the instances begin in the last ones.
func (s Settings) start(sit Situation, e state.Entry) time.Time {
	rule, ev := s[e.Event.Kind], e.Event
	when := rule.when(ev.Code)
	isDated := ev.Kind == event.ScheduledMaintenance && !ev.Deadline.IsZero()
	switch {
	case isDated && sit.rebootIsOver(e): // What is left is EC2's own reboot or stop, at its time.
		return ev.Deadline.Add(-rule.Lead)
	case !isDated || when != Lead && when != Window:
		return time.Time{}
	}
	ahead := rule.Lead + rule.Spread
	if when == Window {
		ahead = max(rule.Window, ahead)
	}
	usual := ev.Deadline.Add(offset(ev.Instance, rule.Spread) - ahead)
	var earliest time.Time
	if !s.Reboots(ev) { // The node stays cordoned until the deadline: for hours, not for days.
		earliest = ev.Deadline.Add(-max(rule.Window, ahead))
	}
	from, to := hours.Last(rule.Hours, earliest, ev.Deadline.Add(-rule.Lead))
	begun := sit.Now
	if e.Acted() { // The hours in which the action began still count when they have ended.
		begun = e.ActedAt
	}
	if !to.After(begun) { // The hours are over, or there are none.
		return usual
	}
	return from.Add(offset(ev.Instance, to.Sub(from)))
}

// Reboots reports whether the machine is to be rebooted for an event.
func (s Settings) Reboots(ev event.Event) bool {
	return ev.Kind == event.ScheduledMaintenance && slices.Contains(s[ev.Kind].Reboot, ev.Code)
}

// rebootIsOver reports whether the reboot that was requested for an entry has happened or has not come. If EC2 still lists the event, the rest is
// left to EC2.
func (sit Situation) rebootIsOver(e state.Entry) bool {
	return !e.RebootAt.IsZero() && !sit.rebootIsUnderWay(e)
}

// rebootIsUnderWay reports whether the machine may go down at any moment for the reboot that was requested for an entry.
func (sit Situation) rebootIsUnderWay(e state.Entry) bool {
	return e.Acted() && e.BootID == sit.BootID && rebootWasRequested(e) && sit.Now.Before(e.RebootAt.Add(rebootTime))
}

// rebootWasRequested reports whether a reboot was requested for an entry since the work for it began last.
func rebootWasRequested(e state.Entry) bool {
	return !e.RebootAt.IsZero() && !e.RebootAt.Before(e.ActedAt)
}

// offset is how much later than the first instance of a fleet an instance begins: whole seconds, less than spread. It depends only on the
// instance's ID, so that nth and nth-queue compute the same, also after a restart. Without an ID it is 0.
func offset(instance string, spread time.Duration) time.Duration {
	seconds := uint64(spread / time.Second)
	if instance == "" || seconds == 0 {
		return 0
	}
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(instance)) // A hash never returns an error.
	return time.Duration(hash.Sum64()%seconds) * time.Second
}

// weaker returns the weaker of two actions; a if b is "".
func weaker(a, b Action) Action {
	fromWeakest := []Action{Ignore, Notify, Cordon, Drain}
	if b != "" && slices.Index(fromWeakest, b) < slices.Index(fromWeakest, a) {
		return b
	}
	return a
}

// Asks returns the action that the rules ask for about an entry's event, whether or not its time has come.
func (s Settings) Asks(e state.Entry) Action { return s.plan(e).action }

// Ignores reports whether the rules ignore an entry's event.
func (s Settings) Ignores(e state.Entry) bool { return s.plan(e).action == Ignore }

// Deadline returns when the work for an entry's event should have ended; zero means never. hard: the machine is gone then.
func (s Settings) Deadline(e state.Entry) (deadline time.Time, hard bool) {
	p := s.plan(e)
	return p.deadline, p.hard
}

// soonest returns the earlier of two times, where zero means never. It is like loop.Soonest, which this package may not import.
func soonest(a, b time.Time) time.Time {
	if a.IsZero() || (!b.IsZero() && b.Before(a)) {
		return b
	}
	return a
}

// latest returns the latest of some times, where zero comes before any other.
func latest(times ...time.Time) time.Time { return slices.MaxFunc(times, time.Time.Compare) }

// Find returns the entry of the event with that ID. found is false if there is no such entry.
func Find(entries []state.Entry, id string) (e state.Entry, found bool) {
	if i := index(entries, id); i >= 0 {
		return entries[i], true
	}
	return state.Entry{}, false
}

// index returns where the entry of the event with that ID is; -1 if there is none.
func index(entries []state.Entry, id string) int {
	return slices.IndexFunc(entries, func(e state.Entry) bool { return e.Event.ID == id })
}

// SameNews reports whether two entries of one event agree in all that is reported to operators as news of the event.
func SameNews(a, b state.Entry) bool {
	return sameEvent(a.Event, b.Event) && a.Phase == b.Phase && a.Missing.Equal(b.Missing)
}

// sameEvent reports whether two events are equal. Times are equal if they mean the same moment, whatever their zones.
func sameEvent(a, b event.Event) bool {
	sameTimes := a.Noticed.Equal(b.Noticed) && a.Deadline.Equal(b.Deadline) && a.Until.Equal(b.Until)
	a.Noticed, a.Deadline, a.Until = b.Noticed, b.Deadline, b.Until // Only the other fields are left to compare.
	return sameTimes && a == b
}
