package e2e

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nth-project/nth/pkg/asg/asgtest"
	"github.com/nth-project/nth/pkg/imds/imdstest"
	"github.com/nth-project/nth/pkg/systemd"
	"github.com/nth-project/nth/test/internal/lab"
)

// A group is a stage on an instance of an Auto Scaling group, whose pods are held by a disruption budget until the test
// lets them go.
type group struct {
	*stage
	aws *asgtest.Server
}

// hook needs a heartbeat every two seconds.
var hook = asgtest.Hook{Name: "drain", HeartbeatTimeout: 6 * time.Second}

const heldPods = "held"

// inGroup sets the stage; nth does not run yet.
func inGroup(t *testing.T, settings string, hooks ...asgtest.Hook) *group {
	t.Helper()
	g := &group{stage: prepare(t, ""), aws: asgtest.NewServer()}
	t.Cleanup(g.aws.Close)
	g.aws.AddGroup("workers", hooks...)
	g.aws.AddInstance("workers", imdstest.InstanceID)
	g.options.Settings = fmt.Sprintf("[events.asg-termination]\ncomplete_hook = true\n%s", settings)
	g.options.Env = []string{"AWS_ENDPOINT_URL_AUTO_SCALING=" + g.aws.URL}
	g.machine.Configure(t, g.options)
	g.node.AddDeployment(t, heldPods, 1, lab.MinAvailable(1))
	return g
}

// watches starts nth and waits until it watches.
func (g *group) watches(t *testing.T) {
	t.Helper()
	g.start(t)
	g.nth.WaitWatching(t, g.node.Name)
}

// terminate has the group end the instance.
func (g *group) terminate() {
	g.aws.Terminate(imdstest.InstanceID)
	g.imds.SetLifecycleState("Terminated")
}

// release lets the pods go that are held.
func (g *group) release(t *testing.T) {
	t.Helper()
	budgets := lab.Shared(t).Admin.PolicyV1().PodDisruptionBudgets(g.node.Namespace)
	if err := budgets.Delete(t.Context(), heldPods, metav1.DeleteOptions{}); err != nil {
		t.Fatalf("removing the budget: %v", err)
	}
}

// hook is what became of the first hook.
func (g *group) hook(t *testing.T) asgtest.Action {
	t.Helper()
	actions := g.aws.Actions(imdstest.InstanceID)
	if len(actions) == 0 {
		t.Fatalf("no hook waits; the calls were %v", g.aws.Calls(""))
	}
	return actions[0]
}

// waitAWS waits for what nth is to bring about at Auto Scaling.
func (g *group) waitAWS(t *testing.T, what string, holds func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := g.aws.Await(ctx, what, holds); err != nil {
		t.Fatal(err)
	}
}

// waitBeats waits for so many further heartbeats. The hook would have timed out without any after six seconds.
func (g *group) waitBeats(t *testing.T, count int) {
	t.Helper()
	goal := len(g.hook(t).Heartbeats) + count
	g.waitAWS(t, "heartbeats", func() bool { return len(g.hook(t).Heartbeats) >= goal })
}

func (g *group) waitCompleted(t *testing.T) {
	t.Helper()
	g.waitAWS(t, "the completion", func() bool { return g.hook(t).Result != "" })
}

// mustBeCompletedOnce fails the test unless nth, and nobody's clock, has let the instance go on.
func (g *group) mustBeCompletedOnce(t *testing.T) {
	t.Helper()
	effective := slices.DeleteFunc(g.aws.Calls("CompleteLifecycleAction"), func(c asgtest.Call) bool { return c.Status != 200 })
	if a := g.hook(t); a.Result != "CONTINUE" || a.TimedOut || len(effective) != 1 {
		t.Errorf("the hook is %+v, completed by %v", a, effective)
	}
}

func TestHook_IsHeldUntilTheNodeIsDrained(t *testing.T) {
	g := inGroup(t, "", hook)
	g.watches(t)
	g.terminate()
	g.node.WaitCordoned(t)
	g.waitBeats(t, 5)
	if a := g.hook(t); a.Result != "" {
		t.Fatalf("the hook is completed before the drain: %+v", a)
	}
	g.release(t)
	g.waitDrained(t)
	g.waitCompleted(t)
	g.nth.WaitLog(t, systemd.HookCompleted)
	g.stopAfterLooks(t)
	g.mustBeCompletedOnce(t)
	for n, at := range g.hook(t).Heartbeats[1:] {
		if before := g.hook(t).Heartbeats[n]; at.Sub(before) < 900*time.Millisecond {
			t.Errorf("heartbeat %d came %s after the one before", n+1, at.Sub(before))
		}
	}
}

func TestAKillInTheMidstOfATerminationStillCompletesItsHookOnce(t *testing.T) {
	patient := hook
	patient.HeartbeatTimeout = time.Minute // nobody sends heartbeats while nth is dead
	g := inGroup(t, "", patient)
	g.watches(t)
	g.terminate()
	g.waitAWS(t, "a heartbeat", func() bool { return len(g.aws.Calls("RecordLifecycleActionHeartbeat")) > 0 })
	g.nth.Kill()
	g.start(t)
	g.waitBeats(t, 1)

	// The completion gets lost on its way, and nth with it.
	g.aws.Fail(asgtest.Fault{Action: "CompleteLifecycleAction", Times: 1, Status: 500, Code: "InternalFailure", Delay: 500 * time.Millisecond})
	g.release(t)
	g.waitDrained(t)
	g.waitAWS(t, "an attempt to complete", func() bool { return len(g.aws.Calls("CompleteLifecycleAction")) > 0 })
	g.nth.Kill()
	g.start(t)
	g.waitCompleted(t)
	g.nth.Kill()
	g.start(t)
	g.nth.WaitSays(t, "does not wait for its lifecycle hooks any more")
	g.stopAfterLooks(t)
	g.mustBeCompletedOnce(t)
	g.mustSayNothingOf(t, systemd.DrainStarted)
}
