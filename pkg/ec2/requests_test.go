package ec2_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/ec2"
	"github.com/nth-project/nth/pkg/ec2/ec2test"
)

// A request whose answer is lost may have been carried out. One that EC2 has throttled was not.
func TestChange_IsRepeatedOnlyIfItWasThrottled(t *testing.T) {
	t.Parallel()
	type row struct {
		request ec2.Request
		try     bool
		denied  string
		broken  []func(http.ResponseWriter)
		state   string // after it
		tried   int
		why     string
	}
	for name, row := range map[string]row{
		"a stop":               {request: ec2.Stop, state: "stopped", tried: 1},
		"a start":              {request: ec2.Start, state: "running", tried: 1},
		"a termination":        {request: ec2.Terminate, state: "terminated", tried: 1},
		"a reboot":             {request: ec2.Reboot, state: "running", tried: 1},
		"a try":                {request: ec2.Stop, try: true, state: "running", tried: 1},
		"a try that IAM fails": {request: ec2.Stop, try: true, denied: "StopInstances", state: "running", tried: 1, why: "IAM does not allow the request: ec2:StopInstances"},
		"it is throttled": {
			request: ec2.Stop, broken: []func(http.ResponseWriter){fails(http.StatusServiceUnavailable, "RequestLimitExceeded")}, state: "stopped", tried: 2,
		},
		"EC2 is broken": {
			request: ec2.Reboot, broken: []func(http.ResponseWriter){fails(http.StatusInternalServerError, "InternalError")}, state: "running", tried: 1, why: "InternalError",
		},
		"no answer comes": {request: ec2.Reboot, broken: []func(http.ResponseWriter){nil}, state: "running", tried: 1, why: "no answer within 15s"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, r *region) {
				r.ec2.Add(ec2test.Instance{ID: "i-1", State: "running"})
				r.broken = row.broken
				if row.denied != "" {
					r.ec2.Deny(row.denied)
				}
				catalog := r.catalog("")
				err := catalog.Change(t.Context(), row.request, "i-1", row.try)
				tried := r.tried
				found, _, _ := catalog.LookNow(t.Context(), "i-1")
				if tried != row.tried || found.State != row.state {
					t.Errorf("after %d requests it is %s, want %s after %d", tried, found.State, row.state, row.tried)
				}
				if (err == nil) != (row.why == "") || err != nil && !strings.Contains(err.Error(), row.why) || errors.Is(err, ec2.ErrRefused) != (row.denied != "") {
					t.Errorf("it says %v, want %q", err, row.why)
				}
				if unanswered := row.broken != nil && row.broken[0] == nil; errors.Is(err, ec2.ErrUnanswered) != unanswered {
					t.Errorf("it says %v; the answer is missing: %t", err, unanswered)
				}
				time.Sleep(time.Minute)
			})
		})
	}
}
