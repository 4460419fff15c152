package imds_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/imds"
)

// What a document may not hold is shown, goes no further, and hides nothing else of it.
func TestSource_WhatADocumentMayNotHoldIsShownOnly(t *testing.T) {
	const hostile = "reboot\u202e\x1b[2Jnow"
	for name, row := range map[string]struct {
		path, body string
		kind       event.Kind
		code       string
		shows      string // trouble
	}{
		"a spot action": {
			spotPath, `{"action": "reboot\u202e\u001b[2Jnow", "time": "2017-09-18T08:22:00Z"}`, event.SpotInterruption, "", `"reboot\u202e\x1b[2Jnow" is no code`,
		},
		"a long spot action": {
			spotPath, `{"action": "` + strings.Repeat("a", 65) + `", "time": "2017-09-18T08:22:00Z"}`, event.SpotInterruption, "", "is no code",
		},
		"a maintenance code": {
			scheduledPath, `[{"EventId": "instance-event-1", "Code": "reboot\u202e\u001b[2Jnow", "NotBefore": "21 Jan 2019 09:00:43 GMT"}]`,
			event.ScheduledMaintenance, "", `Code of "instance-event-1": "reboot\u202e\x1b[2Jnow" is no code`,
		},
		"an EventId": {
			scheduledPath, `[{"EventId": "reboot\u202e\u001b[2Jnow", "Code": "system-reboot", "NotBefore": "21 Jan 2019 09:00:43 GMT"}]`,
			event.ScheduledMaintenance, "system-reboot", `"reboot\u202e\x1b[2Jnow" is no code`,
		},
		"a date": {
			scheduledPath, `[{"EventId": "instance-event-1", "Code": "system-reboot", "NotBefore": "reboot\u202e\u001b[2Jnow"}]`,
			event.ScheduledMaintenance, "system-reboot", `"reboot\u202e\x1b[2Jnow" is no date`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			ec2 := serve(map[string]string{lifeCyclePath: "spot", row.path: row.body})
			bubble(t, imds.Options{}, ec2, func(t *testing.T, sink *sink) {
				time.Sleep(headStart)
				events, _ := sink.last(row.kind)
				if len(events) != 1 || events[0].Code != row.code || strings.Contains(events[0].ID, hostile) {
					t.Errorf("got %+v, want one with the code %q", events, row.code)
				}
				if _, troubles := sink.of(row.kind); len(troubles) == 0 || !strings.Contains(troubles[0].err.Error(), row.shows) {
					t.Errorf("trouble %v, want it to show %s", troubles, row.shows)
				}
			})
		})
	}
}

func TestSource_ADescriptionIsOneLineThatCanBeSeen(t *testing.T) {
	body := `[{"EventId": "a", "Code": "system-reboot", "Description": "scheduled\nreboot` + strings.Repeat("!", 500) + `", "NotBefore": "21 Jan 2019 09:00:43 GMT"}]`
	ec2 := serve(map[string]string{lifeCyclePath: "spot", scheduledPath: body})
	bubble(t, imds.Options{}, ec2, func(t *testing.T, sink *sink) {
		time.Sleep(headStart)
		events, _ := sink.last(event.ScheduledMaintenance)
		if len(events) != 1 || !strings.HasPrefix(events[0].Description, `scheduled\nreboot!`) || len(events[0].Description) > 256 {
			t.Errorf("got %+v", events)
		}
	})
}

// A list that is longer than EC2's is read in part, and what was known stands.
func TestSource_OfALongListAPartIsRead(t *testing.T) {
	list := func(from, n int) string {
		var entries []string
		for i := range n {
			entries = append(entries, fmt.Sprintf(`{"EventId":"e-%d","Code":"system-reboot","NotBefore":"21 Jan 2019 09:00:43 GMT"}`, from+i))
		}
		return "[" + strings.Join(entries, ",") + "]"
	}
	ec2 := serve(map[string]string{lifeCyclePath: "spot", scheduledPath: list(0, 1)})
	bubble(t, imds.Options{}, ec2, func(t *testing.T, sink *sink) {
		time.Sleep(headStart)
		ec2.say(scheduledPath, answer{body: list(1, 300)})
		time.Sleep(time.Minute)
		events, _ := sink.last(event.ScheduledMaintenance)
		if len(events) != 257 {
			t.Errorf("%d events are known, want 256 of the list and the one of before", len(events))
		}
		if _, troubles := sink.of(event.ScheduledMaintenance); len(troubles) == 0 || !strings.Contains(troubles[0].err.Error(), "300 entries, of which 256 are read") {
			t.Errorf("trouble %v", troubles)
		}
	})
}
