package imds_test

import (
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/imds"
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

// lookOnce has a source read the documents once, for one kind, and judges what it delivers.
func lookOnce(t *testing.T, kind event.Kind, documents map[string]string, want wanted) {
	t.Helper()
	bubble(t, imds.Options{Kinds: []event.Kind{kind}}, serve(documents), func(t *testing.T, sink *sink) {
		time.Sleep(headStart)
		synctest.Wait()
		snapshots, troubles := sink.of(kind)
		judge(t, snapshots, troubles, want)
	})
}

// headStart is longer than a source waits for the life cycle and shorter than any interval.
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

func TestSpotNoticeIsRead(t *testing.T) {
	at := utc("2017-09-18T08:22:00Z")
	withFlaw := func(e event.Event, trouble string) wanted {
		return wanted{events: []event.Event{e}, trouble: trouble}
	}
	for name, test := range map[string]struct {
		body string
		want wanted
	}{
		"terminate":                    {`{"action": "terminate", "time": "2017-09-18T08:22:00Z"}`, one(interruption("terminate", at))},
		"stop":                         {`{"action":"stop","time":"2017-09-18T08:22:00Z"}`, one(interruption("stop", at))},
		"hibernate":                    {`{"action":"hibernate","time":"2017-09-18T08:22:00Z"}`, one(interruption("hibernate", at))},
		"an unknown action is named":   {`{"action":"teleport","time":"2017-09-18T08:22:00Z"}`, one(interruption("teleport", at))},
		"a time with a fraction":       {`{"action":"stop","time":"2017-09-18T08:22:00.250Z"}`, one(interruption("stop", at.Add(250*time.Millisecond)))},
		"a time in another zone":       {`{"action":"stop","time":"2017-09-18T10:22:00+02:00"}`, one(interruption("stop", at))},
		"unknown fields":               {`{"action":"stop","time":"2017-09-18T08:22:00Z","mood":{"good":[1]}}`, one(interruption("stop", at))},
		"white space around":           {"\n {\"action\":\" stop \",\"time\":\" 2017-09-18T08:22:00Z\"}\n", one(interruption("stop", at))},
		"a known action without time":  {`{"action":"terminate"}`, withFlaw(interruption("terminate", time.Time{}), "its time")},
		"a known action, bad time":     {`{"action":"terminate","time":"soon"}`, withFlaw(interruption("terminate", time.Time{}), `"soon"`)},
		"a known action, numeric time": {`{"action":"terminate","time":1505722920}`, withFlaw(interruption("terminate", time.Time{}), "its time")},
		"a time without action":        {`{"time":"2017-09-18T08:22:00Z"}`, withFlaw(interruption("", at), "no action")},
		"neither is known":             {`{"action":"teleport","time":"soon"}`, failed(`"teleport"`)},
		"an empty object":              {`{}`, failed("neither")},
		"null":                         {`null`, failed("neither")},
		"a list":                       {`["terminate"]`, failed("neither")},
		"cut off":                      {`{"action":"terminate","ti`, failed(spotPath)},
		"two documents":                {`{"action":"stop","time":"2017-09-18T08:22:00Z"}{}`, failed(spotPath)},
		"an error page":                {`<html>busy</html>`, failed(spotPath)},
	} {
		t.Run(name, func(t *testing.T) {
			lookOnce(t, event.SpotInterruption, map[string]string{spotPath: test.body}, test.want)
		})
	}
	t.Run("absent", func(t *testing.T) { lookOnce(t, event.SpotInterruption, nil, none) })
}

func TestRebalanceRecommendationIsRead(t *testing.T) {
	recommended := func(at string) wanted {
		return one(event.Event{Kind: event.RebalanceRecommendation, State: event.Pending, Noticed: utc(at)})
	}
	for name, test := range map[string]struct {
		body string
		want wanted
	}{
		"recommended":            {`{"noticeTime": "2020-10-27T08:22:00Z"}`, recommended("2020-10-27T08:22:00Z")},
		"a time with a fraction": {`{"noticeTime":"2020-10-27T08:22:00.5Z"}`, recommended("2020-10-27T08:22:00.5Z")},
		"no time":                {`{}`, failed(rebalancePath)},
		"a bad time":             {`{"noticeTime":"yesterday"}`, failed("yesterday")},
		"an error page":          {`<html>busy</html>`, failed(rebalancePath)},
	} {
		t.Run(name, func(t *testing.T) {
			lookOnce(t, event.RebalanceRecommendation, map[string]string{rebalancePath: test.body}, test.want)
		})
	}
	t.Run("absent", func(t *testing.T) { lookOnce(t, event.RebalanceRecommendation, nil, none) })
}

func TestTargetLifecycleStateIsRead(t *testing.T) {
	terminated := func(state string) wanted {
		return one(event.Event{Kind: event.ASGTermination, Code: state, State: event.Pending})
	}
	for name, test := range map[string]struct {
		body string
		want wanted
	}{
		"terminated":                    {"Terminated", terminated("Terminated")},
		"terminated, with a line end":   {" Terminated\r\n", terminated("Terminated")},
		"terminated from the warm pool": {"Warmed:Terminated", terminated("Warmed:Terminated")},
		"in service":                    {"InService", none},
		"standby":                       {"Standby", none},
		"detached":                      {"Detached", none},
		"to the warm pool":              {"Warmed:Stopped", none},
		"a word that is no state":       {"OK", failed("no lifecycle state")},
		"a page of words":               {"Service Unavailable", failed("no lifecycle state")},
		"a state of too many parts":     {"Warmed:Pending:Wait:Long", failed("no lifecycle state")},
		"empty":                         {" ", failed("no lifecycle state")},
		"noise":                         {"\x00\x17Terminated", failed("no lifecycle state")},
		"an error page":                 {"<html>Terminated</html>", failed(targetStatePath)},
		"a word of something else":      {"terminated", failed(targetStatePath)},
	} {
		t.Run(name, func(t *testing.T) {
			lookOnce(t, event.ASGTermination, map[string]string{targetStatePath: test.body}, test.want)
		})
	}
	t.Run("absent", func(t *testing.T) { lookOnce(t, event.ASGTermination, nil, none) })
}

// The record of an earlier version knows events by these IDs: another ID for the same document would drain twice.
func TestIDsNeverChange(t *testing.T) {
	for _, test := range []struct {
		kind event.Kind
		path string
		file string
		id   string
	}{
		{event.SpotInterruption, spotPath, "spot/terminate.json", "spot-interruption-5c16af8504c4fe2e"},
		{event.RebalanceRecommendation, rebalancePath, "rebalance/recommended.json", "rebalance-recommendation-b8c530b615cdcc7d"},
		{event.ASGTermination, targetStatePath, "target-state/terminated.txt", "asg-termination-9cb47c41f319a050"},
		{event.ScheduledMaintenance, scheduledPath, "maintenance/reboot.json", "instance-event-0d59937288b749b32"},
	} {
		t.Run(string(test.kind), func(t *testing.T) {
			body, err := os.ReadFile("testdata/" + test.file)
			if err != nil {
				t.Fatal(err)
			}
			bubble(t, imds.Options{}, serve(map[string]string{test.path: string(body)}), func(t *testing.T, sink *sink) {
				time.Sleep(10 * time.Minute)
				snapshots, _ := sink.of(test.kind)
				for _, s := range snapshots {
					if len(s.events) != 1 || s.events[0].ID != test.id {
						t.Fatalf("got %+v, want one event %q", s.events, test.id)
					}
				}
				if len(snapshots) < 10 {
					t.Fatalf("only %d snapshots", len(snapshots))
				}
			})
		})
	}
}

func TestIDsTellDocumentsApart(t *testing.T) {
	ids := map[string]string{}
	for _, test := range []struct {
		name, path, body, boot string
		kind                   event.Kind
	}{
		{"terminate", spotPath, `{"action":"terminate","time":"2017-09-18T08:22:00Z"}`, "1", event.SpotInterruption},
		{"another action", spotPath, `{"action":"stop","time":"2017-09-18T08:22:00Z"}`, "1", event.SpotInterruption},
		{"another time", spotPath, `{"action":"terminate","time":"2017-09-18T08:23:00Z"}`, "1", event.SpotInterruption},
		{"an unreadable time", spotPath, `{"action":"terminate","time":"8:22"}`, "1", event.SpotInterruption},
		{"rebalance", rebalancePath, `{"noticeTime":"2020-10-27T08:22:00Z"}`, "1", event.RebalanceRecommendation},
		{"another notice", rebalancePath, `{"noticeTime":"2020-10-27T08:22:01Z"}`, "1", event.RebalanceRecommendation},
		{"terminated", targetStatePath, "Terminated", "1", event.ASGTermination},
		{"in another boot", targetStatePath, "Terminated", "2", event.ASGTermination},
		{"from the pool", targetStatePath, "Warmed:Terminated", "1", event.ASGTermination},
	} {
		opts := imds.Options{Kinds: []event.Kind{test.kind}, BootID: test.boot}
		bubble(t, opts, serve(map[string]string{test.path: test.body}), func(t *testing.T, sink *sink) {
			time.Sleep(headStart)
			synctest.Wait()
			events, _ := sink.last(test.kind)
			if len(events) != 1 {
				t.Fatalf("%s: got %+v", test.name, events)
			}
			if other, taken := ids[events[0].ID]; taken {
				t.Errorf("%q and %q share the ID %q", test.name, other, events[0].ID)
			}
			ids[events[0].ID] = test.name
		})
	}
}
