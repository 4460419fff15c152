package imds_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/imds"
)

// checkUp checks a service, and how long that takes.
func checkUp(t *testing.T, ec2 *service, f func(c imds.Checkup, took time.Duration)) {
	t.Helper()
	inBubble(t, imds.Options{}, ec2, func(t *testing.T, source *imds.Source) {
		began := time.Now()
		c := source.Check(t.Context())
		f(c, time.Since(began))
	})
}

func TestCheck_AsksForEverythingOnce(t *testing.T) {
	ec2 := serve(map[string]string{
		lifeCyclePath: "spot", spotPath: `{"action":"terminate","time":"2017-09-18T08:22:00Z"}`, rebalancePath: "<html>",
	})
	checkUp(t, ec2, func(c imds.Checkup, _ time.Duration) {
		if c.Unreachable != nil || c.Endpoint != "http://169.254.169.254" {
			t.Errorf("got %+v", c)
		}
		results := map[string]imds.Result{}
		for _, p := range c.Polls {
			results[p.Document] = p.Result
		}
		for path, want := range map[string]imds.Result{
			spotPath: imds.OK, targetStatePath: imds.Absent, rebalancePath: imds.Failed, scheduledPath: imds.Absent, historyPath: imds.Absent,
		} {
			if results[path] != want || len(ec2.times(path)) != 1 {
				t.Errorf("%s: %s, asked for %d times; want %s and once", path, results[path], len(ec2.times(path)), want)
			}
		}
		if !c.Dated || c.Ahead.Abs() > time.Second {
			t.Errorf("the clocks are %s apart, %v", c.Ahead, c.Dated)
		}
	})
}

func TestCheck_EndsWithoutAToken(t *testing.T) {
	for want, token := range map[string]answer{
		"no answer within 10s":       {hang: true},
		"disabled for this instance": {status: http.StatusForbidden},
	} {
		ec2 := serve(nil)
		ec2.say("token", token)
		checkUp(t, ec2, func(c imds.Checkup, took time.Duration) {
			if c.Unreachable == nil || !strings.Contains(c.Unreachable.Error(), want) || len(c.Polls) > 0 || took > 10*time.Second {
				t.Errorf("%s: got %+v after %s", want, c, took)
			}
		})
	}
}

func TestCheck_ComparesTheClocks(t *testing.T) {
	ec2 := serve(nil)
	behind := time.Date(1999, 12, 31, 0, 0, 0, 0, time.UTC) // a bubble begins at midnight the next day
	ec2.say(lifeCyclePath, answer{body: "spot", header: http.Header{"Date": {behind.Format(http.TimeFormat)}}})
	ec2.say("token", answer{})
	checkUp(t, ec2, func(c imds.Checkup, _ time.Duration) {
		if !c.Dated || c.Ahead != 24*time.Hour {
			t.Errorf("the clocks are %s apart, want a day", c.Ahead)
		}
	})
}
