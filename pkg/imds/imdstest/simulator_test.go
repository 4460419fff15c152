package imdstest_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/imds/imdstest"
)

const instanceID = "/latest/meta-data/instance-id"

func TestToken_IsGivenAndNeededByEC2sRules(t *testing.T) {
	const tokens = "/latest/api/token"
	srv := start(t)
	first, second := token(t, srv), token(t, srv)
	if first == second {
		t.Fatal("two tokens are the same")
	}
	for name, test := range map[string]struct {
		method, path string
		headers      []string
		want         int
	}{
		"the shortest life is a second":            {"PUT", tokens, []string{ttlHeader, "1"}, 200},
		"the longest life is six hours":            {"PUT", tokens, []string{ttlHeader, "21600"}, 200},
		"no life at all is refused":                {"PUT", tokens, []string{ttlHeader, "0"}, 400},
		"more than six hours is refused":           {"PUT", tokens, []string{ttlHeader, "21601"}, 400},
		"a missing life is refused":                {"PUT", tokens, nil, 400},
		"a request through a proxy is forbidden":   {"PUT", tokens, []string{ttlHeader, "60", "X-Forwarded-For", "10.0.0.1"}, 403},
		"a path with another version is forbidden": {"PUT", "/2021-03-23/api/token", []string{ttlHeader, "60"}, 403},
		"a token can't be read":                    {"GET", tokens, nil, 405},
		"GET without a token":                      {"GET", instanceID, nil, 401},
		"GET with an unknown token":                {"GET", instanceID, []string{tokenHeader, first[1:] + "x"}, 401},
		"GET with the first token":                 {"GET", instanceID, []string{tokenHeader, first}, 200},
		"HEAD with the second token":               {"HEAD", instanceID, []string{tokenHeader, second}, 200},
		"the first of two tokens counts":           {"GET", instanceID, []string{tokenHeader, "old", tokenHeader, first}, 401},
		"GET through a proxy with a token":         {"GET", instanceID, []string{tokenHeader, first, "X-Forwarded-For", "10.0.0.1"}, 200},
		"POST with a token is not allowed":         {"POST", instanceID, []string{tokenHeader, first}, 405},
	} {
		t.Run(name, func(t *testing.T) {
			response, body := do(t, test.method, srv.URL+test.path, test.headers...)
			ttl := response.Header.Get(ttlHeader)
			if response.StatusCode != test.want {
				t.Fatalf("status %d, want %d", response.StatusCode, test.want)
			}
			if test.path == tokens && test.want == 200 && (len(body) != 56 || ttl != test.headers[1]) {
				t.Errorf("token %q with TTL %q, want 56 characters and TTL %s", body, ttl, test.headers[1])
			}
			if test.want != 200 && (test.path == tokens && ttl != "" || !strings.Contains(body, "<title>")) {
				t.Errorf("a refusal must be a page and carry no TTL, got %v and %q", response.Header, body)
			}
			if test.method == "HEAD" && body != "" {
				t.Errorf("HEAD brought the body %q", body)
			}
		})
	}
}

func TestSimulator_ServesAHealthyInstance(t *testing.T) {
	tests := map[string]struct {
		status int
		body   string // a part of it, all of it if it has no spaces
	}{
		"/latest/meta-data/instance-id":                            {200, "i-0a1b2c3d4e5f60718"},
		"/latest/meta-data/instance-id/":                           {200, "i-0a1b2c3d4e5f60718"},
		"/2021-03-23/meta-data/instance-id":                        {200, "i-0a1b2c3d4e5f60718"},
		"/1.0/meta-data/instance-id":                               {200, "i-0a1b2c3d4e5f60718"},
		"/newest/meta-data/instance-id":                            {404, "404 - Not Found"},
		"/latest/meta-data/instance-type":                          {200, "m7i.large"},
		"/latest/meta-data/instance-life-cycle":                    {200, "spot"},
		"/latest/dynamic/instance-identity/document":               {200, `"instanceId": "i-0a1b2c3d4e5f60718"`},
		"/latest/meta-data/iam/security-credentials/":              {200, "nth-rehearsal"},
		"/latest/meta-data/iam/security-credentials/nth-rehearsal": {200, `"Code": "Success"`},
		"/latest/meta-data/events/maintenance/scheduled":           {200, "[]"},
		"/latest/meta-data/events/maintenance/history":             {200, "[]"},
		"/latest/meta-data/spot/instance-action":                   {404, "404 - Not Found"},
		"/":                                                        {200, "2021-07-15\n2022-09-24\nlatest"},
		"/latest":                                                  {200, "dynamic\nmeta-data"},
		"/latest/meta-data/placement/":                             {200, "availability-zone\nregion"},
		"/latest/meta-data/events":                                 {200, "maintenance/"},
	}
	srv := start(t)
	for path, test := range tests {
		t.Run(path, func(t *testing.T) {
			response, body := do(t, "GET", srv.URL+path, tokenHeader, token(t, srv))
			matches := body == test.body || strings.Contains(test.body, " ") && strings.Contains(body, test.body)
			if response.StatusCode != test.status || !matches {
				t.Errorf("status %d and %q, want %d and %q", response.StatusCode, body, test.status, test.body)
			}
			if ttl := response.Header.Get(ttlHeader); ttl == "" {
				t.Error("the answer to a valid token carries no TTL")
			}
		})
	}
}

const (
	tokenHeader = "X-aws-ec2-metadata-token"
	ttlHeader   = "X-aws-ec2-metadata-token-ttl-seconds"
)

// patience bounds every wait for something that must happen. No test waits that long unless it fails.
const patience = 30 * time.Second

func start(t *testing.T) *imdstest.Server {
	t.Helper()
	srv := imdstest.NewServer()
	t.Cleanup(srv.Close)
	return srv
}

// bounded is a context for requests that must come to an end.
func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// try sends a request on a connection of its own, headers given in pairs, and returns the answer without its body.
func try(ctx context.Context, method, url string, headers ...string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		return nil, err
	}
	for i := 0; i < len(headers); i += 2 {
		request.Header.Add(headers[i], headers[i+1])
	}
	return (&http.Transport{DisableKeepAlives: true}).RoundTrip(request)
}

// do sends a request that must be answered, and returns the answer with its body read.
func do(t *testing.T, method, url string, headers ...string) (*http.Response, string) {
	t.Helper()
	response, err := try(bounded(t), method, url, headers...)
	if err != nil {
		t.Fatalf("%s %s: %v", method, url, err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatalf("reading the answer to %s %s: %v", method, url, err)
	}
	return response, string(body)
}

func token(t *testing.T, srv *imdstest.Server) string {
	t.Helper()
	response, body := do(t, "PUT", srv.URL+"/latest/api/token", ttlHeader, "21600")
	if response.StatusCode != http.StatusOK {
		t.Fatalf("asking for a token: status %d", response.StatusCode)
	}
	return body
}

// get reads a document with a token of its own.
func get(t *testing.T, srv *imdstest.Server, path string) (status int, body string) {
	t.Helper()
	response, body := do(t, "GET", srv.URL+path, tokenHeader, token(t, srv))
	return response.StatusCode, body
}

func TestFault_IsMetUntilItIsOver(t *testing.T) {
	for kind, broken := range map[imdstest.Kind]func(status int, body string, err error) bool{
		imdstest.Unavailable: func(status int, _ string, _ error) bool { return status == http.StatusServiceUnavailable },
		imdstest.Garbage:     func(_ int, body string, _ error) bool { return body == "\x80no document" },
		imdstest.Reset:       func(_ int, _ string, err error) bool { return errors.Is(err, syscall.ECONNRESET) },
		imdstest.Hang:        func(_ int, body string, _ error) bool { return body == imdstest.InstanceID }, // once it is over
	} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			srv := start(t)
			valid := token(t, srv)
			ask := func() (status int, body string, err error) {
				response, err := try(bounded(t), "GET", srv.URL+instanceID, tokenHeader, valid)
				if err != nil {
					return 0, "", err
				}
				defer response.Body.Close()
				text, err := io.ReadAll(response.Body)
				return response.StatusCode, string(text), err
			}
			last := time.Second
			if kind == imdstest.Hang {
				last = 50 * time.Millisecond
			}
			srv.Fault(imdstest.Fault{Kind: kind, For: last})
			if status, body, err := ask(); !broken(status, body, err) {
				t.Errorf("status %d, body %q, %v", status, body, err)
			}
			for limit := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
				if _, body, _ := ask(); body == imdstest.InstanceID {
					return
				}
				if time.Now().After(limit) {
					t.Fatal("the fault is not over")
				}
			}
		})
	}
}

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
