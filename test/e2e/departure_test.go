package e2e

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nth-project/nth/pkg/imds/imdstest"
	"github.com/nth-project/nth/pkg/systemd"
	"github.com/nth-project/nth/test/internal/lab"
)

// serve has the group put the instance into service, and nth see that.
func (g *group) serve(t *testing.T) {
	t.Helper()
	g.imds.SetLifecycleState("InService")
	g.looks(t, lifecycleDocument, 3)
}

// state is the one that the instance is in.
func (g *group) state() string { return g.aws.State(imdstest.InstanceID) }

func TestAnInstanceThatIsTakenBackToTheWarmPoolIsDrainedAndItsHookCompleted(t *testing.T) {
	for target, states := range map[string][2]string{
		"Warmed:Running":      {"Warmed:Pending:Wait", "Warmed:Pending:Proceed"},
		"ReplacingRootVolume": {"ReplacingRootVolume:Wait", "ReplacingRootVolume:Proceed"},
	} {
		t.Run(target, func(t *testing.T) {
			g := inGroup(t, "", hook)
			g.watches(t)
			g.serve(t)
			g.aws.SetState(imdstest.InstanceID, states[0])
			g.imds.SetLifecycleState(target)
			g.node.WaitCordoned(t)
			g.waitBeats(t, 3)
			g.release(t)
			g.waitDrained(t)
			g.waitCompleted(t)
			g.stopAfterLooks(t)
			g.mustBeCompletedOnce(t)
			if got := g.state(); got != states[1] {
				t.Errorf("the instance is %s, want %s", got, states[1])
			}
		})
	}
}

// nth is killed between the service and the return to the warm pool, and knows all the same that the instance was in service.
func TestThatAnInstanceWasInServiceIsKnownToTheNextProcess(t *testing.T) {
	g := inGroup(t, "", hook)
	g.watches(t)
	g.serve(t)
	g.nth.Kill()
	g.imds.SetLifecycleState("Warmed:Stopped")
	g.aws.SetState(imdstest.InstanceID, "Warmed:Pending:Wait")
	g.start(t)
	g.node.WaitCordoned(t)
	g.release(t)
	g.waitDrained(t)
	g.waitCompleted(t)
	g.mustBeCompletedOnce(t)
}

func TestAnInstanceThatIsPreparedInTheWarmPoolIsNotTouched(t *testing.T) {
	g := inGroup(t, "", hook)
	g.imds.SetLifecycleState("Warmed:Stopped")
	g.watches(t)
	g.stopAfterLooks(t)
	g.mustKeepPods(t)
	if calls := g.aws.Calls(""); len(calls) > 0 {
		t.Errorf("Auto Scaling was asked %v", calls)
	}
}

func TestTheHookOfANodeThatPeopleWantLeftAloneIsNotCompletedUntilTheyGiveItFree(t *testing.T) {
	g := inGroup(t, "", hook)
	g.node.Annotate(t, "nth-project.github.io/action", "cordon")
	g.watches(t)
	g.terminate()
	g.nth.WaitLog(t, systemd.DrainLeft)
	g.waitBeats(t, 4)
	if calls := g.aws.Calls("CompleteLifecycleAction"); len(calls) > 0 {
		t.Fatalf("the hook is completed: %v", calls)
	}
	g.nth.Kill() // The next process remembers it.
	g.start(t)
	g.waitBeats(t, 2)
	g.node.Annotate(t, "nth-project.github.io/action", "drain")
	g.release(t)
	g.waitDrained(t)
	g.waitCompleted(t)
	g.mustBeCompletedOnce(t)
}

func TestAMachineWithPodsLeftIsKeptWhereTheGroupDoesThat(t *testing.T) {
	g := inGroup(t, "on_incomplete = \"abandon\"\nbudget = \"5s\"\n", hook)
	g.aws.Retain("workers", true)
	g.node.AddPod(t, "stuck", lab.Edit(func(p *corev1.PodTemplateSpec) { p.Finalizers = []string{"example.com/stuck"} }))
	pods := lab.Shared(t).Admin.CoreV1().Pods(g.node.Namespace)
	t.Cleanup(func() {
		_, err := pods.Patch(context.WithoutCancel(t.Context()), "stuck", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		if err != nil {
			t.Errorf("letting the pod go: %v", err)
		}
	})
	g.watches(t)
	g.terminate()
	g.waitCompleted(t)
	if a := g.hook(t); a.Result != "ABANDON" || a.TimedOut || g.state() != "Terminating:Retained" {
		t.Errorf("the hook is %+v, and the instance %s", a, g.state())
	}
}
