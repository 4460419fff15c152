package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nth-project/nth/pkg/imds/imdstest"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/systemd"
	"github.com/nth-project/nth/pkg/targets/elbtest"
	"github.com/nth-project/nth/test/internal/daemon"
	"github.com/nth-project/nth/test/internal/lab"
)

// excludeLabel takes a node out of load balancers, as docs/node-contract.md has it.
const excludeLabel = "node.kubernetes.io/exclude-from-external-load-balancers"

// balanced is a stage on an instance that is a target in a group, for which Elastic Load Balancing can be asked.
type balanced struct {
	*stage
	elb *elbtest.Server
	web string // the group's ARN
}

// elbEndpoint is the variable that names another endpoint of Elastic Load Balancing.
const elbEndpoint = "AWS_ENDPOINT_URL_ELASTIC_LOAD_BALANCING_V2="

// behindBalancers sets the stage; nth does not run yet. Once the machine is taken out, it drains for so long.
func behindBalancers(t *testing.T, delay time.Duration, settings string) *balanced {
	t.Helper()
	b := &balanced{stage: prepare(t, ""), elb: elbtest.NewServer()}
	t.Cleanup(b.elb.Close)
	b.web = b.elb.AddGroup("web", elbtest.Group{Delay: delay})
	b.elb.Register(b.web, imdstest.InstanceID, 30080)
	b.options.Settings = fmt.Sprintf("[load_balancers]\ntarget_groups = [%q]\n[drain]\n%s",
		b.web, settings)
	b.options.Env = []string{elbEndpoint + b.elb.URL}
	b.machine.Configure(t, b.options)
	return b
}

// watches starts nth and waits until it watches.
func (b *balanced) watches(t *testing.T) {
	t.Helper()
	b.start(t)
	b.nth.WaitWatching(t, b.node.Name)
}

// takenOut has the machine taken out once the Node has its label, as the AWS Load Balancer Controller would.
func (b *balanced) takenOut(t *testing.T) {
	t.Helper()
	b.node.WaitFor(t, "the node is to be taken out", func(n *corev1.Node) bool { return n.Labels[excludeLabel] != "" })
	b.elb.Deregister(imdstest.InstanceID)
}

// asked waits until Elastic Load Balancing has been asked so many times more.
func (b *balanced) asked(t *testing.T, more int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	goal := len(b.elb.Calls("DescribeTargetHealth")) + more
	if err := b.elb.Await(ctx, "requests", func() bool { return len(b.elb.Calls("DescribeTargetHealth")) >= goal }); err != nil {
		t.Fatal(err)
	}
}

func TestPodsAreEvictedWhenTheMachineIsOutOfItsTargetGroups(t *testing.T) {
	b := behindBalancers(t, 8*time.Second, "") // longer than the time between two looks
	b.watches(t)
	b.imds.SetSpot("terminate", twoMinutes())
	b.nth.WaitSays(t, "waiting for load balancers: 1 target is still healthy in tg/web")
	b.asked(t, 2)
	b.mustKeepPods(t)
	b.takenOut(t)
	b.nth.WaitSays(t, "waiting for load balancers: 1 target is still draining in tg/web")
	b.mustKeepPods(t)
	b.nth.WaitSays(t, "load balancers have deregistered the node")
	if left := b.elb.Targets(b.web); len(left) > 0 {
		t.Errorf("nth says that load balancers have deregistered the node, and there is %+v", left)
	}
	b.waitDrained(t)
	b.nth.Stop(t)
}

func TestAnEvictionDoesNotWaitForTargetGroupsBeyondItsTurn(t *testing.T) {
	b := behindBalancers(t, time.Hour, "pod_grace_period = \"2s\"\n")
	b.watches(t)
	deadline := time.Now().Add(20 * time.Second)
	b.imds.SetSpot("terminate", deadline)
	b.takenOut(t)
	b.waitDrained(t)
	if left := time.Until(deadline); left < 0 {
		t.Errorf("the node was drained %s after the deadline", -left)
	}
	if evicted := b.nth.Logged(systemd.PodEvicted); len(evicted) != len(b.before) {
		t.Errorf("%d of %d pods were evicted", len(evicted), len(b.before))
	}
	b.nth.WaitSays(t, "not waiting for load balancers: the time for that is over")
	b.nth.Stop(t)
}

// What is set for where nobody can be asked holds then.
func TestWithoutTheRightToAskTheSetTimeHolds(t *testing.T) {
	b := behindBalancers(t, time.Hour, "load_balancer_wait = \"3s\"\n")
	b.elb.Deny("DescribeTargetHealth")
	mustSay(t, check(t, b.machine),
		`warn  targets     tg/web: the instance's role does not allow elasticloadbalancing:DescribeTargetHealth; drain.load_balancer_wait holds evictions instead`)
	b.watches(t)
	b.imds.SetSpot("terminate", twoMinutes())
	b.node.WaitCordoned(t)
	b.nth.WaitSays(t, "delaying evictions for ") // For what is left of the three seconds by then.
	b.waitDrained(t)
	b.nth.Stop(t)
	said := slices.DeleteFunc(b.nth.Logged(systemd.DrainStarted), func(e daemon.Entry) bool { return !strings.Contains(e.Message, "does not allow") })
	if len(said) != 1 {
		t.Errorf("the missing right was told %d times: %v", len(said), said)
	}
}

// A pod's requests are under way when it has gone, and so may the machine be, if nobody holds it.
func TestTheHookIsCompletedWhenThePodsAreOutOfTheirTargetGroups(t *testing.T) {
	g := inGroup(t, "", hook)
	elb := elbtest.NewServer()
	t.Cleanup(elb.Close)
	pods := elb.AddGroup("pods", elbtest.Group{Type: "ip", Delay: 2 * time.Second})
	g.options.Settings += fmt.Sprintf("[load_balancers]\ntarget_groups = [%q]\n", pods)
	g.options.Env = append(g.options.Env, elbEndpoint+elb.URL)
	g.machine.Configure(t, g.options)
	var addresses []string
	for n, pod := range g.node.Pods(t) { // The lab's kubelet gives them none.
		address := fmt.Sprintf("10.0.0.%d", n+7)
		pod.Status.PodIP, pod.Status.PodIPs = address, []corev1.PodIP{{IP: address}}
		if _, err := lab.Shared(t).Admin.CoreV1().Pods(pod.Namespace).UpdateStatus(t.Context(), &pod, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		addresses = append(addresses, address)
		elb.Register(pods, address, 8080)
	}
	g.watches(t)
	g.terminate()
	g.node.WaitCordoned(t)
	g.release(t)
	g.node.WaitEmpty(t)
	g.nth.WaitSays(t, fmt.Sprintf("waiting for load balancers: %d targets are still healthy in tg/pods", len(addresses)))
	g.waitBeats(t, 3)
	if a := g.hook(t); a.Result != "" {
		t.Fatalf("the hook is completed before the pods are out: %+v", a)
	}
	for _, address := range addresses {
		elb.Deregister(address)
	}
	g.waitDrained(t)
	g.waitCompleted(t)
	if left := elb.Targets(pods); len(left) > 0 {
		t.Errorf("the hook is completed, and there is %+v", left)
	}
	g.stopAfterLooks(t)
	g.mustBeCompletedOnce(t)
	for _, e := range g.machine.Record(t) {
		if e.Phase == state.Incomplete {
			t.Errorf("the record has %+v", e)
		}
	}
}

func TestCheckTellsHowTheMachineStandsInItsTargetGroups(t *testing.T) {
	b := behindBalancers(t, 0, "")
	mustSay(t, check(t, b.machine), `ok    targets     the machine is healthy in tg/web`)
	b.elb.Deregister(imdstest.InstanceID)
	mustSay(t, check(t, b.machine), `ok    targets     the machine is no target in tg/web`)
	for _, call := range b.elb.Calls("") {
		if !strings.HasPrefix(call.Action, "Describe") {
			t.Errorf("nth check has called %s", call.Action)
		}
	}
}
