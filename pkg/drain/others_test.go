package drain_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/drain/apitest"
)

func tainted(key, value string, effect corev1.TaintEffect) func(*corev1.Node) {
	return func(n *corev1.Node) {
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Value: value, Effect: effect})
	}
}

func TestUncordonLeavesTheCordonToThoseWhoStillNeedIt(t *testing.T) {
	t.Parallel()
	const no, prefer = corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule
	for name, c := range map[string]struct {
		node func(*corev1.Node)
		want drain.UncordonResult
		to   string
	}{
		"Karpenter":                 {tainted("karpenter.sh/disrupted", "", no), drain.UncordonLeftKarpenter, "Karpenter"},
		"Karpenter before 1.0":      {tainted("karpenter.sh/disruption", "disrupting", no), drain.UncordonLeftKarpenter, "Karpenter"},
		"Cluster Autoscaler":        {tainted("ToBeDeletedByClusterAutoscaler", "1700000000", no), drain.UncordonLeftAutoscaler, "Cluster Autoscaler"},
		"a candidate of its":        {tainted("DeletionCandidateOfClusterAutoscaler", "1700000000", prefer), drain.UncordonLifted, ""},
		"an updated node group":     {tainted("eks.amazonaws.com/nodegroup", "unschedulable", no), drain.UncordonLeftNodeGroup, "the update of the managed node group"},
		"another use of its key":    {tainted("eks.amazonaws.com/nodegroup", "mine", no), drain.UncordonLifted, ""},
		"somebody's taint":          {tainted("dedicated", "gpu", no), drain.UncordonLifted, ""},
		"a Node that is deleted":    {going, drain.UncordonLeftGoing, "whoever has deleted the Node"},
		"Karpenter on our own node": {func(n *corev1.Node) { going(n); setBy("nth")(n) }, drain.UncordonLeftGoing, "whoever has deleted the Node"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := apitest.New(t)
			for _, change := range []func(*corev1.Node){cordoned(ours), c.node} {
				s.ChangeNode(change)
			}
			if c.to != "" { // who leaves the cordon need not wait for the node
				s.ChangeNode(func(n *corev1.Node) { n.Status.Conditions = nil })
			}
			node := drain.New(s.Client(), apitest.Node, drain.Options{})
			if rehearsed, err := drain.NewDryRun(node).Uncordon(within(t, plenty), true); err != nil || rehearsed != c.want {
				t.Errorf("the dry run says %q, %v; want %q", rehearsed, err, c.want)
			}
			got, err := node.Uncordon(within(t, plenty), true)
			if err != nil || got != c.want || got.LeftTo() != c.to {
				t.Fatalf("uncordon is %q, left to %q, %v; want %q, left to %q", got, got.LeftTo(), err, c.want, c.to)
			}
			after := s.CurrentNode()
			if after.Spec.Unschedulable != (c.to != "") || after.Annotations[drain.CordonAnnotation] != "" {
				t.Errorf("the node is left as %+v %+v", after.ObjectMeta, after.Spec)
			}
		})
	}
}

// going is a Node that has been deleted, and that a finalizer holds.
func going(n *corev1.Node) {
	n.DeletionTimestamp, n.Finalizers = new(metav1.Now()), []string{"karpenter.sh/termination"}
}
