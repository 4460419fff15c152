package imds_test

import (
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/imds"
	"github.com/nth-project/nth/pkg/imds/imdstest"
)

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
		faults = append(faults, imdstest.Fault{Kind: kind})
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
				await(t, "trouble of "+string(kind), func() bool { return len(sink.troublesSince(kind, broken)) >= 2 })
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
	first := sink.troublesSince(kind, broken)[0]
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
