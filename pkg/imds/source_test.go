package imds_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/imds"
	"github.com/nth-project/nth/pkg/imds/imdstest"
)

func TestOptionsThatCannotWorkAreRefused(t *testing.T) {
	for name, test := range map[string]struct {
		opts imds.Options
		want string
	}{
		"no URL":               {imds.Options{Endpoint: "169.254.169.254"}, "must look like"},
		"another scheme":       {imds.Options{Endpoint: "ftp://169.254.169.254"}, "must look like"},
		"a path":               {imds.Options{Endpoint: "http://169.254.169.254/latest"}, "must end after"},
		"a query":              {imds.Options{Endpoint: "http://169.254.169.254?x"}, "must end after"},
		"not even a URL":       {imds.Options{Endpoint: "http://[::1"}, "reading the metadata endpoint"},
		"a negative interval":  {imds.Options{RebalanceInterval: -time.Second}, "must be positive"},
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

func TestOptionsThatWorkAreTaken(t *testing.T) {
	for name, opts := range map[string]imds.Options{
		"defaults":                   {BootID: "1"},
		"IPv6":                       {BootID: "1", Endpoint: "http://[fd00:ec2::254]"},
		"a closing slash":            {BootID: "1", Endpoint: "http://127.0.0.1:1338/"},
		"no boot ID where none used": {Kinds: []event.Kind{event.SpotInterruption}},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := imds.New(opts); err != nil {
				t.Error(err)
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

func TestLifeCycleDecidesWhatIsPolled(t *testing.T) {
	all, notSpot := imdsKinds, []event.Kind{event.ScheduledMaintenance, event.ASGTermination}
	for name, test := range map[string]struct {
		lifeCycle answer
		only      []string // Options.LifeCycles
		kinds     []event.Kind
		polled    []event.Kind
		told      string // a part of the scope's sentence; "" if nobody is told
	}{
		"spot":                             {answer{body: "spot\n"}, nil, nil, all, "spot instance"},
		"on-demand":                        {answer{body: "on-demand"}, nil, nil, all, "on-demand instance, polling for scheduled-maintenance, asg-termination; every 5s for what such instances are not sent: spot-interruption, rebalance-recommendation"},
		"scheduled":                        {answer{body: "scheduled"}, nil, nil, all, "scheduled instance, polling for scheduled-maintenance"},
		"capacity block":                   {answer{body: "capacity-block"}, nil, nil, all, "capacity-block instance, polling for scheduled-maintenance"},
		"a life cycle of the future":       {answer{body: "interruptible-leap"}, nil, nil, all, "interruptible-leap"},
		"absent":                           {answer{}, nil, nil, all, ""},
		"broken":                           {answer{status: 500}, nil, nil, all, ""},
		"hanging":                          {answer{hang: true}, nil, nil, all, ""},
		"garbage":                          {answer{body: "<html>"}, nil, nil, all, ""},
		"spot only, on spot":               {answer{body: "spot"}, []string{"spot"}, nil, all, "spot instance"},
		"spot only, on demand":             {answer{body: "on-demand"}, []string{"spot"}, nil, nil, "standing by"},
		"spot only, unknown":               {answer{status: 500}, []string{"spot"}, nil, all, ""},
		"not all kinds":                    {answer{body: "spot"}, nil, notSpot, notSpot, "spot instance"},
		"none of the kinds":                {answer{body: "spot"}, nil, []event.Kind{event.Shutdown}, nil, "nothing is polled"},
		"on demand, kinds of spot only":    {answer{body: "on-demand"}, nil, []event.Kind{event.SpotInterruption}, []event.Kind{event.SpotInterruption}, "polling every 5s for what such instances are not sent: spot-interruption"},
		"two life cycles, one is the same": {answer{body: "on-demand"}, []string{"spot", "on-demand"}, nil, all, "on-demand"},
	} {
		t.Run(name, func(t *testing.T) {
			ec2 := serve(announced)
			ec2.say(lifeCyclePath, test.lifeCycle)
			var told []imds.Scope
			opts := imds.Options{LifeCycles: test.only, Kinds: test.kinds, Told: func(s imds.Scope) { told = append(told, s) }}
			bubble(t, opts, ec2, func(t *testing.T, sink *sink) {
				time.Sleep(5 * time.Minute)
				synctest.Wait()
				for _, kind := range imdsKinds {
					judgeScope(t, kind, opts, ec2, sink, test.polled)
				}
				if (test.told != "") != (len(told) == 1) {
					t.Fatalf("told %v", told)
				}
				if test.told != "" && !strings.Contains(told[0].String(), test.told) {
					t.Errorf("told %q, want it to say %q", told[0], test.told)
				}
			})
		})
	}
}

// judgeScope checks that a kind is polled, ruled out with one empty snapshot, or not spoken of because nobody asked.
func judgeScope(t *testing.T, kind event.Kind, opts imds.Options, ec2 *service, sink *sink, polled []event.Kind) {
	t.Helper()
	snapshots, _ := sink.of(kind)
	asked := len(ec2.times(paths[kind]))
	switch {
	case slices.Contains(polled, kind):
		if asked == 0 || len(snapshots) == 0 || len(snapshots[0].events) != 1 {
			t.Errorf("%s: asked %d times, got %+v, want it polled", kind, asked, snapshots)
		}
	case opts.Kinds != nil && !slices.Contains(opts.Kinds, kind):
		if asked > 0 || len(snapshots) > 0 {
			t.Errorf("%s: asked %d times, got %d snapshots, want none", kind, asked, len(snapshots))
		}
	default:
		if asked > 0 || len(snapshots) != 1 || len(snapshots[0].events) > 0 {
			t.Errorf("%s: asked %d times, got %+v, want one empty snapshot", kind, asked, snapshots)
		}
	}
}

func TestLifeCycleThatComesLateStopsWhatTheSettingsLeaveOut(t *testing.T) {
	ec2 := serve(announced)
	ec2.say(lifeCyclePath, answer{status: 500})
	bubble(t, imds.Options{LifeCycles: []string{"spot"}}, ec2, func(t *testing.T, sink *sink) {
		time.Sleep(time.Minute)
		if events, _ := sink.last(event.SpotInterruption); len(events) != 1 {
			t.Fatalf("while the life cycle is unknown: got %v, want the interruption", events)
		}
		ec2.say(lifeCyclePath, answer{body: "on-demand"})
		time.Sleep(2 * time.Minute)
		asked := len(ec2.times(spotPath))
		for _, kind := range imdsKinds {
			if events, _ := sink.last(kind); len(events) > 0 {
				t.Errorf("%s: got %v, want the last word to be an empty snapshot", kind, events)
			}
		}
		time.Sleep(time.Minute)
		if more := len(ec2.times(spotPath)); more > asked {
			t.Errorf("the spot notice was asked for %d times more", more-asked)
		}
	})
}

func TestLifeCycleThatComesLateMakesWhatItDoesNotBringSeldom(t *testing.T) {
	ec2 := serve(announced)
	ec2.say(lifeCyclePath, answer{status: 500})
	bubble(t, imds.Options{}, ec2, func(t *testing.T, sink *sink) {
		time.Sleep(time.Minute)
		judgeRates(t, ec2, time.Now().Add(-30*time.Second), map[string]rate{spotPath: {115, 125}})
		ec2.say(lifeCyclePath, answer{body: "on-demand"})
		time.Sleep(2 * time.Minute)
		began := time.Now()
		time.Sleep(10 * time.Minute)
		judgeRates(t, ec2, began, map[string]rate{spotPath: {11.5, 12.5}, rebalancePath: {11.5, 12.5}, targetStatePath: {29, 31}})
		for _, kind := range imdsKinds {
			if events, _ := sink.last(kind); len(events) != 1 {
				t.Errorf("%s: got %v, want what is announced to stand", kind, events)
			}
		}
	})
}

func TestFirstLookDoesNotWaitForTheLifeCycle(t *testing.T) {
	ec2 := serve(announced)
	ec2.say(lifeCyclePath, answer{hang: true})
	bubble(t, imds.Options{}, ec2, func(t *testing.T, sink *sink) {
		began := time.Now()
		time.Sleep(headStart)
		snapshots, _ := sink.of(event.SpotInterruption)
		if len(snapshots) == 0 {
			t.Fatalf("no snapshot after %s", time.Since(began))
		}
	})
}

func TestInstanceIsDescribed(t *testing.T) {
	ec2 := serve(map[string]string{
		"instance-id": "i-1234567890abcdef0", "instance-type": "m5.large", lifeCyclePath: "spot", "ami-id": "ami-1",
		"placement/region": "us-east-1", "placement/availability-zone": "us-east-1a", "local-ipv4": "10.0.0.4",
		"local-hostname": "ip-10-0-0-4.ec2.internal", "public-ipv4": "192.0.2.1",
		"dynamic/instance-identity/document": `{"accountId": "123456789012", "devpayProductCodes": null}`,
	})
	want := imds.Instance{
		ID: "i-1234567890abcdef0", Type: "m5.large", LifeCycle: "spot", Image: "ami-1", Account: "123456789012",
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

// TestWhatIsAnnouncedIsHeededWhateverTheLifeCycleSays asks a service that is shaped like amazon-ec2-metadata-mock with its
// defaults, started as "spot --action terminate": its life cycle is on-demand, and it computes the times anew at each look.
func TestWhatIsAnnouncedIsHeededWhateverTheLifeCycleSays(t *testing.T) {
	ec2 := serve(map[string]string{lifeCyclePath: "on-demand"})
	mock := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch now := time.Now().UTC(); {
		case strings.HasSuffix(r.URL.Path, spotPath):
			_, _ = fmt.Fprintf(w, "{\n\t\"action\": \"terminate\",\n\t\"time\": %q\n}", now.Add(2*time.Minute).Format(time.RFC3339))
		case strings.HasSuffix(r.URL.Path, rebalancePath):
			_, _ = fmt.Fprintf(w, "{\n\t\"noticeTime\": %q\n}", now.Format(time.RFC3339))
		default:
			ec2.ServeHTTP(w, r)
		}
	})
	var told []imds.Scope
	opts := imds.Options{Told: func(s imds.Scope) { told = append(told, s) }}
	bubble(t, opts, mock, func(t *testing.T, sink *sink) {
		time.Sleep(headStart)
		for _, kind := range []event.Kind{event.SpotInterruption, event.RebalanceRecommendation} {
			if events, _ := sink.last(kind); len(events) != 1 {
				t.Fatalf("%s: got %v at once, want what is announced", kind, events)
			}
		}
		time.Sleep(time.Minute)
		snapshots, troubles := sink.of(event.SpotInterruption)
		if len(snapshots) < 11 || len(snapshots) > 15 || len(troubles) > 0 {
			t.Errorf("%d looks and %d troubles in a minute, want one look every five seconds", len(snapshots), len(troubles))
		}
		for _, s := range snapshots {
			if len(s.events) != 1 || s.events[0].Code != "terminate" || s.events[0].Deadline.Sub(s.at) > 2*time.Minute {
				t.Errorf("got %+v", s.events)
			}
		}
		if len(told) != 1 || !strings.Contains(told[0].String(), "every 5s for what such instances are not sent: spot-interruption, rebalance-recommendation") {
			t.Errorf("told %v", told)
		}
	})
}

// TestServiceFaultsAreOutlived breaks a faithful service in every way it knows. While it is broken, all there is to hear is
// trouble: nothing new, no all clear, and no crowd of requests. Once it is repaired, what waits is found.
func TestServiceFaultsAreOutlived(t *testing.T) {
	faults := []imdstest.Fault{
		{Kind: imdstest.Status, Status: 503},
		{Kind: imdstest.Status, Status: 403},
		{Kind: imdstest.Status, Status: 404, Path: "/latest/api/token"},
		{Kind: imdstest.Hang, Path: "/latest/api/token"},
		{Kind: imdstest.Reset, Path: "/latest/api/token"},
		{Kind: imdstest.Garbage, Path: "/latest/api/token"},
		{Kind: imdstest.Oversized, Path: "/latest/api/token"},
	}
	for _, kind := range imdstest.Kinds() {
		if kind != imdstest.Slow { // which is no trouble
			faults = append(faults, imdstest.Fault{Kind: kind})
		}
	}
	for _, fault := range faults {
		t.Run(fault.String(), func(t *testing.T) {
			t.Parallel()
			ec2 := imdstest.NewServer()
			t.Cleanup(ec2.Close)
			at := time.Now().Add(2 * time.Minute).Truncate(time.Second).UTC()
			ec2.SetRebalance(at)
			ec2.AddMaintenance(imdstest.MaintenanceEvent{Code: "instance-stop", NotBefore: at})
			sink := poll(t, imds.Options{Endpoint: ec2.URL})
			awaitEvents(t, sink, map[event.Kind]int{
				event.SpotInterruption: 0, event.ASGTermination: 0, event.RebalanceRecommendation: 1, event.ScheduledMaintenance: 1,
			})

			ec2.Fault(fault)
			broken := time.Now()
			ec2.ExpireTokens()
			ec2.SetSpot("terminate", at)
			ec2.SetLifecycleState("Terminated")
			for _, kind := range imdsKinds {
				enough := 3
				if fault.Kind == imdstest.Hang || fault.Kind == imdstest.Oversized {
					enough = 1 // each takes its time
				}
				await(t, "trouble of "+string(kind), func() bool { return len(sink.troublesSince(kind, broken)) >= enough })
				judgeHeld(t, sink, kind, broken)
			}
			if most := ec2.Requests().MostInFlight; most > 2*len(imdsKinds) {
				t.Errorf("%d requests at once", most)
			}

			ec2.Lift()
			awaitEvents(t, sink, map[event.Kind]int{
				event.SpotInterruption: 1, event.ASGTermination: 1, event.RebalanceRecommendation: 1, event.ScheduledMaintenance: 1,
			})
			if events, _ := sink.last(event.SpotInterruption); events[0].Code != "terminate" || !events[0].Deadline.Equal(at) {
				t.Errorf("got %+v, want to be terminated at %s", events[0], at)
			}
		})
	}
}

// judgeHeld checks that nothing but trouble was heard of a kind since the first trouble that the fault has made. There may
// be some before, on a busy host.
func judgeHeld(t *testing.T, sink *sink, kind event.Kind, broken time.Time) {
	t.Helper()
	troubles := sink.troublesSince(kind, broken)
	first := troubles[0]
	snapshots, _ := sink.of(kind)
	for _, s := range snapshots {
		if s.at.After(first.at) {
			t.Errorf("%s: got snapshot %+v while the service was broken (%v)", kind, s.events, first.err)
		}
	}
}

// awaitEvents waits until the newest snapshots hold that many events.
func awaitEvents(t *testing.T, sink *sink, want map[event.Kind]int) {
	t.Helper()
	for kind, n := range want {
		await(t, string(kind), func() bool {
			events, ok := sink.last(kind)
			return ok && len(events) == n
		})
	}
}

func TestSlowServiceIsGoodEnough(t *testing.T) {
	t.Parallel()
	ec2 := imdstest.NewServer()
	t.Cleanup(ec2.Close)
	ec2.SetSpot("stop", time.Now().Add(2*time.Minute))
	ec2.Fault(imdstest.Fault{Kind: imdstest.Slow, Over: 300 * time.Millisecond})
	sink := poll(t, imds.Options{Endpoint: ec2.URL})
	awaitEvents(t, sink, map[event.Kind]int{event.SpotInterruption: 1})
}

func TestExpiredTokensAreRenewedInTheSamePoll(t *testing.T) {
	t.Parallel()
	ec2 := imdstest.NewServer()
	t.Cleanup(ec2.Close)
	sink := poll(t, imds.Options{Endpoint: ec2.URL})
	awaitEvents(t, sink, map[event.Kind]int{event.SpotInterruption: 0, event.ASGTermination: 0})
	for round := 1; round <= 5; round++ {
		refused := ec2.Requests().ByStatus[401]
		ec2.ExpireTokens()
		await(t, "a refused token", func() bool { return ec2.Requests().ByStatus[401] > refused })
		if round%2 == 1 {
			ec2.SetSpot("terminate", time.Now().Add(2*time.Minute))
		} else {
			ec2.ClearSpot()
		}
		awaitEvents(t, sink, map[event.Kind]int{event.SpotInterruption: round % 2})
		// All have a new token once they have looked twice more. One that expires before its first use is another story.
		for _, kind := range imdsKinds {
			before, _ := sink.of(kind)
			await(t, string(kind), func() bool {
				now, _ := sink.of(kind)
				return len(now) >= len(before)+2
			})
		}
	}
	for _, kind := range imdsKinds {
		if _, troubles := sink.of(kind); len(troubles) > 0 {
			t.Errorf("%s: got trouble: %v", kind, troubles[0].err)
		}
	}
}

func TestEventsComeAndGo(t *testing.T) {
	t.Parallel()
	ec2 := imdstest.NewServer()
	t.Cleanup(ec2.Close)
	sink := poll(t, imds.Options{Endpoint: ec2.URL})
	awaitEvents(t, sink, map[event.Kind]int{event.SpotInterruption: 0, event.ScheduledMaintenance: 0})

	at := time.Now().Add(time.Hour).Truncate(time.Second).UTC()
	first := ec2.AddMaintenance(imdstest.MaintenanceEvent{Code: "system-reboot", NotBefore: at, NotAfter: at.Add(time.Hour)})
	ec2.AddMaintenance(imdstest.MaintenanceEvent{Code: "instance-retirement", NotBefore: at})
	awaitEvents(t, sink, map[event.Kind]int{event.ScheduledMaintenance: 2})
	events, _ := sink.last(event.ScheduledMaintenance)
	if e := events[0]; e.ID != first.EventId || !e.Deadline.Equal(at) || !e.Until.Equal(at.Add(time.Hour)) || e.State != event.Pending {
		t.Errorf("got %+v, want %+v", e, first)
	}

	ec2.WithdrawMaintenance(first.EventId, false)
	await(t, "the cancellation", func() bool {
		events, _ := sink.last(event.ScheduledMaintenance)
		for _, e := range events {
			if e.ID == first.EventId {
				return e.State == event.Canceled && len(events) == 2
			}
		}
		return false
	})

	ec2.SetLifecycleState("InService")
	ec2.SetLifecycleState("Terminated")
	awaitEvents(t, sink, map[event.Kind]int{event.ASGTermination: 1})
	ec2.SetLifecycleState("InService")
	awaitEvents(t, sink, map[event.Kind]int{event.ASGTermination: 0})
}

func TestFaithfulInstanceIsDescribed(t *testing.T) {
	t.Parallel()
	ec2 := imdstest.NewServer()
	t.Cleanup(ec2.Close)
	got, err := newSource(t, imds.Options{Endpoint: ec2.URL}).Instance(t.Context())
	if err != nil {
		t.Error(err)
	}
	if got.ID != imdstest.InstanceID || got.Type != imdstest.InstanceType || got.LifeCycle != "spot" ||
		got.Zone != imdstest.AvailabilityZone || got.Region != imdstest.Region ||
		got.LocalIP != imdstest.LocalIPv4 || got.LocalName != imdstest.LocalHostname {
		t.Errorf("got %+v", got)
	}
}
