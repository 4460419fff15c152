package e2e

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/asg/asgtest"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/imds/imdstest"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/systemd"
	"github.com/nth-project/nth/test/internal/daemon"
	"github.com/nth-project/nth/test/internal/lab"
)

// Settings of single tests.
const (
	rebalanceDrains = "[events.rebalance-recommendation]\naction = \"drain\"\n"
	// withdrawnSoon takes a notice that is missing for a second as withdrawn.
	withdrawnSoon = "[imds]\nwithdrawn_after = \"1s\"\n"
)

// reboot is a reboot that EC2 has planned.
func reboot(in time.Duration) imdstest.MaintenanceEvent {
	return imdstest.MaintenanceEvent{
		EventId: "instance-event-0d59937288b749b32", Code: "system-reboot",
		NotBefore: time.Now().Add(in), NotAfter: time.Now().Add(in + 2*time.Hour),
	}
}

func TestEvent_OfADryRunChangesNothing(t *testing.T) {
	s := play(t, "dry_run = true\n"+rebalanceDrains)
	s.imds.SetRebalance(time.Now())
	s.nth.WaitSays(t, "would have drained the node: 1 pod evicted")
	s.nth.WaitStatus(t, "(dry run)")
	s.stopAfterLooks(t)
	s.mustBeUntouched(t)
}

func TestMaintenance_WaitsForItsDateAndIsUndoneIfCanceled(t *testing.T) {
	s := play(t, "")
	s.imds.AddMaintenance(reboot(24 * time.Hour))
	s.nth.WaitLog(t, systemd.EventSeen)
	s.looks(t, maintenanceDocument, 4)
	s.mustBeUntouched(t)

	ev := s.imds.AddMaintenance(reboot(5 * time.Minute))
	s.waitDrained(t)

	s.imds.WithdrawMaintenance(ev.EventId, false)
	s.waitPodsBack(t)
	s.nth.WaitLog(t, systemd.Uncordoned)
	s.stopAfterLooks(t)
	s.mustBearNoClaim(t)
	s.mustBeClosed(t, event.ScheduledMaintenance, state.Canceled)
}

// drainDownTo starts nth, and lets it drain the node for a spot notice until only the pods of a workload are left, which
// its disruption budget holds.
func (s *stage) drainDownTo(t *testing.T, app string) {
	t.Helper()
	s.start(t)
	s.imds.SetSpot("terminate", twoMinutes())
	s.nth.WaitSays(t, "disruption budget "+app+" blocks the eviction of ")
	s.waitLeft(t, app)
}

// mustBeClosed fails the test unless nth remembers the one event of the kind as over, for that reason.
func (s *stage) mustBeClosed(t *testing.T, kind event.Kind, ending state.Ending) {
	t.Helper()
	if e := s.machine.RecordOf(t, kind); e.Phase != state.Closed || e.Ending != ending || e.OnNode {
		t.Errorf("nth remembers the event as %s, %q, with a cordon: %t; want %s, %q, without", e.Phase, e.Ending, e.OnNode, state.Closed, ending)
	}
}

// The operator uncordons while nth is down, in the middle of a drain. The managed fields and times are the API server's.
func TestUncordon_InMidDrainIsKeptByTheNextProcess(t *testing.T) {
	s := prepare(t, "")
	s.node.AddDeployment(t, "web", 1, lab.MinAvailable(1))
	s.drainDownTo(t, "web")
	s.nth.Kill()
	// The API server keeps the time at which a pod is bound in whole seconds.
	<-time.After(time.Until(time.Now().Truncate(time.Second).Add(1100 * time.Millisecond)))
	s.node.Uncordon(t)
	s.waitPodsBack(t)
	back := s.podIDs(t)

	s.start(t)
	s.nth.WaitSays(t, "someone uncordoned the node")
	s.nth.WaitSays(t, "disruption budget web blocks the eviction of ")
	s.node.Scale(t, "web", 0)
	s.nth.WaitLog(t, systemd.Drained)
	s.nth.Stop(t)
	s.mustBeSchedulable(t)
	for _, pod := range s.node.Pods(t) {
		if !slices.Contains(back, pod.UID) {
			t.Errorf("pod %s is new", pod.Name)
		}
	}
	s.mustKeep(t, "regular-", 1)
}

// The hook would time out after 15 s without heartbeats.
func TestHook_IsHeldUntilTheNodeIsDrained(t *testing.T) {
	aws := asgtest.NewServer()
	t.Cleanup(aws.Close)
	aws.AddGroup("workers", asgtest.Hook{Name: "drain", HeartbeatTimeout: 15 * time.Second})
	aws.AddInstance("workers", imdstest.InstanceID)
	s := prepare(t, "[events.asg-termination]\ncomplete_hook = true\n")
	s.configure(t, func(o *daemon.Options) { o.Env = []string{"AWS_ENDPOINT_URL_AUTO_SCALING=" + aws.URL} })
	s.node.AddDeployment(t, "held", 1, lab.MinAvailable(1))
	s.watch(t)
	action := func() asgtest.Action { return aws.Actions(imdstest.InstanceID)[0] }
	await := func(what string, holds func() bool) {
		t.Helper()
		if err := aws.Await(t.Context(), what, holds); err != nil {
			t.Fatal(err)
		}
	}

	aws.Terminate(imdstest.InstanceID)
	s.imds.SetLifecycleState("Terminated")
	s.node.WaitCordoned(t)
	await("heartbeats", func() bool { return len(action().Heartbeats) >= 2 })
	if a := action(); a.Result != "" {
		t.Fatalf("the hook is completed before the drain: %+v", a)
	}
	s.release(t, "held")
	s.waitDrained(t)
	await("the completion", func() bool { return action().Result != "" })
	s.nth.WaitLog(t, systemd.HookCompleted)
	s.stopAfterLooks(t)
	if a, calls := action(), aws.Calls("CompleteLifecycleAction"); a.Result != "CONTINUE" || a.TimedOut || len(calls) != 1 {
		t.Errorf("the hook is %+v, completed by %s", a, fmt.Sprint(calls))
	}
}
