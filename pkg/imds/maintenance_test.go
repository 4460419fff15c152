package imds_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/imds"
)

// planned is a reboot as EC2 lists it.
func planned(id, state string) string {
	return fmt.Sprintf(`{"NotBefore":"21 Jan 2019 09:00:43 GMT","Code":"system-reboot","Description":"scheduled reboot",`+
		`"EventId":%q,"NotAfter":"21 Jan 2019 09:17:23 GMT","State":%q}`, id, state)
}

// reboot is the event of planned.
func reboot(id string, state event.State) event.Event {
	return event.Event{
		ID: id, Kind: event.ScheduledMaintenance, Code: "system-reboot", State: state, Description: "scheduled reboot",
		Deadline: utc("2019-01-21T09:00:43Z"), Until: utc("2019-01-21T09:17:23Z"),
	}
}

// changed returns an event with a change.
func changed(e event.Event, change func(*event.Event)) event.Event {
	change(&e)
	return e
}

func listOf(entries ...string) string { return "[" + strings.Join(entries, ",") + "]" }

func TestScheduledMaintenanceIsRead(t *testing.T) {
	pending := reboot("i-1", event.Pending)
	entry := func(from, to string) string { return strings.Replace(planned("i-1", "active"), from, to, 1) }
	for name, test := range map[string]struct {
		body string
		want wanted
	}{
		"empty list": {`[]`, none},
		"empty body": {"\n", none},
		"active":     {listOf(planned("i-1", "active")), one(pending)},
		"two":        {listOf(planned("i-1", "active"), planned("i-2", "active")), wanted{events: []event.Event{pending, reboot("i-2", event.Pending)}}},
		"the same one twice": {listOf(planned("i-1", "active"), planned("i-1", "canceled")),
			one(reboot("i-1", event.Canceled))},
		"canceled":               {listOf(planned("i-1", "canceled")), one(reboot("i-1", event.Canceled))},
		"cancelled, in capitals": {listOf(planned("i-1", "CANCELLED")), one(reboot("i-1", event.Canceled))},
		"completed":              {listOf(planned("i-1", "Completed")), one(reboot("i-1", event.Completed))},
		"unknown state":          {listOf(planned("i-1", "dreaming")), one(pending)},
		"canceled by its description": {listOf(entry("scheduled reboot", "[Canceled] scheduled reboot")),
			one(changed(reboot("i-1", event.Canceled), func(e *event.Event) { e.Description = "[Canceled] scheduled reboot" }))},
		"completed by its description": {listOf(entry("scheduled reboot", "[completed] scheduled reboot")),
			one(changed(reboot("i-1", event.Completed), func(e *event.Event) { e.Description = "[completed] scheduled reboot" }))},
		"unknown code": {listOf(entry("system-reboot", "system-polish")),
			one(changed(pending, func(e *event.Event) { e.Code = "system-polish" }))},
		"no NotAfter": {listOf(entry(`"NotAfter":"21 Jan 2019 09:17:23 GMT",`, "")),
			one(changed(pending, func(e *event.Event) { e.Until = time.Time{} }))},
		"RFC 3339 dates": {listOf(entry("21 Jan 2019 09:00:43 GMT", "2019-01-21T10:00:43+01:00")), one(pending)},
		"a day of one digit": {listOf(entry("21 Jan 2019 09:00:43", "1 Jan 2019 09:00:43")),
			one(changed(pending, func(e *event.Event) { e.Deadline = utc("2019-01-01T09:00:43Z") }))},
		"other fields": {listOf(entry(`"State"`, `"NotBeforeDeadline":"1 Feb 2019 09:00:43 GMT","State"`)), one(pending)},
		"no EventId": {listOf(entry(`"EventId":"i-1",`, "")),
			one(changed(pending, func(e *event.Event) { e.ID = "" }))},
		"bad NotBefore": {listOf(entry("21 Jan 2019 09:00:43 GMT", "soon")),
			wanted{events: []event.Event{changed(pending, func(e *event.Event) { e.Deadline = time.Time{} })}, trouble: "soon"}},
		"bad NotAfter": {listOf(entry("21 Jan 2019 09:17:23 GMT", "later")),
			wanted{events: []event.Event{changed(pending, func(e *event.Event) { e.Until = time.Time{} })}, trouble: "later"}},
		"a date in an unknown zone": {listOf(entry("09:00:43 GMT", "09:00:43 CEST")),
			wanted{events: []event.Event{changed(pending, func(e *event.Event) { e.Deadline = time.Time{} })}, trouble: "NotBefore"}},
		"a number among them": {listOf("17", planned("i-1", "active")),
			wanted{events: []event.Event{pending}, trouble: "entry 1"}},
		"null among them": {listOf(planned("i-1", "active"), "null"),
			wanted{events: []event.Event{pending}, trouble: "entry 2"}},
		"null":          {`null`, failed("null")},
		"one object":    {planned("i-1", "active"), failed(scheduledPath)},
		"cut off":       {`[` + planned("i-1", "active"), failed(scheduledPath)},
		"an error page": {`<html>busy</html>`, failed(scheduledPath)},
	} {
		t.Run(name, func(t *testing.T) {
			lookOnce(t, event.ScheduledMaintenance, map[string]string{scheduledPath: test.body}, test.want)
		})
	}
	t.Run("absent", func(t *testing.T) { lookOnce(t, event.ScheduledMaintenance, nil, none) })
}

func TestDocumentedHistoryIsRead(t *testing.T) {
	history, err := os.ReadFile("testdata/maintenance/history.json")
	if err != nil {
		t.Fatal(err)
	}
	past := func(id, word string, state event.State, from, to string) event.Event {
		return event.Event{
			ID: id, Kind: event.ScheduledMaintenance, Code: "system-reboot", State: state,
			Description: word + " scheduled reboot", Deadline: utc(from), Until: utc(to),
		}
	}
	lookOnce(t, event.ScheduledMaintenance, map[string]string{historyPath: string(history)}, wanted{events: []event.Event{
		past("instance-event-0d59937288b749b32", "[Canceled]", event.Canceled, "2018-11-06T09:00:43Z", "2018-11-06T09:17:23Z"),
		past("instance-event-0d59937288b749b33", "[Completed]", event.Completed, "2018-10-29T09:00:43Z", "2018-10-29T09:17:23Z"),
	}})
}

// TestMaintenanceTakesItsCourse follows both lists through several looks.
func TestMaintenanceTakesItsCourse(t *testing.T) {
	active, canceled, broken := planned("i-1", "active"), planned("i-1", "canceled"), answer{status: 500}
	list := func(entries ...string) answer { return answer{body: listOf(entries...)} }
	pending, called := reboot("i-1", event.Pending), reboot("i-1", event.Canceled)
	type look struct {
		scheduled, history answer
		want               wanted
	}
	withTrouble := func(trouble string, events ...event.Event) wanted { return wanted{events: events, trouble: trouble} }
	for name, looks := range map[string][]look{
		"canceled the way EC2 does it": {
			{list(active), list(), one(pending)},
			{list(), list(canceled), one(called)},
		},
		"in both lists, the one that is over counts": {
			{list(active), list(canceled), one(called)},
		},
		"active in the history alone is nothing": {
			{list(), list(active), none},
		},
		"not listed any more, and nobody says why": {
			{list(active), list(), one(pending)},
			{list(), list(), none},
		},
		"the history fails": {
			{list(active), broken, withTrouble("500", pending)},
		},
		"the history fails when the event leaves the schedule": {
			{list(active), list(), one(pending)},
			{list(), broken, withTrouble(historyPath, pending)},
			{list(), list(canceled), one(called)},
		},
		"the history fails after it told of the cancellation": {
			{list(active), list(canceled), one(called)},
			{list(active), broken, withTrouble(historyPath, called)},
		},
		"the schedule fails": {
			{list(active), list(), one(pending)},
			{broken, list(canceled), failed(scheduledPath)},
			{list(), list(canceled), one(called)},
		},
		"the entry becomes unreadable": {
			{list(active), list(), one(pending)},
			{list("17"), list(), withTrouble("entry 1", pending)},
			{list(), list(), none},
		},
	} {
		t.Run(name, func(t *testing.T) {
			ec2 := serve(nil)
			opts := imds.Options{Kinds: []event.Kind{event.ScheduledMaintenance}, MaintenanceInterval: time.Minute}
			ec2.say(scheduledPath, looks[0].scheduled)
			ec2.say(historyPath, looks[0].history)
			bubble(t, opts, ec2, func(t *testing.T, sink *sink) {
				time.Sleep(30 * time.Second)
				var heard, grumbled int
				for i, l := range looks {
					ec2.say(scheduledPath, l.scheduled)
					ec2.say(historyPath, l.history)
					if i > 0 {
						time.Sleep(time.Minute)
					}
					synctest.Wait()
					snapshots, troubles := sink.of(event.ScheduledMaintenance)
					judge(t, snapshots[heard:], troubles[grumbled:], l.want)
					heard, grumbled = len(snapshots), len(troubles)
				}
			})
		})
	}
}

// An instance has a share of its own of a fleet's time, which follows from its ID.
func TestMaintenanceIsToldWithTheInstanceOnceItIsKnown(t *testing.T) {
	const id = "i-1234567890abcdef0"
	ec2 := serve(nil)
	ec2.say(instanceIDPath, answer{status: 500})
	opts := imds.Options{Kinds: []event.Kind{event.ScheduledMaintenance}, MaintenanceInterval: time.Minute}
	bubble(t, opts, ec2, func(t *testing.T, sink *sink) {
		time.Sleep(30 * time.Second) // Between two looks.
		look := func(want int, events ...event.Event) {
			t.Helper()
			before := len(ec2.times(instanceIDPath))
			time.Sleep(time.Minute)
			synctest.Wait()
			snapshots, troubles := sink.of(event.ScheduledMaintenance)
			judge(t, snapshots, troubles, wanted{events: events})
			if asked := len(ec2.times(instanceIDPath)) - before; asked != want {
				t.Errorf("the ID was asked for %d times, want %d", asked, want)
			}
		}
		look(0)
		ec2.say(scheduledPath, answer{body: listOf(planned("i-1", "active"))})
		look(1, reboot("i-1", event.Pending))
		ec2.say(instanceIDPath, answer{body: id})
		named := changed(reboot("i-1", event.Pending), func(e *event.Event) { e.Instance = id })
		look(1, named)
		look(0, named)
		ec2.say(instanceIDPath, answer{status: 500})
		look(0, named)
	})
}
