package drain_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/drain/apitest"
	"github.com/nth-project/nth/pkg/state"
)

func TestUncordon_Waits(t *testing.T) {
	t.Parallel()
	// After a quick reboot the Node still says what the kubelet before has said.
	run(t, "for the kubelet of this boot", func(t *testing.T, s *apitest.Server) {
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
	run(t, "and says for what", func(t *testing.T, s *apitest.Server) {
		s.ChangeNode(cordoned(ours))
		s.ChangeNode(func(n *corev1.Node) { n.Status.Conditions = nil })
		_, err := drain.New(s.Client(), apitest.Node, drain.Options{}).Uncordon(within(t, 300*time.Millisecond), thisBoot)
		if !errors.Is(err, context.DeadlineExceeded) || count(s, "patch") != 0 {
			t.Errorf("error %v with %d patches", err, count(s, "patch"))
		}
		if want := `cannot uncordon node "node-1": the node must become Ready first`; err.Error() != want {
			t.Errorf("error %q; want %q", err, want)
		}
	})
}

// Each sign by which others say that they need the node closed, and what looks like one.
func TestUncordon_LeavesTheCordonToOthers(t *testing.T) {
	t.Parallel()
	const no, prefer = corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule
	condition := func(what corev1.NodeConditionType, status corev1.ConditionStatus) func(*corev1.Node) {
		return func(n *corev1.Node) {
			n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: what, Status: status})
		}
	}
	for name, c := range map[string]struct {
		node func(*corev1.Node)
		to   string
	}{
		"Karpenter":                     {tainted("karpenter.sh/disrupted", "", no), "Karpenter"},
		"Karpenter before 1.0":          {tainted("karpenter.sh/disruption", "disrupting", no), "Karpenter"},
		"Cluster Autoscaler":            {tainted("ToBeDeletedByClusterAutoscaler", "1700000000", no), "Cluster Autoscaler"},
		"a candidate of its":            {tainted("DeletionCandidateOfClusterAutoscaler", "1700000000", prefer), ""},
		"an updated node group":         {tainted("eks.amazonaws.com/nodegroup", "unschedulable", no), "the update of the managed node group"},
		"another use of its key":        {tainted("eks.amazonaws.com/nodegroup", "mine", no), ""},
		"the Node Maintenance Operator": {tainted("medik8s.io/drain", "", no), "the Node Maintenance Operator"},
		"a taint that only advises":     {tainted("medik8s.io/drain", "", prefer), ""},
		"kured, which waits for a lock": {asking("weave.works/kured-reboot-in-progress", "2026-01-02T03:04:05Z"), ""},
		"a drain":                       {condition("DrainInProgress", corev1.ConditionTrue), "the drain in progress"},
		"a drain that is over":          {condition("DrainInProgress", corev1.ConditionFalse), ""},
		"a drained node":                {condition("Drained", corev1.ConditionTrue), ""},
		"maintenance":                   {condition("MaintenanceInProgress", corev1.ConditionTrue), "the maintenance in progress"},
		"planned maintenance":           {condition("MaintenancePlanned", corev1.ConditionTrue), ""},
		"somebody's taint":              {tainted("dedicated", "gpu", no), ""},
		"a Node that is deleted":        {going, "the program that is deleting this Node (such as Karpenter)"},
		"Karpenter on our own node":     {func(n *corev1.Node) { going(n); setBy("nth")(n) }, "the program that is deleting this Node (such as Karpenter)"},
	} {
		run(t, name, func(t *testing.T, s *apitest.Server) {
			want := drain.UncordonLifted
			s.ChangeNode(cordoned(ours))
			if c.to != "" { // who leaves the cordon need not wait for the node
				want = drain.UncordonResult("left to " + c.to)
				s.ChangeNode(func(n *corev1.Node) { n.Status.Conditions = nil })
			}
			s.ChangeNode(c.node)
			node := drain.New(s.Client(), apitest.Node, drain.Options{})
			if rehearsed, err := drain.NewDryRun(node).Uncordon(within(t, plenty), thisBoot); err != nil || rehearsed != want {
				t.Errorf("the dry run says %q, %v; want %q", rehearsed, err, want)
			}
			got, err := node.Uncordon(within(t, plenty), thisBoot)
			if err != nil || got != want || got.LeftTo() != c.to {
				t.Fatalf("uncordon is %q, left to %q, %v; want %q", got, got.LeftTo(), err, want)
			}
			after := s.CurrentNode()
			if after.Spec.Unschedulable != (c.to != "") || after.Annotations[drain.CordonAnnotation] != "" {
				t.Errorf("the node is left as %+v %+v", after.ObjectMeta, after.Spec)
			}
		})
	}
}

func TestUncordon_OnlyWhatIsOurs(t *testing.T) {
	t.Parallel()
	label := func(value string) func(*corev1.Node) {
		return func(n *corev1.Node) { n.Labels[drain.ExcludeLabel] = value }
	}
	for name, c := range map[string]struct {
		node          []func(*corev1.Node)
		want          drain.UncordonResult
		patches       int
		unschedulable bool
		label         string
	}{
		"our cordon":                             {[]func(*corev1.Node){cordoned(ours)}, drain.UncordonLifted, 1, false, ""},
		"our cordon and our label":               {[]func(*corev1.Node){cordoned(ours), label("nth")}, drain.UncordonLifted, 1, false, ""},
		"our cordon and somebody's label":        {[]func(*corev1.Node){cordoned(ours), label("true")}, drain.UncordonLifted, 1, false, "true"},
		"our cordon and somebody's empty label":  {[]func(*corev1.Node){cordoned(ours), label("")}, drain.UncordonLifted, 1, false, ""},
		"somebody's cordon":                      {[]func(*corev1.Node){cordoned(""), label("true")}, drain.UncordonNotOurs, 0, true, "true"},
		"somebody's cordon and our label":        {[]func(*corev1.Node){cordoned(""), label("nth")}, drain.UncordonNotOurs, 1, true, ""},
		"our label alone":                        {[]func(*corev1.Node){label("nth")}, drain.UncordonNotOurs, 1, false, ""},
		"our cordon, as the server remembers":    {[]func(*corev1.Node){cordoned(ours), setBy("nth")}, drain.UncordonLifted, 1, false, ""},
		"our cordon, as the server has forgot":   {[]func(*corev1.Node){cordoned(ours), setBy("ancient-changes")}, drain.UncordonLifted, 1, false, ""},
		"our cordon, which somebody applies too": {[]func(*corev1.Node){cordoned(ours), setBy("gitops", "nth", "kustomize")}, drain.UncordonLifted, 1, false, ""},
		"somebody's cordon after ours":           {[]func(*corev1.Node){cordoned(ours), setBy("kubectl")}, drain.UncordonNotOurs, 1, true, ""},
		"no cordon":                              {nil, drain.UncordonNotOurs, 0, false, ""},
		"a cordon of ours that somebody lifted": {
			[]func(*corev1.Node){cordoned(ours), func(n *corev1.Node) { n.Spec.Unschedulable = false }}, drain.UncordonedBefore, 1, false, "",
		},
	} {
		run(t, name, func(t *testing.T, s *apitest.Server) {
			for _, change := range c.node {
				s.ChangeNode(change)
			}
			node := drain.New(s.Client(), apitest.Node, drain.Options{})
			rehearsed, err := drain.NewDryRun(node).Uncordon(within(t, plenty), thisBoot)
			if err != nil || rehearsed != c.want {
				t.Errorf("the dry run says %q, %v; want %q", rehearsed, err, c.want)
			}
			got, err := node.Uncordon(within(t, plenty), thisBoot)
			if err != nil || got != c.want || count(s, "patch") != c.patches {
				t.Fatalf("uncordon is %q, %v with %d patches; want %q with %d", got, err, count(s, "patch"), c.want, c.patches)
			}
			after := s.CurrentNode()
			if after.Spec.Unschedulable != c.unschedulable || after.Labels[drain.ExcludeLabel] != c.label || after.Annotations[drain.CordonAnnotation] != "" {
				t.Errorf("the node is left as %+v %+v", after.ObjectMeta, after.Spec)
			}
		})
	}
}

func TestUncordon_IsTriedAgain(t *testing.T) {
	t.Parallel()
	for _, what := range []string{"get node", "patch node"} {
		for name, c := range map[string]struct {
			answer apitest.Answer
			passes bool
		}{
			"the connection breaks":                 {apitest.Reset(), true},
			"400, what is asked for makes no sense": {apitest.Refused(http.StatusBadRequest, "", ""), false},
			"401, the credential is not known":      {apitest.Refused(http.StatusUnauthorized, "", ""), true},
			"403, it may not be":                    {apitest.Refused(http.StatusForbidden, "", ""), false},
			"408, it has taken too long":            {apitest.Refused(http.StatusRequestTimeout, "", ""), true},
			"409, it has changed in the meantime":   {apitest.Conflict(), true},
			"422, it is not valid":                  {apitest.Refused(http.StatusUnprocessableEntity, "", ""), false},
			"429, the API server is busy":           {apitest.Throttled(1), true},
			"500, the API server has failed":        {apitest.Refused(http.StatusInternalServerError, "", ""), true},
			"503, the API server is not ready":      {apitest.Unavailable(), true},
		} {
			run(t, what+": "+name, func(t *testing.T, s *apitest.Server) {
				s.ChangeNode(cordoned(ours))
				s.Answer(what, c.answer, c.answer)
				got, err := drain.New(s.Client(), apitest.Node, drain.Options{}).Uncordon(within(t, plenty), nil)
				if !c.passes {
					if err == nil || !s.CurrentNode().Spec.Unschedulable || count(s, what) != 1 {
						t.Errorf("uncordon is %q, %v after %d requests", got, err, count(s, what))
					}
					return
				}
				if got != drain.UncordonLifted || err != nil || s.CurrentNode().Spec.Unschedulable || count(s, what) != 3 {
					t.Errorf("uncordon is %q, %v after %d requests", got, err, count(s, what))
				}
			})
		}
	}
}

func TestUncordon(t *testing.T) {
	t.Parallel()
	// Whether the kubelet is the right one is asked of others, who may be the ones to stop it all.
	run(t, "called off", func(t *testing.T, s *apitest.Server) {
		s.ChangeNode(cordoned(ours))
		ctx, cancel := context.WithCancel(t.Context())
		got, err := drain.New(s.Client(), apitest.Node, drain.Options{}).Uncordon(ctx, func(string) bool { cancel(); return true })
		if !errors.Is(err, context.Canceled) || count(s, "patch") != 0 {
			t.Errorf("uncordon is %q, %v after %d patches", got, err, count(s, "patch"))
		}
	})
	run(t, "that fails for minutes, which is to be reported", func(t *testing.T, s *apitest.Server) {
		s.ChangeNode(cordoned(ours))
		s.Always("patch node", apitest.Unavailable())
		if _, err := drain.New(s.Client(), apitest.Node, drain.Options{}).Uncordon(t.Context(), nil); err == nil {
			t.Error("it says that it has uncordoned the node")
		}
	})
	run(t, "whose answer is lost", func(t *testing.T, s *apitest.Server) {
		s.ChangeNode(cordoned(ours))
		s.Answer("patch node", apitest.Lost())
		if got, err := drain.New(s.Client(), apitest.Node, drain.Options{}).Uncordon(within(t, plenty), nil); got != drain.UncordonLifted || err != nil {
			t.Errorf("uncordon is %q, %v", got, err)
		}
	})
	run(t, "of a Node that is gone", func(t *testing.T, s *apitest.Server) {
		s.RemoveNode()
		node := drain.New(s.Client(), apitest.Node, drain.Options{})
		for name, uncordon := range map[string]func(context.Context, drain.Booted) (drain.UncordonResult, error){
			"real": node.Uncordon, "dry run": drain.NewDryRun(node).Uncordon,
		} {
			if got, err := uncordon(within(t, plenty), thisBoot); got != drain.UncordonNodeGone || err != nil {
				t.Errorf("%s: %q, %v", name, got, err)
			}
		}
	})
	// Docs/node-contract.md says of the annotation: remove it to make the cordon yours, and nth will then never lift it.
	run(t, "not a cordon that operators made theirs", func(t *testing.T, s *apitest.Server) {
		r := drained(t, s, drain.Options{})
		r.stop()
		s.Answer("patch", func(http.ResponseWriter, *http.Request) bool {
			s.ChangeNode(func(n *corev1.Node) { delete(n.Annotations, drain.CordonAnnotation) }, "kubectl")
			return false
		})
		result, err := drain.New(s.Client(), apitest.Node, drain.Options{}).Uncordon(t.Context(), nil)
		if !s.CurrentNode().Spec.Unschedulable {
			t.Errorf("a cordon without our annotation was lifted: %s, %v", result, err)
		}
	})
}

func tainted(key, value string, effect corev1.TaintEffect) func(*corev1.Node) {
	return func(n *corev1.Node) {
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Value: value, Effect: effect})
	}
}

// going is a Node that has been deleted, and that a finalizer holds.
func going(n *corev1.Node) {
	n.DeletionTimestamp, n.Finalizers = new(metav1.Now()), []string{"karpenter.sh/termination"}
}

// other is the other one of the programs that write claims.
var other = map[string]string{drain.Host: drain.Queue, drain.Queue: drain.Host}

func TestClaim_OfAnotherWriter(t *testing.T) {
	t.Parallel()
	for writer, others := range other {
		run(t, writer, func(t *testing.T, s *apitest.Server) {
			s.ChangeNode(cordoned(claimBy(others)))
			s.AddPod(pod("a"), 0)
			r := drained(t, s, drain.Options{Writer: writer})
			if reported := r.last(); r.result.Cordon != drain.CordonForeign || reported.State.Ours || !reported.State.Cordoned {
				t.Errorf("the result is %+v, the state %+v", r.result, reported.State)
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

func TestUncordoned_Pods(t *testing.T) {
	t.Parallel()
	// A drain that is begun again, after a restart say, finds the claim of its own event on a node that takes pods: somebody has
	// lifted that cordon.
	run(t, "before this process began", func(t *testing.T, s *apitest.Server) {
		created := s.Now()
		s.AddPod(pod("old"), 0)
		time.Sleep(time.Minute)
		s.ChangeNode(func(n *corev1.Node) {
			n.Annotations[drain.CordonAnnotation] = strings.Replace(ours, "event-0", claim.Event, 1)
		}, drain.Host)
		time.Sleep(time.Minute)
		s.AddPod(pod("new"), 0)
		s.AddPod(pod("waited", func(p *corev1.Pod) {
			p.CreationTimestamp = created
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: s.Now()}}
		}), 0)
		r := drained(t, s, drain.Options{})
		if s.HasPod("default/old") || !s.HasPod("default/new") || !s.HasPod("default/waited") || r.result.Cordon != drain.Uncordoned || count(s, "patch") != 0 {
			t.Errorf("the result is %+v after %d patches", r.result, count(s, "patch"))
		}
		r.reported(1, state.NodeUncordoned)
	})
	// The API server remembers one time for each writer. Here the process after this one knows of the uncordon by the Node alone.
	run(t, "stay after our label is taken off", func(t *testing.T, s *apitest.Server) {
		opts := drain.Options{ExcludeFromLoadBalancers: true}
		goal := goalWithin(false, plenty)
		r := start(t, s, opts, goal)
		r.await(state.NodeExcluded)
		time.Sleep(61 * time.Second)
		s.UncordonAs("kubectl")
		s.AddPod(pod("new", grace(1)), 0)
		await(t, "the label is off", func() bool { return s.CurrentNode().Labels[drain.ExcludeLabel] == "" })
		if !s.HasPod("default/new") {
			t.Fatal("the first guard has evicted it")
		}
		r.stop()
		time.Sleep(time.Minute)
		goal.NodeSeen = true
		start(t, s, opts, goal)
		time.Sleep(10 * time.Minute)
		if !s.HasPod("default/new") {
			t.Errorf("a pod that came to the node after operators had opened it was evicted by the next process; the node is closed: %t", s.CurrentNode().Spec.Unschedulable)
		}
	})
	// The API server's cache, from which the first list comes, is behind.
	run(t, "from before that the first list lacks go", func(t *testing.T, s *apitest.Server) {
		s.SetLag(0, 3*time.Second)
		s.AddPod(pod("old"), 0)
		time.Sleep(1500 * time.Millisecond)
		goal := goalWithin(true, plenty)
		goal.Cordon, goal.Before = false, time.Now()
		start(t, s, drain.Options{}, goal)
		await(t, "that it is gone", func() bool { return !s.HasPod("default/old") })
	})
	// CleanToBeDeleted takes the taint off and makes the node schedulable in one update.
	run(t, "go where Cluster Autoscaler gave up", func(t *testing.T, s *apitest.Server) {
		taint := corev1.Taint{Key: "ToBeDeletedByClusterAutoscaler", Value: "1", Effect: corev1.TaintEffectNoSchedule}
		s.ChangeNode(func(n *corev1.Node) { n.Spec.Taints, n.Spec.Unschedulable = []corev1.Taint{taint}, true }, "cluster-autoscaler")
		s.AddPod(pod("a", grace(60)), apitest.Ending(50*time.Second))
		r := beginWithin(t, s, drain.Options{}, true, 2*time.Minute)
		time.Sleep(10 * time.Second)
		s.ChangeNode(func(n *corev1.Node) { n.Spec.Taints, n.Spec.Unschedulable = nil, false }, "cluster-autoscaler")
		s.AddReplicaSet(apitest.Workload{Name: "web", Pods: 3, Ending: 0}) // before nth could close it again
		time.Sleep(90 * time.Second)
		left := 0
		for _, p := range s.Pods() {
			if p.Spec.NodeName == apitest.Node {
				left++
			}
		}
		if !s.CurrentNode().Spec.Unschedulable || left > 0 {
			t.Errorf("20 s before the machine is lost, the node is closed: %t, and has %d pods; reported %+v", s.CurrentNode().Spec.Unschedulable, left, r.of(state.NodeUncordoned))
		}
	})
	// Whose cordon that was, and when it was set, nobody knows.
	run(t, "that come as others uncordon stay", func(t *testing.T, s *apitest.Server) {
		s.CordonAs("kubectl")
		addHeld(s, pod("old"))
		s.Answer("get node", slowly(time.Second)) // The pod is met before it, and waits for it.
		r := begin(t, s, drain.Options{})
		r.await(state.PodHeld, "default/old")
		s.Answer("get node", slowly(time.Second))
		s.UncordonAs("kubectl")
		s.AddPod(pod("new"), 0)
		r.await(state.NodeUncordoned)
		s.Answer("watch", apitest.Expired())
		s.DropWatches()
		time.Sleep(5 * time.Second) // All pods have been listed again.
		s.ChangePod("default/new", annotated("example.com/note", "changed"))
		time.Sleep(time.Minute)
		if !s.HasPod("default/new") || len(s.Requests("evict default/new")) != 0 {
			t.Errorf("the pod was asked to go: %+v", r.task.Result())
		}
		if result := r.task.Result(); result.Skipped != 1 || !slices.Equal(result.Left, []string{"default/old"}) {
			t.Errorf("the result is %+v", result)
		}
	})
}

// By the API server's clock. It is bound once, and later made Ready and unready.
func TestUncordoned_PodsThatCameSinceStay(t *testing.T) {
	t.Parallel()
	opened := time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC)
	before, since := metav1.NewTime(opened.Add(-time.Hour)), metav1.NewTime(opened.Add(time.Hour))
	for name, c := range map[string]struct {
		created   metav1.Time
		condition corev1.PodCondition
		stays     bool
	}{
		"created before":                                 {created: before},
		"created at the same time":                       {created: metav1.NewTime(opened)},
		"created since":                                  {created: since, stays: true},
		"created before, bound before":                   {before, corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: before}, false},
		"created before, bound since":                    {before, corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: since}, true},
		"created since, bound by a clock that is behind": {since, corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: before}, true},
		"created before, said since not to be bound yet": {before, corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, LastTransitionTime: since}, false},
		"created before, Ready since":                    {before, corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: since}, false},
	} {
		run(t, name, func(t *testing.T, s *apitest.Server) {
			s.AddPod(pod("a", func(p *corev1.Pod) {
				p.CreationTimestamp = c.created
				if c.condition.Type != "" {
					p.Status.Conditions = []corev1.PodCondition{c.condition}
				}
			}), 0)
			goal := goalWithin(false, plenty)
			goal.Before, goal.Cordon = opened, false
			result := start(t, s, drain.Options{}, goal).succeed()
			if s.HasPod("default/a") != c.stays || (result.Skipped == 1) != c.stays {
				t.Errorf("it is there: %t; the result is %+v", s.HasPod("default/a"), result)
			}
		})
	}
}

// uncordonedOnce fails unless one uncordon was reported, of a node that stays open until the next generation, which it begins.
func (r *trial) uncordonedOnce(s *apitest.Server) {
	r.t.Helper()
	reported := r.of(state.NodeUncordoned)
	if len(reported) != 1 || s.CurrentNode().Spec.Unschedulable {
		r.t.Errorf("reported %+v; the node is closed: %t", reported, s.CurrentNode().Spec.Unschedulable)
	}
	r.adjust(joining)
	await(r.t, "the cordon of the next generation", func() bool { return s.CurrentNode().Spec.Unschedulable })
	if reported := r.of(state.NodeUncordoned); len(reported) != 1 {
		r.t.Errorf("reported again: %+v", reported)
	}
}

func TestUncordoned_ConcernsTheGenerationsBefore(t *testing.T) {
	t.Parallel()
	for name, uncordons := range map[string]func(*apitest.Server, *trial){
		"seen in the same generation": func(s *apitest.Server, _ *trial) { s.UncordonAs("kubectl") },
		"a generation begins before the next look": func(s *apitest.Server, r *trial) {
			s.UncordonAs("kubectl")
			r.adjust(joining)
		},
		"with its claim": func(s *apitest.Server, _ *trial) {
			s.ChangeNode(func(n *corev1.Node) { uncordoned(n); delete(n.Annotations, drain.CordonAnnotation) }, "kubectl")
		},
		// The look that sees it began before the generation did. Which events it concerns, the agent knows, so it stands until the next one.
		"seen by a look of the generation before": func(s *apitest.Server, r *trial) {
			s.Answer("get node", func(w http.ResponseWriter, _ *http.Request) bool {
				s.UncordonAs("kubectl")
				seen := s.CurrentNode()
				time.Sleep(500 * time.Millisecond)
				r.adjust(joining)
				time.Sleep(500 * time.Millisecond)
				w.Header().Set("Content-Type", "application/json")
				return json.NewEncoder(w).Encode(seen) == nil
			})
		},
	} {
		run(t, name, func(t *testing.T, s *apitest.Server) {
			r := drained(t, s, drain.Options{})
			time.Sleep(10 * time.Second)
			uncordons(s, r)
			time.Sleep(time.Minute)
			r.uncordonedOnce(s)
		})
	}
}

// No matter who has set it: the claim on an open Node says for which events it was closed.
func TestUncordoned_BeforeTheGuard(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{"ours": ours, "nth-queue's": strings.Replace(ours, `{`, `{"writer":"nth-queue",`, 1)} {
		run(t, name, func(t *testing.T, s *apitest.Server) {
			s.ChangeNode(func(n *corev1.Node) { n.Annotations[drain.CordonAnnotation] = text })
			r := start(t, s, drain.Options{}, toCordon())
			time.Sleep(time.Minute)
			if reported := r.of(state.NodeUncordoned); len(reported) != 1 || !reported[0].Claim.Names("event-0") || reported[0].Claim.Names(claim.Event) {
				t.Errorf("reported %+v", reported)
			}
			r.uncordonedOnce(s)
		})
	}
}
