package policy_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
)

// The words that the tables are written in. Times are offsets from noon.

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func at(offset time.Duration) time.Time { return noon.Add(offset) }

const (
	thisBoot    = "this-boot"
	earlierBoot = "earlier-boot"
)

// rules are the defaults of the configuration, but for the two minutes of a spot notice, which have tests of their own.
func rules() policy.Settings {
	return policy.Settings{
		event.SpotInterruption: {
			Action: policy.Drain, Hibernate: policy.Cordon, Hard: true, WithdrawnAfter: 30 * time.Second,
		},
		event.RebalanceRecommendation: {
			Action: policy.Notify, CordonFor: time.Hour, WithdrawnAfter: 30 * time.Second,
		},
		event.ScheduledMaintenance: {
			Action: policy.Drain, Lead: 10 * time.Minute, WithdrawnAfter: time.Hour,
			Codes: map[string]policy.When{
				"instance-stop": policy.Now, "instance-retirement": policy.Now,
				"system-reboot": policy.Lead, "instance-reboot": policy.Lead,
				"system-maintenance": policy.OnlyNotify, policy.OtherCodes: policy.OnlyNotify,
			},
		},
		event.ASGTermination: {
			Action: policy.Drain, Hard: true, Budget: 15 * time.Minute, WithdrawnAfter: 30 * time.Second,
		},
		event.Shutdown: {Action: policy.Drain, Hard: true},
	}
}

// with returns the rules with that of one kind changed.
func with(kind event.Kind, change func(*policy.Rule)) policy.Settings {
	s := rules()
	rule := s[kind]
	change(&rule)
	s[kind] = rule
	return s
}

func withAction(kind event.Kind, action policy.Action) policy.Settings {
	return with(kind, func(r *policy.Rule) { r.Action = action })
}

// twoMinutes is the rules with what EC2 gives a spot instance.
func twoMinutes() policy.Settings {
	return with(event.SpotInterruption, func(r *policy.Rule) { r.Budget = 2 * time.Minute })
}

func spot(id string, deadline time.Duration) event.Event {
	return event.Event{ID: id, Kind: event.SpotInterruption, Code: "terminate", State: event.Pending, Deadline: at(deadline)}
}

func hibernation(id string, deadline time.Duration) event.Event {
	ev := spot(id, deadline)
	ev.Code = "hibernate"
	return ev
}

func maintenance(id, code string, deadline time.Duration) event.Event {
	return event.Event{ID: id, Kind: event.ScheduledMaintenance, Code: code, State: event.Pending, Deadline: at(deadline)}
}

func termination(id string) event.Event {
	return event.Event{ID: id, Kind: event.ASGTermination, Code: "Terminated", State: event.Pending}
}

func rebalance(id string) event.Event {
	return event.Event{ID: id, Kind: event.RebalanceRecommendation, State: event.Pending}
}

func shutdown(id string, deadline time.Duration) event.Event {
	return event.Event{ID: id, Kind: event.Shutdown, State: event.Pending, Deadline: at(deadline)}
}

func inState(ev event.Event, state event.State) event.Event {
	ev.State = state
	return ev
}

func timeless(ev event.Event) event.Event {
	ev.Deadline = time.Time{}
	return ev
}

// known is what the sources say if all have been asked: these events and no others.
func known(events ...event.Event) map[event.Kind][]event.Event {
	all := map[event.Kind][]event.Event{}
	for _, kind := range event.Kinds() {
		all[kind] = nil
	}
	for _, ev := range events {
		all[ev.Kind] = append(all[ev.Kind], ev)
	}
	return all
}

// failing is said of all kinds: looks fail, and the last good one was then.
func failing(lastGood time.Time) map[event.Kind]time.Time {
	all := map[event.Kind]time.Time{}
	for _, kind := range event.Kinds() {
		all[kind] = lastGood
	}
	return all
}

type detail func(*state.Entry)

// entry is a record's entry of an event that was met at noon, in this boot. What was acted upon holds a cordon.
func entry(ev event.Event, phase state.Phase, details ...detail) state.Entry {
	e := state.Entry{Event: ev, Phase: phase, BootID: thisBoot, FirstSeen: noon, Changed: noon}
	if e.Acted() {
		e.OnNode, e.CordonedAt, e.ActedAt = true, noon, ev.Deadline
	}
	for _, d := range details {
		d(&e)
	}
	return e
}

func before(e *state.Entry)          { e.BootID = earlierBoot }
func foreign(e *state.Entry)         { e.OnNode = false }
func adopted(e *state.Entry)         { e.ActedAt, e.Missing = time.Time{}, noon }
func reopened(e *state.Entry)        { e.ReleasedAt = noon }
func leftAlone(e *state.Entry)       { e.LeftAlone = true }
func uncordoned(e *state.Entry)      { e.CordonedAt = time.Time{} }
func missing(t time.Duration) detail { return func(e *state.Entry) { e.Missing = at(t) } }
func actedAt(t time.Duration) detail {
	return func(e *state.Entry) { e.ActedAt = at(t) }
}
func begun(t time.Duration) detail    { return func(e *state.Entry) { e.Changed = at(t) } }
func cordoned(t time.Duration) detail { return func(e *state.Entry) { e.CordonedAt = at(t) } }
func stamped(t time.Duration) detail  { return func(e *state.Entry) { e.CordonStamp = at(t) } }
func closed(how state.Ending) detail  { return func(e *state.Entry) { e.Ending = how } }

func failed(t time.Duration) detail {
	return func(e *state.Entry) { e.Error, e.Changed = "refused", at(t) }
}

func past(entries ...state.Entry) []state.Entry { return entries }

// What a guard tells of the node.
var (
	closedNode = policy.Node{Cordoned: true}
	emptyNode  = policy.Node{Cordoned: true, Drained: true}
)

// brought is a situation in which Fold has nothing more to say. How often that takes is limited: an entry goes from one
// phase to the next, and there are few.
func brought(t *testing.T, s policy.Settings, sit policy.Situation) policy.Situation {
	t.Helper()
	book := newBook(sit.Past)
	for range 6 {
		changed := s.Fold(sit)
		if len(changed) == 0 {
			return sit
		}
		book.put(changed...)
		sit.Past = book.entries()
	}
	t.Errorf("Fold finds no end: %s", describeEntries(s.Fold(sit)))
	return sit
}

// describeGoal is a goal in the language of the tables, such as "drain a, b by 2m0s hard, by 1h0m0s soft; again at 30s".
func describeGoal(g policy.Goal) string {
	text := strings.TrimSpace(string(g.Action) + " " + strings.Join(g.Events, ", "))
	if len(g.Events) > 0 && g.Events[0] != g.Event.ID {
		text += " (first " + g.Event.ID + ")"
	}
	if !g.Hard.IsZero() {
		text += " by " + g.Hard.Sub(noon).String() + " hard"
	}
	if !g.Soft.IsZero() {
		text += " by " + g.Soft.Sub(noon).String() + " soft"
	}
	if !g.Before.IsZero() {
		text += " of what was there at " + g.Before.Sub(noon).String()
	}
	if (g.Action == policy.Drain || g.Action == policy.Cordon) && !g.Cordon {
		text += ", open"
	}
	if !g.Revisit.IsZero() {
		text += "; again at " + g.Revisit.Sub(noon).String()
	}
	return text
}

// describeEntries is what Fold returned in the language of the tables, such as "a seen, b closed withdrawn".
func describeEntries(entries []state.Entry) string {
	var all []string
	for _, e := range entries {
		text := fmt.Sprintf("%s %s", e.Event.ID, e.Phase)
		if e.Ending != "" {
			text += " " + string(e.Ending)
		}
		if !e.Missing.IsZero() {
			text += " missing since " + e.Missing.Sub(noon).String()
		}
		if e.OnNode {
			text += " on node"
		}
		if e.Released() {
			text += " reopened"
		}
		if e.LeftAlone {
			text += " left alone"
		}
		all = append(all, text)
	}
	return strings.Join(all, ", ")
}

// book is a record in memory.
type book struct {
	order []string
	byID  map[string]state.Entry
}

func newBook(entries []state.Entry) *book {
	b := &book{byID: map[string]state.Entry{}}
	b.put(entries...)
	return b
}

func (b *book) put(entries ...state.Entry) {
	for _, e := range entries {
		if _, met := b.byID[e.Event.ID]; !met {
			b.order = append(b.order, e.Event.ID)
		}
		b.byID[e.Event.ID] = e
	}
}

func (b *book) entries() []state.Entry {
	var all []state.Entry
	for _, id := range b.order {
		all = append(all, b.byID[id])
	}
	return all
}
