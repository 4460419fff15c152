package drain_test

import (
	"encoding/json"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/drain/apitest"
	"github.com/nth-project/nth/pkg/state"
)

// other is the other one of the programs that write claims.
var other = map[string]string{drain.Host: drain.Queue, drain.Queue: drain.Host}

// claimBy is a claim of a program, as it writes it.
func claimBy(writer string) string {
	theirs := claim
	theirs.Writer, theirs.Event = writer, "event-of-"+writer
	text, err := json.Marshal(theirs)
	if err != nil {
		panic(err)
	}
	return string(text)
}

func uncordoned(n *corev1.Node) { n.Spec.Unschedulable = false }

// unclaimed is a Node whose cordon its writer has taken back.
func unclaimed(n *corev1.Node) {
	uncordoned(n)
	delete(n.Annotations, drain.CordonAnnotation)
}

func TestAClaimOfAnotherWriterIsNeitherLiftedNorOverwritten(t *testing.T) {
	t.Parallel()
	for writer, others := range other {
		run(t, writer, func(t *testing.T) {
			s := apitest.New(t)
			s.ChangeNode(cordoned(claimBy(others)))
			s.AddPod(pod("a"), 0)
			r := drained(t, s, drain.Options{Writer: writer})
			if told := r.last(); r.result.Cordon != drain.CordonForeign || told.State.Ours || !told.State.Closed {
				t.Errorf("the result is %+v, the state %+v", r.result, told.State)
			}
			node := drain.New(s.Client(), apitest.Node, drain.Options{Writer: writer})
			if got, err := node.Uncordon(within(t, plenty), nil); got != drain.UncordonNotOurs || err != nil {
				t.Errorf("uncordon is %q, %v", got, err)
			}
			if theirs, found, err := node.Claim(within(t, plenty)); found || err != nil {
				t.Errorf("the claim is %+v, %v, %v", theirs, found, err)
			}
			if after := s.CurrentNode(); !after.Spec.Unschedulable || after.Annotations[drain.CordonAnnotation] != claimBy(others) || count(s, "patch") != 0 {
				t.Errorf("the node is left as %+v %+v", after.ObjectMeta, after.Spec)
			}
		})
	}
}

func TestACordonThatTheOtherWriterTakesBackIsTakenOver(t *testing.T) {
	t.Parallel()
	for writer, others := range other {
		run(t, writer, func(t *testing.T) {
			s := apitest.New(t)
			s.ChangeNode(cordoned(claimBy(others)))
			r := drained(t, s, drain.Options{Writer: writer})
			s.ChangeNode(unclaimed)
			r.await(state.NodeClosed)
			if told := r.of(state.NodeReopened); len(told) != 0 || !s.CurrentNode().Spec.Unschedulable || r.guard.Result().Cordon != drain.CordonSet {
				t.Errorf("told %+v; the result is %+v", told, r.guard.Result())
			}
			s.AddPod(pod("late"), 0)
			r.await(state.PodGone, "default/late")
		})
		run(t, writer+", where people take it back", func(t *testing.T) {
			s := apitest.New(t)
			s.ChangeNode(cordoned(claimBy(others)))
			r := drained(t, s, drain.Options{Writer: writer})
			s.ChangeNode(uncordoned)
			r.await(state.NodeReopened)
			time.Sleep(time.Minute)
			if n := count(s, "patch"); n != 0 || s.CurrentNode().Annotations[drain.CordonAnnotation] != claimBy(others) {
				t.Errorf("%d patches", n)
			}
		})
	}
}

func TestTheLoadBalancerLabelIsTakenBackByItself(t *testing.T) {
	t.Parallel()
	opts := drain.Options{ExcludeFromLoadBalancers: true}
	labeled := func(s *apitest.Server) bool { _, ok := s.CurrentNode().Labels[drain.ExcludeLabel]; return ok }
	for name, node := range map[string]func(*corev1.Node){
		"beside a cordon of ours": func(*corev1.Node) {}, "beside an administrator's": cordoned(""), "beside nth-queue's": cordoned(claimBy(drain.Queue)),
	} {
		run(t, name+", when the event is over", func(t *testing.T) {
			s := apitest.New(t)
			s.ChangeNode(node)
			r := drained(t, s, opts)
			time.Sleep(time.Minute)
			if !labeled(s) || !r.last().State.Ours {
				t.Errorf("labeled %v, the state is %+v", labeled(s), r.last().State)
			}
			r.cancel()
			<-r.done
			if _, err := drain.New(s.Client(), apitest.Node, opts).Uncordon(within(t, plenty), nil); err != nil || labeled(s) {
				t.Errorf("labeled %v, %v", labeled(s), err)
			}
		})
		run(t, name+", when somebody uncordons the node", func(t *testing.T) {
			s := apitest.New(t)
			s.ChangeNode(node)
			r := drained(t, s, opts)
			s.ChangeNode(uncordoned)
			lifted := time.Now()
			await(t, "that the label is gone", func() bool { return !labeled(s) })
			if after := time.Since(lifted); after > 6*time.Second || len(r.of(state.NodeReopened)) != 1 {
				t.Errorf("gone after %s, told %+v", after, r.of(state.NodeReopened))
			}
			time.Sleep(time.Minute)
			if labeled(s) || s.CurrentNode().Spec.Unschedulable {
				t.Errorf("the node is %+v", s.CurrentNode())
			}
		})
	}
	run(t, "not set without a cordon", func(t *testing.T) {
		s := apitest.New(t)
		s.AddPod(pod("a"), 0)
		s.Always("patch", apitest.Forbidden("a webhook minds cordons"))
		beginWithin(t, s, opts, true, plenty).succeed()
		if labeled(s) {
			t.Error("the label was set")
		}
	})
}

// After a quick reboot the Node still says what the kubelet before has said.
func TestUncordonWaitsForTheKubeletOfTheRightBoot(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.ChangeNode(cordoned(ours))
		boot := func(id string) { s.ChangeNode(func(n *corev1.Node) { n.Status.NodeInfo.BootID = id }) }
		boot("boot-0")
		time.AfterFunc(time.Minute, func() { boot(claim.BootID) })
		began := time.Now()
		got, err := drain.New(s.Client(), apitest.Node, drain.Options{}).Uncordon(within(t, plenty), thisBoot)
		if after := time.Since(began); got != drain.UncordonLifted || err != nil || after < time.Minute || after > time.Minute+5*time.Second {
			t.Errorf("uncordon is %q, %v after %s", got, err, after)
		}
	})
}

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
		"a Node that is deleted":    {going, drain.UncordonLeftGoing, "the one who deleted the Node"},
		"Karpenter on our own node": {func(n *corev1.Node) { going(n); setBy("nth")(n) }, drain.UncordonLeftGoing, "the one who deleted the Node"},
	} {
		run(t, name, func(t *testing.T) {
			s := apitest.New(t)
			for _, change := range []func(*corev1.Node){cordoned(ours), c.node} {
				s.ChangeNode(change)
			}
			if c.to != "" { // who leaves the cordon need not wait for the node
				s.ChangeNode(func(n *corev1.Node) { n.Status.Conditions = nil })
			}
			node := drain.New(s.Client(), apitest.Node, drain.Options{})
			if rehearsed, err := drain.NewDryRun(node).Uncordon(within(t, plenty), thisBoot); err != nil || rehearsed != c.want {
				t.Errorf("the dry run says %q, %v; want %q", rehearsed, err, c.want)
			}
			got, err := node.Uncordon(within(t, plenty), thisBoot)
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

// The other program takes its cordon back, which it has set before people wanted the node left alone.
func TestACordonThatTheOtherWriterTakesBackIsNoOrderWhileTheNodeIsLeftAlone(t *testing.T) {
	t.Parallel()
	for writer, others := range other {
		run(t, writer, func(t *testing.T) {
			s := apitest.New(t)
			s.ChangeNode(cordoned(claimBy(others)))
			s.ChangeNode(asking(drain.ActionAnnotation, drain.LeaveNode))
			r := begin(t, s, drain.Options{Writer: writer})
			r.await(state.NodeOptedOut)
			s.ChangeNode(unclaimed)
			time.Sleep(time.Minute)
			s.ChangeNode(func(n *corev1.Node) { delete(n.Annotations, drain.ActionAnnotation) })
			time.Sleep(time.Minute)
			if told := r.of(state.NodeReopened); len(told) != 0 || !s.CurrentNode().Spec.Unschedulable {
				t.Errorf("told %+v; the node takes pods: %t", told, !s.CurrentNode().Spec.Unschedulable)
			}
		})
	}
}
