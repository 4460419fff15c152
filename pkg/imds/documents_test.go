package imds_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/imds"
	"github.com/nth-project/nth/pkg/text"
)

const (
	spotPath        = "spot/instance-action"
	rebalancePath   = "events/recommendations/rebalance"
	targetStatePath = "autoscaling/target-lifecycle-state"
	scheduledPath   = "events/maintenance/scheduled"
	historyPath     = "events/maintenance/history"
	lifeCyclePath   = "instance-life-cycle"
	instanceIDPath  = "instance-id"
)

// wanted is what one look at a document should bring.
type wanted struct {
	events  []event.Event // without their IDs, unless given
	trouble string        // a part of the error; "" means none
	nothing bool          // no snapshot at all
}

// one is the reading of an event.
func one(e event.Event) wanted { return wanted{events: []event.Event{e}} }

// none is the reading of a document that announces nothing.
var none = wanted{}

// failed is a look that failed.
func failed(trouble string) wanted { return wanted{nothing: true, trouble: trouble} }

// reading is a document, and what a look at it should bring.
type reading struct {
	body string
	want wanted
}

// isRead has a source read each document of a kind once, and none, and judges what it delivers.
func isRead(t *testing.T, kind event.Kind, readings map[string]reading) {
	t.Helper()
	look := func(documents map[string]string, want wanted) func(*testing.T) {
		return func(t *testing.T) {
			bubble(t, imds.Options{Kinds: []event.Kind{kind}}, serve(documents), func(t *testing.T, sink *sink) {
				time.Sleep(headStart)
				synctest.Wait()
				snapshots, troubles := sink.of(kind)
				judge(t, snapshots, troubles, want)
			})
		}
	}
	for name, r := range readings {
		t.Run(name, look(map[string]string{paths[kind]: r.body}, r.want))
	}
	t.Run("absent", look(nil, none))
}

// headStart is time for the first looks, and shorter than any interval.
const headStart = 300 * time.Millisecond

func judge(t *testing.T, snapshots, troubles []delivery, want wanted) {
	t.Helper()
	if want.nothing != (len(snapshots) == 0) {
		t.Fatalf("got %d snapshots: %+v", len(snapshots), snapshots)
	}
	if !want.nothing {
		got := slices.Clone(snapshots[len(snapshots)-1].events)
		for i := range got {
			if got[i].ID == "" {
				t.Errorf("event without an ID: %+v", got[i])
			}
			if i < len(want.events) && want.events[i].ID == "" {
				got[i].ID = ""
			}
		}
		if !slices.Equal(got, want.events) {
			t.Errorf("events:\n got %+v\nwant %+v", got, want.events)
		}
	}
	switch {
	case want.trouble == "" && len(troubles) > 0:
		t.Errorf("unexpected trouble: %v", troubles[0].err)
	case want.trouble != "" && len(troubles) == 0:
		t.Errorf("no trouble, want one about %q", want.trouble)
	case want.trouble != "" && !strings.Contains(troubles[0].err.Error(), want.trouble):
		t.Errorf("trouble %q, want it to say %q", troubles[0].err, want.trouble)
	}
}

// utc reads a time, for tables.
func utc(text string) time.Time {
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		panic(err)
	}
	return at.UTC()
}

func interruption(action string, at time.Time) event.Event {
	return event.Event{Kind: event.SpotInterruption, Code: action, State: event.Pending, Deadline: at}
}

func TestSpot_IsRead(t *testing.T) {
	at := utc("2017-09-18T08:22:00Z")
	withFlaw := func(e event.Event, trouble string) wanted {
		return wanted{events: []event.Event{e}, trouble: trouble}
	}
	isRead(t, event.SpotInterruption, map[string]reading{
		"terminate":                    {`{"action": "terminate", "time": "2017-09-18T08:22:00Z"}`, one(interruption("terminate", at))},
		"stop":                         {`{"action":"stop","time":"2017-09-18T08:22:00Z"}`, one(interruption("stop", at))},
		"hibernate":                    {`{"action":"hibernate","time":"2017-09-18T08:22:00Z"}`, one(interruption("hibernate", at))},
		"an unknown action is named":   {`{"action":"teleport","time":"2017-09-18T08:22:00Z"}`, one(interruption("teleport", at))},
		"a time with a fraction":       {`{"action":"stop","time":"2017-09-18T08:22:00.250Z"}`, one(interruption("stop", at.Add(250*time.Millisecond)))},
		"a time in another zone":       {`{"action":"stop","time":"2017-09-18T10:22:00+02:00"}`, one(interruption("stop", at))},
		"unknown fields":               {`{"action":"stop","time":"2017-09-18T08:22:00Z","mood":{"good":[1]}}`, one(interruption("stop", at))},
		"white space around":           {"\n {\"action\":\" stop \",\"time\":\" 2017-09-18T08:22:00Z\"}\n", one(interruption("stop", at))},
		"a known action without time":  {`{"action":"terminate"}`, withFlaw(interruption("terminate", time.Time{}), `the field "time"`)},
		"a known action, bad time":     {`{"action":"terminate","time":"soon"}`, withFlaw(interruption("terminate", time.Time{}), `"soon"`)},
		"a known action, numeric time": {`{"action":"terminate","time":1505722920}`, withFlaw(interruption("terminate", time.Time{}), `the field "time"`)},
		"a time without action":        {`{"time":"2017-09-18T08:22:00Z"}`, withFlaw(interruption("", at), "no action")},
		"neither is known":             {`{"action":"teleport","time":"soon"}`, failed(`"teleport"`)},
		"an empty object":              {`{}`, failed("neither")},
		"null":                         {`null`, failed("neither")},
		"a list":                       {`["terminate"]`, failed("neither")},
		"cut off":                      {`{"action":"terminate","ti`, failed(spotPath)},
		"a hostile action": {`{"action": "reboot\u202e\u001b[2Jnow", "time": "2017-09-18T08:22:00Z"}`,
			withFlaw(interruption("", at), `"reboot\u202e\x1b[2Jnow" is not a valid code or ID`)},
		"a long action": {`{"action": "` + strings.Repeat("a", 65) + `", "time": "2017-09-18T08:22:00Z"}`, withFlaw(interruption("", at), "is not a valid code or ID")},
		"of 4 KiB":      {`{"action":"stop","time":"2017-09-18T08:22:00Z"}` + strings.Repeat(" ", 4<<10-47), one(interruption("stop", at))},
		"two documents": {`{"action":"stop","time":"2017-09-18T08:22:00Z"}{}`, failed(spotPath)},
	})
}

func TestRebalance_IsRead(t *testing.T) {
	recommended := func(at string) wanted {
		return one(event.Event{Kind: event.RebalanceRecommendation, State: event.Pending, Noticed: utc(at)})
	}
	isRead(t, event.RebalanceRecommendation, map[string]reading{
		"recommended":            {`{"noticeTime": "2020-10-27T08:22:00Z"}`, recommended("2020-10-27T08:22:00Z")},
		"a time with a fraction": {`{"noticeTime":"2020-10-27T08:22:00.5Z"}`, recommended("2020-10-27T08:22:00.5Z")},
		"no time":                {`{}`, failed(rebalancePath)},
		"a bad time":             {`{"noticeTime":"yesterday"}`, failed("yesterday")},
		"an error page":          {`<html>busy</html>`, failed(rebalancePath)},
	})
}

func TestTargetState_IsRead(t *testing.T) {
	terminated := func(state string) wanted {
		return one(event.Event{Kind: event.ASGTermination, Code: state, State: event.Pending})
	}
	isRead(t, event.ASGTermination, map[string]reading{
		"terminated":                    {"Terminated", terminated("Terminated")},
		"terminated, with a line end":   {" Terminated\r\n", terminated("Terminated")},
		"terminated from the warm pool": {"Warmed:Terminated", terminated("Warmed:Terminated")},
		"in service":                    {"InService", none},
		"to the warm pool":              {"Warmed:Stopped", none},
		"a word that is no state":       {"OK", failed("not a lifecycle state")},
		"a page of words":               {"Service Unavailable", failed("not a lifecycle state")},
		"a state of too many parts":     {"Warmed:Pending:Wait:Long", failed("not a lifecycle state")},
		"empty":                         {" ", failed("not a lifecycle state")},
		"noise":                         {"\x00\x17Terminated", failed("not a lifecycle state")},
		"an error page":                 {"<html>Terminated</html>", failed(targetStatePath)},
		"a word of something else":      {"terminated", failed(targetStatePath)},
	})
}

func TestID_TellsDocumentsApart(t *testing.T) {
	ids := map[string]string{}
	for _, test := range []struct {
		name, path, body, boot string
		kind                   event.Kind
	}{
		{"terminate", spotPath, `{"action":"terminate","time":"2017-09-18T08:22:00Z"}`, "1", event.SpotInterruption},
		{"another action", spotPath, `{"action":"stop","time":"2017-09-18T08:22:00Z"}`, "1", event.SpotInterruption},
		{"rebalance", rebalancePath, `{"noticeTime":"2020-10-27T08:22:00Z"}`, "1", event.RebalanceRecommendation},
		{"terminated", targetStatePath, "Terminated", "1", event.ASGTermination},
		{"in another boot", targetStatePath, "Terminated", "2", event.ASGTermination},
		{"from the pool", targetStatePath, "Warmed:Terminated", "1", event.ASGTermination},
	} {
		opts := imds.Options{Kinds: []event.Kind{test.kind}, BootID: test.boot}
		bubble(t, opts, serve(map[string]string{test.path: test.body}), func(t *testing.T, sink *sink) {
			time.Sleep(2 * time.Minute)
			events, _ := sink.last(test.kind)
			snapshots, _ := sink.of(test.kind)
			if len(events) != 1 || events[0] != snapshots[0].events[0] {
				t.Fatalf("%s: got %+v first and %+v last, want one event that stays the same", test.name, snapshots[0].events, events)
			}
			if other, taken := ids[events[0].ID]; taken {
				t.Errorf("%q and %q share the ID %q", test.name, other, events[0].ID)
			}
			ids[events[0].ID] = test.name
		})
	}
}

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

func listOf(entries ...string) string { return "[" + strings.Join(entries, ",") + "]" }

func TestMaintenance_IsRead(t *testing.T) {
	const description = "scheduled reboot"
	pending := reboot("i-1", event.Pending)
	same, undated := func(*event.Event) {}, func(e *event.Event) { e.Deadline = time.Time{} }
	// with is a list of the event with another text in it, which changes the event.
	with := func(from, to string, change func(*event.Event), trouble string) reading {
		changed := pending
		change(&changed)
		return reading{listOf(strings.Replace(planned("i-1", "active"), from, to, 1)), wanted{events: []event.Event{changed}, trouble: trouble}}
	}
	described := func(as, to string, state event.State) reading {
		return with(description, as, func(e *event.Event) { e.Description, e.State = to, state }, "")
	}
	isRead(t, event.ScheduledMaintenance, map[string]reading{
		"empty list":                  {`[]`, none},
		"empty body":                  {"\n", none},
		"active":                      {listOf(planned("i-1", "active")), one(pending)},
		"two":                         {listOf(planned("i-1", "active"), planned("i-2", "active")), wanted{events: []event.Event{pending, reboot("i-2", event.Pending)}}},
		"the same one twice":          {listOf(planned("i-1", "active"), planned("i-1", "canceled")), one(reboot("i-1", event.Canceled))},
		"canceled":                    {listOf(planned("i-1", "canceled")), one(reboot("i-1", event.Canceled))},
		"cancelled, in capitals":      {listOf(planned("i-1", "CANCELLED")), one(reboot("i-1", event.Canceled))},
		"completed":                   {listOf(planned("i-1", "Completed")), one(reboot("i-1", event.Completed))},
		"unknown state":               {listOf(planned("i-1", "dreaming")), one(pending)},
		"canceled by its description": described("[Canceled] a reboot", "[Canceled] a reboot", event.Canceled),
		"completed by it":             described("[completed] a reboot", "[completed] a reboot", event.Completed),
		"a description of two lines":  described(`scheduled\nreboot`, `scheduled\nreboot`, event.Pending),
		"a long description":          described(strings.Repeat("a", 500), text.Visible(strings.Repeat("a", 500), 256), event.Pending),
		"unknown code":                with("system-reboot", "system-polish", func(e *event.Event) { e.Code = "system-polish" }, ""),
		"no NotAfter":                 with(`"NotAfter":"21 Jan 2019 09:17:23 GMT",`, "", func(e *event.Event) { e.Until = time.Time{} }, ""),
		"RFC 3339 dates":              with("21 Jan 2019 09:00:43 GMT", "2019-01-21T10:00:43+01:00", same, ""),
		"a day of one digit":          with("21 Jan 2019 09:00:43", "1 Jan 2019 09:00:43", func(e *event.Event) { e.Deadline = utc("2019-01-01T09:00:43Z") }, ""),
		"other fields":                with(`"State"`, `"NotBeforeDeadline":"1 Feb 2019 09:00:43 GMT","State"`, same, ""),
		"no EventId":                  with(`"EventId":"i-1",`, "", func(e *event.Event) { e.ID = "" }, ""),
		"bad NotBefore":               with("21 Jan 2019 09:00:43 GMT", "soon", undated, "soon"),
		"bad NotAfter":                with("21 Jan 2019 09:17:23 GMT", "later", func(e *event.Event) { e.Until = time.Time{} }, "later"),
		"a date in an unknown zone":   with("09:00:43 GMT", "09:00:43 CEST", undated, "NotBefore"),
		"a hostile date":              with("21 Jan 2019 09:00:43 GMT", `soon\u202e\u001b[2J`, undated, `"soon\u202e\x1b[2J" is not a date`),
		"a hostile EventId":           with("i-1", `i\u202e\u001b[2J`, func(e *event.Event) { e.ID = "" }, `"i\u202e\x1b[2J" is not a valid code or ID`),
		"a hostile code": with("system-reboot", `reboot\u202e\u001b[2Jnow`, func(e *event.Event) { e.Code = "" },
			`Code of "i-1": "reboot\u202e\x1b[2Jnow" is not a valid code or ID`),
		"a number among them": {listOf("17", planned("i-1", "active")), wanted{events: []event.Event{pending}, trouble: "entry 1"}},
		"null among them":     {listOf(planned("i-1", "active"), "null"), wanted{events: []event.Event{pending}, trouble: "entry 2"}},
		"null":                {`null`, failed("null")},
		"one object":          {planned("i-1", "active"), failed(scheduledPath)},
		"cut off":             {`[` + planned("i-1", "active"), failed(scheduledPath)},
	})
}

// Both lists are followed through several looks.
func TestMaintenance_TakesItsCourse(t *testing.T) {
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
			{list(), broken, withTrouble(historyPath)},
			{list(), list(canceled), one(called)},
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
			opts := imds.Options{Kinds: []event.Kind{event.ScheduledMaintenance}, Interval: time.Second}
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

func TestMaintenance_OfALongListAPartIsRead(t *testing.T) {
	var entries []string
	for i := range 300 {
		entries = append(entries, planned(fmt.Sprintf("i-%d", i+2), "active"))
	}
	bubble(t, imds.Options{}, serve(map[string]string{scheduledPath: listOf(entries...)}), func(t *testing.T, sink *sink) {
		time.Sleep(headStart)
		if events, _ := sink.last(event.ScheduledMaintenance); len(events) != 256 {
			t.Errorf("%d events are known, want 256 of the list", len(events))
		}
		if _, troubles := sink.of(event.ScheduledMaintenance); len(troubles) == 0 || !strings.Contains(troubles[0].err.Error(), "300 entries; nth reads only the first 256") {
			t.Errorf("trouble %v", troubles)
		}
	})
}

// An instance has a share of its own of a fleet's time, which follows from its ID.
func TestMaintenance_NamesTheInstanceOnceKnown(t *testing.T) {
	const id = "i-1234567890abcdef0"
	ec2 := serve(nil)
	ec2.say(instanceIDPath, answer{status: 500})
	opts := imds.Options{Kinds: []event.Kind{event.ScheduledMaintenance}, Interval: time.Second}
	bubble(t, opts, ec2, func(t *testing.T, sink *sink) {
		time.Sleep(30 * time.Second) // Between two looks.
		look := func(events ...event.Event) {
			t.Helper()
			time.Sleep(time.Minute)
			synctest.Wait()
			snapshots, troubles := sink.of(event.ScheduledMaintenance)
			judge(t, snapshots, troubles, wanted{events: events})
		}
		ec2.say(scheduledPath, answer{body: listOf(planned("i-1", "active"))})
		look(reboot("i-1", event.Pending))
		ec2.say(instanceIDPath, answer{body: id})
		named := reboot("i-1", event.Pending)
		named.Instance = id
		look(named)
		ec2.say(instanceIDPath, answer{status: 500})
		look(named)
	})
}

// absent is said for there is no target state.
const absent = ""

func wants(ec2 *service, state string) {
	if state == absent {
		ec2.say(targetStatePath, answer{})
		return
	}
	ec2.say(targetStatePath, answer{body: state})
}

// departing are the codes of what is announced.
func departing(t *testing.T, sink *sink) string {
	t.Helper()
	events, _ := sink.last(event.ASGTermination)
	var codes []string
	for _, ev := range events {
		if ev.State != event.Pending || !strings.HasPrefix(ev.ID, "asg-termination-") {
			t.Errorf("the event is %+v", ev)
		}
		codes = append(codes, ev.Code)
	}
	return strings.Join(codes, " ")
}

func TestTargetState_MeansWhatTheOneBeforeSays(t *testing.T) {
	for name, row := range map[string]struct {
		was    bool     // in service before nth was started, in this boot
		states []string // each stands for a while
		want   []string // what is announced in each
		served bool     // it is reported that the instance is in service
	}{
		"taken back to the warm pool, stopped":    {false, []string{"InService", "Warmed:Stopped"}, []string{"", "Warmed:Stopped"}, true},
		"taken back to the warm pool, hibernated": {false, []string{"InService", "Warmed:Hibernated"}, []string{"", "Warmed:Hibernated"}, true},
		"taken back to the warm pool, running":    {false, []string{"InService", "Warmed:Running", "InService"}, []string{"", "Warmed:Running", ""}, true},
		"and taken again": {
			false, []string{"InService", "Warmed:Running", "InService", "Warmed:Running"}, []string{"", "Warmed:Running", "", "Warmed:Running"}, true,
		},
		"prepared in the warm pool":             {false, []string{"Warmed:Stopped"}, []string{""}, false},
		"prepared, then put into service":       {false, []string{absent, "Warmed:Running", "InService"}, []string{"", "", ""}, true},
		"ended in the warm pool":                {false, []string{"Warmed:Running", "Warmed:Terminated"}, []string{"", "Warmed:Terminated"}, false},
		"taken back, and ended there":           {false, []string{"InService", "Warmed:Running", "Warmed:Terminated"}, []string{"", "Warmed:Running", "Warmed:Terminated"}, true},
		"taken back after a restart of nth":     {true, []string{"Warmed:Stopped"}, []string{"Warmed:Stopped"}, false},
		"in service since before the restart":   {true, []string{"InService", "Warmed:Stopped"}, []string{"", "Warmed:Stopped"}, false},
		"on standby, and taken back from there": {false, []string{"InService", "Standby", "Warmed:Stopped"}, []string{"", "", "Warmed:Stopped"}, true},
		"detached":                              {false, []string{"InService", "Detached", absent}, []string{"", "", ""}, true},
		"terminated":                            {false, []string{"InService", "Terminated", absent}, []string{"", "Terminated", ""}, true},
		"the root volume is replaced": {
			false, []string{"InService", "ReplacingRootVolume", "InService"}, []string{"", "ReplacingRootVolume", ""}, true,
		},
		"a state of the future, of three parts": {
			true, []string{"Frozen:Deep:Wait"}, []string{"Frozen:Deep:Wait"}, false,
		},
		"a state of the future, before service": {false, []string{"Relaxed:Hammock", "Relaxed:Hammock"}, []string{"", ""}, false},
	} {
		t.Run(name, func(t *testing.T) {
			served := 0
			opts := imds.Options{Kinds: []event.Kind{event.ASGTermination}, WasInService: row.was, InService: func() { served++ }}
			ec2 := serve(map[string]string{lifeCyclePath: "on-demand"})
			wants(ec2, row.states[0])
			bubble(t, opts, ec2, func(t *testing.T, sink *sink) {
				for i, state := range row.states {
					wants(ec2, state)
					time.Sleep(10 * time.Second)
					if got := departing(t, sink); got != row.want[i] {
						t.Errorf("in state %q (%d), announced is %q, want %q", state, i, got, row.want[i])
					}
				}
				if want := map[bool]int{true: 1}[row.served]; served != want {
					t.Errorf("it was said %d times that the instance is in service, want %d", served, want)
				}
			})
		})
	}
}
