package asgtest_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nth-project/nth/pkg/asg/asgtest"
)

const id = "i-0123456789abcdef0"

// request is a well-signed request of the query protocol, with pairs of names and values. change, if set, breaks it.
func request(change func(http.Header), pairs ...string) *http.Request {
	values := url.Values{"Version": {"2011-01-01"}}
	for n := 0; n < len(pairs); n += 2 {
		values.Set(pairs[n], pairs[n+1])
	}
	r := httptest.NewRequest(http.MethodPost, "http://autoscaling.test/", strings.NewReader(values.Encode()))
	now := time.Now().UTC()
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("X-Amz-Date", now.Format("20060102T150405Z"))
	r.Header.Set("X-Amz-Security-Token", "token")
	r.Header.Set("Authorization", fmt.Sprintf("AWS4-HMAC-SHA256 Credential=ASIAREHEARSALONLY000/%s/eu-central-1/autoscaling/aws4_request, "+
		"SignedHeaders=content-type;host;x-amz-date;x-amz-security-token, Signature=%s", now.Format("20060102"), strings.Repeat("a1", 32)))
	if change != nil {
		change(r.Header)
	}
	return r
}

// ask returns the answer to a request: its status and body.
func ask(s *asgtest.Service, r *http.Request) string {
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	body, _ := io.ReadAll(w.Body)
	return fmt.Sprintf("%d %s", w.Code, body)
}

func about(action string, more ...string) []string {
	return append([]string{"Action", action, "AutoScalingGroupName", "workers", "LifecycleHookName", "drain", "InstanceId", id}, more...)
}

func workers(hooks ...asgtest.Hook) *asgtest.Service {
	s := asgtest.New()
	s.AddGroup("workers", hooks...)
	s.AddInstance("workers", id)
	return s
}

func wantAnswer(t *testing.T, got string, want ...string) {
	t.Helper()
	for _, part := range want {
		if !strings.Contains(got, part) {
			t.Errorf("the answer is %s\nwant %s in it", got, part)
		}
	}
}

func TestOnlyWellSignedRequestsAreAnswered(t *testing.T) {
	t.Parallel()
	replace := func(header, old, with string) func(http.Header) {
		return func(h http.Header) { h.Set(header, strings.Replace(h.Get(header), old, with, 1)) }
	}
	for _, row := range []struct {
		name   string
		change func(http.Header)
		want   string
	}{
		{"none", func(h http.Header) { h.Del("Authorization") }, "403 <ErrorResponse xmlns=\"http://autoscaling.amazonaws.com/doc/2011-01-01/\"><Error><Type>Sender</Type><Code>MissingAuthenticationToken"},
		{"another algorithm", replace("Authorization", "AWS4-HMAC-SHA256", "AWS3"), "MissingAuthenticationToken"},
		{"a short signature", replace("Authorization", "a1a1a1", ""), "MissingAuthenticationToken"},
		{"another service", replace("Authorization", "/autoscaling/", "/ec2/"), "the scope is the service ec2"},
		{"no date", func(h http.Header) { h.Del("X-Amz-Date") }, "IncompleteSignature"},
		{"another day", func(h http.Header) { h.Set("X-Amz-Date", "19990101T000000Z") }, "IncompleteSignature"},
		{"an unsigned token", replace("Authorization", ";x-amz-security-token", ""), "the header x-amz-security-token is not signed"},
		{"no token", func(h http.Header) { h.Del("X-Amz-Security-Token") }, "InvalidClientTokenId"},
		{"all is well", nil, "200 <DescribeLifecycleHooksResponse"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			s := workers()
			wantAnswer(t, ask(s, request(row.change, "Action", "DescribeLifecycleHooks", "AutoScalingGroupName", "workers")), row.want)
		})
	}
}

func TestAnExpiredRequestIsRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(12 * time.Hour) // not close to midnight
		r := request(nil, about("CompleteLifecycleAction")...)
		time.Sleep(6 * time.Minute)
		wantAnswer(t, ask(workers(), r), "400 ", "RequestExpired")
	})
}

func TestHooksWaitAreHeldAndTimeOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		s := workers(asgtest.Hook{Name: "drain", HeartbeatTimeout: time.Minute, DefaultResult: "CONTINUE"}, asgtest.Hook{Name: "logs"})
		beat := func() string { return ask(s, request(nil, about("RecordLifecycleActionHeartbeat")...)) }
		wantAnswer(t, beat(), "400 ", "No active Lifecycle Action found with instance ID "+id)
		s.Terminate(id)
		time.Sleep(50 * time.Second)
		wantAnswer(t, beat(), "200 ")
		time.Sleep(59 * time.Second)
		if a := s.Actions(id)[0]; a.Result != "" || a.Until.Sub(start) != 110*time.Second {
			t.Errorf("the hook is %+v", a)
		}
		time.Sleep(time.Second)
		a := s.Actions(id)
		if a[0].Result != "CONTINUE" || !a[0].TimedOut || a[1].Result != "" || s.State(id) != "Terminating:Wait" {
			t.Errorf("the hooks are %+v, the instance is %s", a, s.State(id))
		}
		time.Sleep(time.Hour)
		if s.State(id) != "Terminating:Proceed" {
			t.Errorf("the instance is %s", s.State(id))
		}
	})
}

func TestToAbandonOneHookAbandonsAll(t *testing.T) {
	t.Parallel()
	s := workers(asgtest.Hook{Name: "drain"}, asgtest.Hook{Name: "logs"})
	s.Terminate(id)
	wantAnswer(t, ask(s, request(nil, about("CompleteLifecycleAction")...)), "400 ", "must be CONTINUE or ABANDON")
	wantAnswer(t, ask(s, request(nil, about("CompleteLifecycleAction", "LifecycleActionResult", "ABANDON")...)), "200 ")
	if a := s.Actions(id); a[0].Result != "ABANDON" || a[1].Result != "ABANDON" || s.State(id) != "Terminating:Proceed" {
		t.Errorf("the hooks are %+v, the instance is %s", a, s.State(id))
	}
}
