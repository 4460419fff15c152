package agent_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/drain/apitest"
	"github.com/nth-project/nth/pkg/kube"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/systemd"
	blockers "github.com/nth-project/nth/pkg/wait"
)

// served is a pod to which load balancers send requests.
func served() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: "10.0.0.7"}}},
	}
}

// balancers are done with pods after a time, and with the machine at once.
type balancers time.Duration

func (b balancers) Wait(ctx context.Context, node blockers.Node, _ func(string)) error {
	if len(node.Addresses) > 0 && !kube.Await(ctx, nil, time.Duration(b)) {
		return ctx.Err()
	}
	return nil
}

// EC2 has not come for the machine at the time of its maintenance, and the group terminates it later.
func TestAMaintenanceThatIsOverdueTakesNoTimeFromATermination(t *testing.T) {
	t.Parallel()
	withBoard(t, func(r *rig, b *board) {
		s := apitest.New(r.t)
		s.AddPod(served(), 0)
		r.cfg.Node = drain.New(s.Client(), apitest.Node, drain.Options{LoadBalancers: balancers(time.Minute)})
		r.run()
		r.announce(r.stopping("m", -time.Hour), terminated("a"))
		r.pass(59 * time.Second)
		r.wantStatus("draining node node-a for asg-termination: 1 of 1 pods gone, 841 s left")
		if step := b.last().Step; step == nil || !step.Hard || !step.Deadline.Equal(r.in(15*time.Minute)) {
			t.Errorf("the step is %+v", step)
		}
		r.pass(5 * time.Second)
		if e := r.entry("a"); e.Phase != state.Drained {
			t.Errorf("a is %s", e.Phase)
		}
		want := []string{
			"warning: draining the node: EC2 has scheduled instance-stop at 23:00:00 UTC on 31 Dec 1999 (0 s left)",
			"warning: draining the node: the Auto Scaling group terminates this instance (900 s left)",
		}
		if said := slices.DeleteFunc(r.said(systemd.DrainStarted), func(text string) bool { return !strings.Contains(text, "draining") }); !slices.Equal(said, want) {
			t.Errorf("said: %q", said)
		}
	})
}
