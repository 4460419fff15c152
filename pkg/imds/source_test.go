package imds_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/imds"
)

func TestNew_RefusesOptionsThatCannotWork(t *testing.T) {
	for name, test := range map[string]struct {
		opts imds.Options
		want string
	}{
		"a negative interval":  {imds.Options{Interval: -time.Second}, "must be positive"},
		"an unknown mode":      {imds.Options{BootID: "1", EndpointMode: "IPv5"}, `AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE="IPv5": it must be IPv4 or IPv6`},
		"no boot ID":           {imds.Options{}, "boot ID"},
		"no boot ID, asked so": {imds.Options{Kinds: []event.Kind{event.ASGTermination}}, "boot ID"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := imds.New(test.opts); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got error %v, want one that says %q", err, test.want)
			}
		})
	}
}

// announced is everything at once.
var announced = map[string]string{
	spotPath:        `{"action":"terminate","time":"2017-09-18T08:22:00Z"}`,
	rebalancePath:   `{"noticeTime":"2020-10-27T08:22:00Z"}`,
	targetStatePath: "Terminated",
	scheduledPath:   listOf(planned("i-1", "active")),
}

// imdsKinds are the kinds that the metadata service announces.
var imdsKinds = []event.Kind{
	event.SpotInterruption, event.RebalanceRecommendation, event.ScheduledMaintenance, event.ASGTermination,
}

// paths are the first documents of the kinds.
var paths = map[event.Kind]string{
	event.SpotInterruption: spotPath, event.RebalanceRecommendation: rebalancePath,
	event.ScheduledMaintenance: scheduledPath, event.ASGTermination: targetStatePath,
}

func TestSource_PollsTheKindsThatItIsAskedFor(t *testing.T) {
	lasting := []event.Kind{event.ScheduledMaintenance, event.ASGTermination}
	for name, test := range map[string]struct {
		kinds  []event.Kind
		polled []event.Kind
		says   string
	}{
		"all":       {nil, imdsKinds, "polling for spot-interruption, rebalance-recommendation, scheduled-maintenance, asg-termination"},
		"not all":   {lasting, lasting, "polling for scheduled-maintenance, asg-termination"},
		"none here": {[]event.Kind{event.Shutdown}, nil, "nothing is polled"},
	} {
		t.Run(name, func(t *testing.T) {
			ec2, opts := serve(announced), imds.Options{Kinds: test.kinds, BootID: "b"}
			if source, err := imds.New(opts); err != nil || source.Polled() != test.says {
				t.Errorf("it says %q (%v), want %q", source.Polled(), err, test.says)
			}
			bubble(t, opts, ec2, func(t *testing.T, sink *sink) {
				time.Sleep(headStart)
				synctest.Wait()
				for _, kind := range imdsKinds {
					snapshots, _ := sink.of(kind)
					asked := len(ec2.times(paths[kind]))
					isPolled := asked > 0 && len(snapshots) > 0 && len(snapshots[0].events) == 1
					if isPolled != slices.Contains(test.polled, kind) || !isPolled && asked+len(snapshots) > 0 {
						t.Errorf("%s: asked %d times, got %+v", kind, asked, snapshots)
					}
				}
			})
		})
	}
}

func TestInstance_IsDescribedAsFarAsItCanBeRead(t *testing.T) {
	ec2 := serve(map[string]string{
		"instance-id": "i-1234567890abcdef0", "instance-type": "m5.large", lifeCyclePath: "spot",
		"placement/region": "us-east-1", "placement/availability-zone": "us-east-1a", "local-ipv4": "10.0.0.4",
		"local-hostname": "ip-10-0-0-4.ec2.internal", "public-ipv4": "192.0.2.1",
		"dynamic/instance-identity/document": `{"accountId": "123456789012", "devpayProductCodes": null}`,
	})
	want := imds.Instance{
		ID: "i-1234567890abcdef0", Type: "m5.large", LifeCycle: "spot", Account: "123456789012",
		Region: "us-east-1", Zone: "us-east-1a",
		LocalIP: "10.0.0.4", LocalName: "ip-10-0-0-4.ec2.internal", PublicIP: "192.0.2.1",
	}
	inBubble(t, imds.Options{}, ec2, func(t *testing.T, source *imds.Source) {
		if got, err := source.Instance(t.Context()); err != nil || got != want {
			t.Errorf("got %+v, %v\nwant %+v", got, err, want)
		}
		ec2.say("instance-type", answer{status: 500})
		ec2.say("local-hostname", answer{body: "\x00"})
		want.Type, want.LocalName = "", ""
		got, err := source.Instance(t.Context())
		if got != want {
			t.Errorf("with two faults: got %+v\nwant %+v", got, want)
		}
		if err == nil || !strings.Contains(err.Error(), "instance-type") || !strings.Contains(err.Error(), "local-hostname") {
			t.Errorf("got error %v, want one that names both", err)
		}
	})
}

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
