package policy_test

import (
	"fmt"
	"strings"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/record"
)

// The words that the tables are written in. Times are offsets from noon.

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func at(offset time.Duration) time.Time { return noon.Add(offset) }

const (
	thisBoot    = "this-boot"
	earlierBoot = "earlier-boot"
)

// rules are the defaults of the configuration.
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

type detail func(*record.Entry)

// entry is a record's entry of an event that was met at noon, in this boot. What was acted upon holds a cordon.
func entry(ev event.Event, phase record.Phase, details ...detail) record.Entry {
	e := record.Entry{Event: ev, Phase: phase, BootID: thisBoot, ListedIn: thisBoot, FirstSeen: noon, Changed: noon}
	if e.Acted() {
		e.Cordon, e.CordonedAt, e.ActedFor = true, noon, ev.Deadline
	}
	for _, d := range details {
		d(&e)
	}
	return e
}

func before(e *record.Entry)         { e.BootID, e.ListedIn = earlierBoot, earlierBoot }
func listedHere(e *record.Entry)     { e.ListedIn = thisBoot }
func foreign(e *record.Entry)        { e.Cordon = false }
func adopted(e *record.Entry)        { e.ActedFor, e.Missing = time.Time{}, noon }
func missing(t time.Duration) detail { return func(e *record.Entry) { e.Missing = at(t) } }
func seenAt(t time.Duration) detail  { return func(e *record.Entry) { e.FirstSeen = at(t) } }
func actedFor(t time.Duration) detail {
	return func(e *record.Entry) { e.ActedFor = at(t) }
}
func closed(how record.Ending) detail { return func(e *record.Entry) { e.Ending = how } }

func failed(times int, t time.Duration) detail {
	return func(e *record.Entry) { e.Error, e.Failures, e.Changed = "refused", times, at(t) }
}

func past(entries ...record.Entry) []record.Entry { return entries }

// describeStep is a step in the language of the tables, such as "drain a until 2m0s hard; again at 30s".
func describeStep(s policy.Step) string {
	text := string(s.Action)
	if s.Action != policy.Wait {
		text += " " + s.Event.ID
	}
	if !s.Deadline.IsZero() {
		text += " until " + s.Deadline.Sub(noon).String()
	}
	if s.Hard {
		text += " hard"
	}
	if s.Action == policy.Uncordon {
		text += " (" + string(s.Ending) + ")"
	}
	if s.AfterReboot {
		text += " when ready"
	}
	if !s.Revisit.IsZero() {
		text += "; again at " + s.Revisit.Sub(noon).String()
	}
	return text
}

// describeEntries is what Fold returned in the language of the tables, such as "a seen, b closed withdrawn".
func describeEntries(entries []record.Entry) string {
	var all []string
	for _, e := range entries {
		text := fmt.Sprintf("%s %s", e.Event.ID, e.Phase)
		if e.Ending != "" {
			text += " " + string(e.Ending)
		}
		if !e.Missing.IsZero() {
			text += " missing since " + e.Missing.Sub(noon).String()
		}
		if e.Cordon {
			text += " cordoned"
		}
		all = append(all, text)
	}
	return strings.Join(all, ", ")
}
