package imds_test

import (
	"net/http"
	"slices"
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
		if c.Unreachable != nil || c.LifeCycle != "spot" {
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

func TestCheck_KnowsAHopLimitFromOtherTroubles(t *testing.T) {
	for name, test := range map[string]struct {
		token answer
		want  string
		hops  bool
	}{
		"the token gets lost": {answer{hang: true}, "no answer within", true},
		"it is disabled":      {answer{status: http.StatusForbidden}, "disabled for this instance", false},
		"it is broken":        {answer{status: http.StatusInternalServerError}, "500", false},
	} {
		t.Run(name, func(t *testing.T) {
			ec2 := serve(nil)
			ec2.say("token", test.token)
			checkUp(t, ec2, func(c imds.Checkup, took time.Duration) {
				if c.Unreachable == nil || !strings.Contains(c.Unreachable.Error(), test.want) || c.Hops() != test.hops {
					t.Errorf("got %v, hop limit: %v", c.Unreachable, c.Hops())
				}
				if len(c.Polls) > 0 || took > 10*time.Second {
					t.Errorf("asked on for %s: %+v", took, c.Polls)
				}
			})
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

func TestCheck_NamesWhatIsNewerThanTheInstance(t *testing.T) {
	for name, test := range map[string]struct {
		versions answer
		build    string
		lacking  []string
	}{
		"of today":            {answer{body: "1.0\n2007-01-19\n2021-03-23\n2021-07-15\n2022-09-24\nlatest"}, "2022-09-24", nil},
		"of the spring":       {answer{body: "1.0\n2020-10-27\n2021-01-03\n2021-03-23\nlatest"}, "2021-03-23", []string{targetStatePath}},
		"of 2019":             {answer{body: "1.0/\n2018-09-24/\n2019-10-01/\nlatest/\n"}, "2019-10-01", []string{rebalancePath, targetStatePath}},
		"of 2016":             {answer{body: "1.0\n2016-09-02\nlatest"}, "2016-09-02", []string{scheduledPath, rebalancePath, targetStatePath}},
		"not told":            {answer{}, "", nil},
		"told otherwise":      {answer{body: "latest"}, "", nil},
		"not to be had":       {answer{status: 500}, "", nil},
		"a page of something": {answer{body: "<html>2016-09-02</html>"}, "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			ec2 := serve(map[string]string{lifeCyclePath: "spot"})
			ec2.say("/", test.versions)
			checkUp(t, ec2, func(c imds.Checkup, _ time.Duration) {
				if c.Unreachable != nil || c.Build != test.build || !slices.Equal(c.Lacking, test.lacking) {
					t.Errorf("got build %q, lacking %v (%v)", c.Build, c.Lacking, c.Unreachable)
				}
			})
		})
	}
}

func TestCheck_SaysWhereAndHowFastTheServiceIs(t *testing.T) {
	slow := &lagging{next: serve(map[string]string{lifeCyclePath: "spot"}), lag: 2 * time.Second}
	inBubble(t, imds.Options{}, slow, func(t *testing.T, source *imds.Source) {
		c := source.Check(t.Context())
		if c.Unreachable != nil || c.Endpoint != "http://169.254.169.254" || !c.Slow || c.Slowest.Round(time.Second) != 2*time.Second {
			t.Errorf("of a slow service: got %+v", c)
		}
		for _, p := range c.Polls {
			if p.Result == imds.Failed {
				t.Errorf("%s", p)
			}
		}
		slow.lag = 0
		if c := source.Check(t.Context()); c.Slow || c.Slowest > 100*time.Millisecond {
			t.Errorf("of a fast service: got %+v", c)
		}
	})
}
