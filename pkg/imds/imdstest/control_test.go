package imdstest_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/imds/imdstest"
)

// steer returns a client that drives srv as it would another process.
func steer(srv *imdstest.Server) imdstest.Client { return imdstest.Client{URL: srv.URL} }

// must fails the test if a change was refused.
func must(t *testing.T) func(string, error) {
	return func(text string, err error) {
		t.Helper()
		if err != nil || text == "" {
			t.Fatalf("told %q: %v", text, err)
		}
	}
}

func TestAClientTriggersAndWithdraws(t *testing.T) {
	tests := map[string]struct {
		path     string
		trigger  func(context.Context, imdstest.Client) (string, error)
		withdraw string
	}{
		"spot": {spot, func(ctx context.Context, c imdstest.Client) (string, error) {
			return c.TriggerSpot(ctx, "terminate", time.Minute)
		}, "spot"},
		"rebalance": {rebalance, func(ctx context.Context, c imdstest.Client) (string, error) {
			return c.TriggerRebalance(ctx)
		}, "rebalance"},
		"lifecycle": {lifecycle, func(ctx context.Context, c imdstest.Client) (string, error) {
			return c.TriggerLifecycle(ctx, "Warmed:Stopped")
		}, "lifecycle"},
		"spot, with all else": {spot, func(ctx context.Context, c imdstest.Client) (string, error) {
			return c.TriggerSpot(ctx, "stop", 0)
		}, "all"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			srv := start(t)
			ctx := bounded(t)
			must(t)(test.trigger(ctx, steer(srv)))
			if status, _ := get(t, srv, test.path); status != 200 {
				t.Errorf("triggered: status %d, want 200", status)
			}
			must(t)(steer(srv).Withdraw(ctx, test.withdraw))
			if status, _ := get(t, srv, test.path); status != 404 {
				t.Errorf("withdrawn: status %d, want 404", status)
			}
		})
	}
}

func TestANoticeSaysWhenEC2Acts(t *testing.T) {
	srv := start(t)
	earliest := time.Now().Add(time.Hour).Truncate(time.Second)
	must(t)(steer(srv).TriggerSpot(bounded(t), "hibernate", time.Hour))
	latest := time.Now().Add(time.Hour)

	_, body := get(t, srv, spot)
	var notice struct {
		Action string    `json:"action"`
		Time   time.Time `json:"time"`
	}
	if err := json.Unmarshal([]byte(body), &notice); err != nil {
		t.Fatal(err)
	}
	if notice.Action != "hibernate" || notice.Time.Before(earliest) || notice.Time.After(latest) {
		t.Errorf("notice %q, want hibernate an hour from now", body)
	}
}

func TestAClientSchedulesSeveralMaintenanceEventsAndEndsThem(t *testing.T) {
	srv := start(t)
	ctx, c := bounded(t), steer(srv)
	for _, code := range []string{"instance-reboot", "system-reboot", "system-maintenance", "instance-retirement", "instance-stop"} {
		must(t)(c.TriggerMaintenance(ctx, imdstest.Maintenance{Code: code, ID: "event-" + code, In: time.Hour}))
	}
	list := entries(t, srv, scheduled)
	if len(list) != 5 || list[0]["NotBefore"] == "" || list[0]["NotAfter"] == "" {
		t.Fatalf("scheduled: %v", list)
	}

	must(t)(c.TriggerMaintenance(ctx, imdstest.Maintenance{ID: "event-system-reboot", State: "completed"}))
	must(t)(c.WithdrawMaintenance(ctx, "event-instance-stop", false))
	must(t)(c.WithdrawMaintenance(ctx, "event-instance-reboot", true))

	left, past := entries(t, srv, scheduled), entries(t, srv, history)
	if len(left) != 3 || left[0]["State"] != "completed" || left[0]["NotBefore"] != list[1]["NotBefore"] {
		t.Errorf("scheduled: %v; want three, the reboot completed at the time that it had", left)
	}
	if len(past) != 2 || past[0]["EventId"] != "event-system-reboot" || past[1]["State"] != "canceled" {
		t.Errorf("history: %v, want the completed reboot and the canceled stop", past)
	}
	must(t)(c.Withdraw(ctx, "maintenance"))
	if left := entries(t, srv, scheduled); len(left) != 0 {
		t.Errorf("scheduled after all was withdrawn: %v", left)
	}
}

func TestAChangeCanWait(t *testing.T) {
	srv := start(t)
	ctx, c := bounded(t), steer(srv)
	appeared := make(chan string, 1)
	srv.OnChange(func(change string) { appeared <- change })

	c.After = 20 * time.Millisecond
	must(t)(c.TriggerLifecycle(ctx, "Terminated"))
	if change := <-appeared; !strings.Contains(change, "Terminated") {
		t.Errorf("told %q", change)
	}

	c.After = time.Hour
	must(t)(c.TriggerRebalance(ctx))
	state, err := c.State(ctx)
	if err != nil || len(state.Waiting) != 1 || !strings.HasPrefix(state.Waiting[0], "rebalance recommendation, at ") {
		t.Errorf("waiting: %q, %v", state.Waiting, err)
	}
	if status, _ := get(t, srv, rebalance); status != 404 {
		t.Errorf("an hour early: status %d, want 404", status)
	}
	srv.OnChange(nil)
	must(t)(imdstest.Client{URL: srv.URL}.Withdraw(ctx, "all"))
	if state, err = c.State(ctx); err != nil || len(state.Waiting) != 0 {
		t.Errorf("waiting after all was withdrawn: %q, %v", state.Waiting, err)
	}
}

func TestAClientBreaksAndRepairs(t *testing.T) {
	srv := start(t)
	ctx, c := bounded(t), steer(srv)
	valid := token(t, srv)
	status := func() int {
		response, _ := do(t, "GET", srv.URL+instanceID, tokenHeader, valid)
		return response.StatusCode
	}

	must(t)(c.Fault(ctx, imdstest.Fault{Kind: imdstest.Status, Status: 503, Path: "meta-data", Times: 100}))
	if got := status(); got != 503 {
		t.Errorf("broken: status %d, want 503", got)
	}
	state, err := c.State(ctx)
	if err != nil || len(state.Faults) != 1 || state.Faults[0] != "status 503 on meta-data, 100 times" {
		t.Errorf("faults: %q, %v", state.Faults, err)
	}
	must(t)(c.Lift(ctx))
	if got := status(); got != 200 {
		t.Errorf("lifted: status %d, want 200", got)
	}
	must(t)(c.ExpireTokens(ctx))
	if got := status(); got != 401 {
		t.Errorf("expired: status %d, want 401", got)
	}
}

func TestAClientSetsDocumentsAndSeesTheState(t *testing.T) {
	srv := start(t)
	ctx, c := bounded(t), steer(srv)
	must(t)(c.Set(ctx, "/latest/meta-data/spot/instance-action", "not JSON"))
	if _, body := get(t, srv, spot); body != "not JSON" {
		t.Errorf("served %q", body)
	}
	state, err := c.State(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if state.Announced["meta-data/spot/instance-action"] != "not JSON" || len(state.Announced) != 1 ||
		state.ValidTokens != 1 || state.Requests.Total != 2 {
		t.Errorf("state %+v", state)
	}
	must(t)(c.Unset(ctx, "/latest/meta-data/spot/instance-action"))
	if status, _ := get(t, srv, spot); status != 404 {
		t.Errorf("removed: status %d, want 404", status)
	}
}

func TestTheControlAPISaysWhatWouldBeRight(t *testing.T) {
	tests := map[string]struct {
		ask  func(context.Context, imdstest.Client) (string, error)
		want string
	}{
		"an action that EC2 does not have": {
			func(ctx context.Context, c imdstest.Client) (string, error) { return c.TriggerSpot(ctx, "explode", 0) },
			`action is "explode": want one of terminate, stop, hibernate`,
		},
		"a negative time": {
			func(ctx context.Context, c imdstest.Client) (string, error) {
				return c.TriggerSpot(ctx, "stop", -time.Second)
			},
			`in is "-1s": want a duration such as 90s or 2m`,
		},
		"maintenance without a code": {
			func(ctx context.Context, c imdstest.Client) (string, error) {
				return c.TriggerMaintenance(ctx, imdstest.Maintenance{ID: "unknown", State: "completed"})
			},
			`code is "": want one of instance-reboot, system-reboot, system-maintenance, instance-retirement, instance-stop`,
		},
		"a state that maintenance does not have": {
			func(ctx context.Context, c imdstest.Client) (string, error) {
				return c.TriggerMaintenance(ctx, imdstest.Maintenance{Code: "instance-stop", State: "done"})
			},
			`state is "done": want one of active, canceled, completed`,
		},
		"maintenance that is not scheduled": {
			func(ctx context.Context, c imdstest.Client) (string, error) {
				return c.WithdrawMaintenance(ctx, "a", false)
			},
			`no maintenance event "a" is scheduled`,
		},
		"a lifecycle state in lower case": {
			func(ctx context.Context, c imdstest.Client) (string, error) {
				return c.TriggerLifecycle(ctx, "terminated")
			},
			`state is "terminated": want one of Detached, InService, Standby, Terminated, Warmed:Hibernated, Warmed:Running, Warmed:Stopped, Warmed:Terminated`,
		},
		"a fault of no kind": {
			func(ctx context.Context, c imdstest.Client) (string, error) {
				return c.Fault(ctx, imdstest.Fault{Kind: "fire"})
			},
			`kind is "fire": want one of reset, hang, slow, status, 401, garbage, oversized, token-down, refuse`,
		},
		"a status that is no error": {
			func(ctx context.Context, c imdstest.Client) (string, error) {
				return c.Fault(ctx, imdstest.Fault{Kind: imdstest.Status, Status: 200})
			},
			`status is "200": want a number from 400 to 599`,
		},
		"refusing connections without an end": {
			func(ctx context.Context, c imdstest.Client) (string, error) {
				return c.Fault(ctx, imdstest.Fault{Kind: imdstest.Refuse})
			},
			`refuse also closes the port to whoever would lift it: say for how long, such as for 12s`,
		},
		"no path": {
			func(ctx context.Context, c imdstest.Client) (string, error) { return c.Unset(ctx, "/latest/") },
			`no path: want one such as /latest/meta-data/instance-life-cycle`,
		},
	}
	srv := start(t)
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := test.ask(bounded(t), steer(srv))
			var invalid imdstest.InvalidError
			if !errors.As(err, &invalid) || string(invalid) != test.want {
				t.Errorf("got %v, want %s", err, test.want)
			}
		})
	}
	if faults := srv.Faults(); len(faults) != 0 {
		t.Errorf("a refused request set %v", faults)
	}
}

func TestTheControlAPIAnswersOnlyToItsOwnMachine(t *testing.T) {
	control := imdstest.New().Control()
	for address, want := range map[string]int{
		"127.0.0.1:40000":          200,
		"[::1]:40000":              200,
		"[::ffff:127.0.0.1]:40000": 200,
		"10.0.0.1:40000":           403,
		"[2001:db8::1]:40000":      403,
		"":                         403,
	} {
		request := httptest.NewRequest("DELETE", imdstest.ControlPath+"spot", nil)
		request.RemoteAddr = address
		recorder := httptest.NewRecorder()
		control.ServeHTTP(recorder, request)
		if recorder.Code != want {
			t.Errorf("from %q: status %d, want %d", address, recorder.Code, want)
		}
	}
}

func TestTheControlAPIWorksWhileTheServiceIsBroken(t *testing.T) {
	srv := start(t)
	srv.Fault(imdstest.Fault{Kind: imdstest.Hang})
	must(t)(steer(srv).TriggerSpot(bounded(t), "terminate", time.Minute))
	must(t)(steer(srv).Lift(bounded(t)))
	if status, _ := get(t, srv, spot); status != 200 {
		t.Errorf("status %d, want 200", status)
	}
}
