package demo_test

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nth-project/nth/test/internal/demo"
)

func pod(name, controller string) corev1.Pod {
	p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if controller != "" {
		yes := true
		p.OwnerReferences = []metav1.OwnerReference{{Kind: controller, Controller: &yes}}
	}
	return p
}

func TestOnlyACordonedNodeWithoutEvictablePodsWasDrainedInTime(t *testing.T) {
	agent, web := pod("agent", "DaemonSet"), pod("web-1", "ReplicaSet")
	for _, c := range []struct {
		name     string
		cordoned bool
		pods     []corev1.Pod
		left     time.Duration
		want     string // empty: drained
	}{
		{"empty", true, nil, time.Minute, ""},
		{"a DaemonSet's pod stays", true, []corev1.Pod{agent}, time.Minute, ""},
		{"not cordoned", false, nil, time.Minute, "the node is not cordoned"},
		{"a pod is left", true, []corev1.Pod{agent, web}, time.Minute, "pod web-1 is still on the node"},
		{"too late", true, nil, -time.Second, "the drain ended 1.000 s after the machine"},
	} {
		node := &corev1.Node{Spec: corev1.NodeSpec{Unschedulable: c.cordoned}}
		err := demo.Verdict(node, c.pods, c.left)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", c.name, err, c.want)
		}
	}
}
