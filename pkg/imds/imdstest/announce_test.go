package imdstest_test

import (
	"encoding/json"
	"maps"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/imds/imdstest"
)

const (
	spot        = "/latest/meta-data/spot/instance-action"
	rebalance   = "/latest/meta-data/events/recommendations/rebalance"
	lifecycle   = "/latest/meta-data/autoscaling/target-lifecycle-state"
	scheduled   = "/latest/meta-data/events/maintenance/scheduled"
	history     = "/latest/meta-data/events/maintenance/history"
	termination = "/latest/meta-data/spot/termination-time"
)

// noon is a time with a zone and a fraction, neither of which EC2 writes.
var noon = time.Date(2019, time.January, 21, 12, 0, 43, 500, time.FixedZone("CEST", 2*60*60))

func TestAnnouncement_AppearsAsEC2WritesIt(t *testing.T) {
	tests := map[string]struct {
		announce, withdraw func(*imdstest.Server)
		path, body         string
	}{
		"spot interruption": {
			func(s *imdstest.Server) { s.SetSpot("hibernate", noon) }, func(s *imdstest.Server) { s.ClearSpot() },
			spot, `{"action": "hibernate", "time": "2019-01-21T10:00:43Z"}`,
		},
		"the older notice of a termination": {
			func(s *imdstest.Server) { s.SetSpot("terminate", noon) }, func(s *imdstest.Server) { s.ClearSpot() },
			termination, `2019-01-21T10:00:43Z`,
		},
		"rebalance recommendation": {
			func(s *imdstest.Server) { s.SetRebalance(noon) }, func(s *imdstest.Server) { s.ClearRebalance() },
			rebalance, `{"noticeTime": "2019-01-21T10:00:43Z"}`,
		},
		"lifecycle state": {
			func(s *imdstest.Server) { s.SetLifecycleState("Terminated") }, func(s *imdstest.Server) { s.ClearLifecycleState() },
			lifecycle, "Terminated",
		},
		"any document": {
			func(s *imdstest.Server) { s.Set("/latest/meta-data/spot/instance-action", "{half a docu") },
			func(s *imdstest.Server) { s.Unset("meta-data/spot/instance-action") },
			spot, "{half a docu",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			srv := start(t)
			test.announce(srv)
			if status, body := get(t, srv, test.path); status != 200 || body != test.body {
				t.Errorf("announced: %d %q, want 200 %q", status, body, test.body)
			}
			test.withdraw(srv)
			if status, _ := get(t, srv, test.path); status != 404 {
				t.Errorf("withdrawn: status %d, want 404", status)
			}
		})
	}
}

// entry is a maintenance event as a client of EC2 reads it.
type entry = map[string]string

func entries(t *testing.T, srv *imdstest.Server, path string) []entry {
	t.Helper()
	status, body := get(t, srv, path)
	var list []entry
	if err := json.Unmarshal([]byte(body), &list); status != 200 || err != nil {
		t.Fatalf("%s: %d %q: %v", path, status, body, err)
	}
	return list
}

func TestMaintenance_IsWrittenAsEC2WritesIt(t *testing.T) {
	for name, test := range map[string]struct {
		event imdstest.MaintenanceEvent
		want  entry
	}{
		"complete": {
			imdstest.MaintenanceEvent{NotBefore: noon, NotAfter: noon.Add(time.Hour), Code: "system-reboot", Description: "scheduled reboot", EventId: "e", State: "active"},
			entry{
				"NotBefore": "21 Jan 2019 10:00:43 GMT", "NotAfter": "21 Jan 2019 11:00:43 GMT", "Code": "system-reboot",
				"Description": "scheduled reboot", "EventId": "e", "State": "active",
			},
		},
		"a day of one digit, and no end": {
			imdstest.MaintenanceEvent{NotBefore: noon.AddDate(0, 0, -19), Code: "instance-stop", EventId: "e"},
			entry{
				"NotBefore": "2 Jan 2019 10:00:43 GMT", "Code": "instance-stop", "EventId": "e", "State": "active",
				"Description": "The instance is running on degraded hardware",
			},
		},
		"no dates, an unknown code": {
			imdstest.MaintenanceEvent{Code: "disk-swap", EventId: "e", State: "completed"},
			entry{"Code": "disk-swap", "EventId": "e", "State": "completed", "Description": "[Completed] disk-swap"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			srv := start(t)
			srv.AddMaintenance(test.event)
			if got := entries(t, srv, scheduled); len(got) != 1 || !maps.Equal(got[0], test.want) {
				t.Errorf("it is %v, want %v", got, test.want)
			}
			srv.WithdrawMaintenance("", true)
			if _, body := get(t, srv, scheduled); body != "[]" {
				t.Errorf("without events: %q, want []", body)
			}
		})
	}
}

func TestMaintenance_HasAnIDOfItsCodeAndDate(t *testing.T) {
	srv := start(t)
	for _, code := range []string{"system-reboot", "instance-stop", "system-reboot"} {
		srv.AddMaintenance(imdstest.MaintenanceEvent{Code: code, NotBefore: noon})
	}
	if list := entries(t, srv, scheduled); len(list) != 2 || list[0]["EventId"] == list[1]["EventId"] {
		t.Errorf("scheduled: %v", list)
	}
}

func TestMaintenance_EntersTheHistoryWhenItEnds(t *testing.T) {
	srv := start(t)
	srv.AddMaintenance(imdstest.MaintenanceEvent{EventId: "a", Code: "system-reboot", NotBefore: noon})
	srv.AddMaintenance(imdstest.MaintenanceEvent{EventId: "b", Code: "instance-stop", NotBefore: noon})
	srv.AddMaintenance(imdstest.MaintenanceEvent{EventId: "a", State: "completed"})

	list, past := entries(t, srv, scheduled), entries(t, srv, history)
	if len(list) != 2 || list[0]["State"] != "completed" || list[1]["State"] != "active" {
		t.Errorf("scheduled: %v", list)
	}
	if len(past) != 1 || past[0]["Code"] != "system-reboot" || past[0]["NotBefore"] != "21 Jan 2019 10:00:43 GMT" ||
		past[0]["Description"] != "[Completed] scheduled reboot" {
		t.Errorf("history: %v", past)
	}
}

func TestMaintenance_LeavesTheScheduleWhenWithdrawn(t *testing.T) {
	tests := map[string]struct {
		id        string
		noHistory bool
		withdrawn int
		left      int
		past      int
	}{
		"one of two, to the history": {"a", false, 1, 1, 1},
		"one of two, without trace":  {"a", true, 1, 1, 0},
		"both":                       {"", false, 2, 0, 2},
		"one that is not there":      {"c", false, 0, 2, 0},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			srv := start(t)
			for _, id := range []string{"a", "b"} {
				srv.AddMaintenance(imdstest.MaintenanceEvent{EventId: id, Code: "system-reboot", NotBefore: noon})
			}
			withdrawn := srv.WithdrawMaintenance(test.id, test.noHistory)
			left, past := entries(t, srv, scheduled), entries(t, srv, history)
			if len(withdrawn) != test.withdrawn || len(left) != test.left || len(past) != test.past {
				t.Errorf("withdrawn %v, left %v, history %v", withdrawn, left, past)
			}
			for _, e := range past {
				if e["State"] != "canceled" || e["Description"] != "[Canceled] scheduled reboot" {
					t.Errorf("in the history as %v, want it canceled", e)
				}
			}
		})
	}
}
