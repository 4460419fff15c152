package apitest_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/nth-project/nth/pkg/drain/apitest"
)

// inBubble runs a test in a bubble of its own.
func inBubble(t *testing.T, f func(t *testing.T, s *apitest.Server, c kubernetes.Interface)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := apitest.New(t)
		f(t, s, s.Client())
	})
}

func each[C any](t *testing.T, cases map[string]C, f func(t *testing.T, c C, s *apitest.Server, client kubernetes.Interface)) {
	t.Helper()
	t.Parallel()
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, s *apitest.Server, client kubernetes.Interface) { f(t, c, s, client) })
		})
	}
}

// evict and remove ask once, and read the answer's body, as pkg/drain does.
func evict(t *testing.T, c kubernetes.Interface, name string, options *metav1.DeleteOptions) error {
	t.Helper()
	_, err := c.CoreV1().RESTClient().Post().Namespace("default").Resource("pods").Name(name).SubResource("eviction").MaxRetries(0).
		Body(&policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, DeleteOptions: options}).Do(t.Context()).Get()
	return err
}

func remove(t *testing.T, c kubernetes.Interface, name string, options *metav1.DeleteOptions) error {
	t.Helper()
	_, err := c.CoreV1().RESTClient().Delete().Namespace("default").Resource("pods").Name(name).MaxRetries(0).Body(options).Do(t.Context()).Get()
	return err
}

func graceOf(seconds int64) *metav1.DeleteOptions {
	return &metav1.DeleteOptions{GracePeriodSeconds: &seconds}
}
func uidOf(uid types.UID) *metav1.DeleteOptions {
	return &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}}
}

func code(err error) int32 {
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		return status.Status().Code
	}
	return 0
}

// lasting is a pod that runs, with 100 s of grace.
func lasting(changes ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a"}}
	p.Spec.TerminationGracePeriodSeconds = new(int64(100))
	apitest.Ready(p)
	for _, change := range changes {
		change(p)
	}
	return p
}

func TestDeletionOnlyEverShortens(t *testing.T) {
	type row struct {
		first, second *metav1.DeleteOptions
		after         time.Duration
		grace         int64 // what the pod has at last
		ends          time.Duration
	}
	each(t, map[string]row{
		"its own grace":                       {&metav1.DeleteOptions{}, nil, 0, 100, 100 * time.Second},
		"a longer one":                        {graceOf(200), nil, 0, 200, 200 * time.Second},
		"none":                                {graceOf(0), nil, 0, -1, 0},
		"less than none is a second":          {graceOf(-5), nil, 0, 1, time.Second},
		"longer later":                        {graceOf(20), graceOf(30), 10 * time.Second, 20, 20 * time.Second},
		"the same later":                      {graceOf(20), graceOf(20), 10 * time.Second, 20, 20 * time.Second},
		"nothing said later":                  {graceOf(20), &metav1.DeleteOptions{}, 10 * time.Second, 20, 20 * time.Second},
		"shorter later, counted again":        {graceOf(100), graceOf(50), 10 * time.Second, 50, 60 * time.Second},
		"shorter than what has passed":        {graceOf(100), graceOf(5), 10 * time.Second, 1, 11 * time.Second},
		"none later":                          {graceOf(100), graceOf(0), 10 * time.Second, -1, 10 * time.Second},
		"shorter, counted again, ends later!": {graceOf(100), graceOf(99), 90 * time.Second, 99, 189 * time.Second},
	}, func(t *testing.T, c row, s *apitest.Server, client kubernetes.Interface) {
		s.AddPod(lasting(), apitest.Ending(time.Hour))
		began := time.Now()
		if err := remove(t, client, "a", c.first); err != nil {
			t.Fatal(err)
		}
		if c.second != nil {
			time.Sleep(c.after)
			if err := remove(t, client, "a", c.second); err != nil {
				t.Fatal(err)
			}
		}
		switch p := s.Pod("default/a"); {
		case p == nil && c.grace >= 0:
			t.Fatal("the pod is gone")
		case p != nil && *p.DeletionGracePeriodSeconds != c.grace:
			t.Errorf("the grace is %d, want %d", *p.DeletionGracePeriodSeconds, c.grace)
		}
		for s.HasPod("default/a") {
			time.Sleep(500 * time.Millisecond)
			synctest.Wait()
		}
		if took := time.Since(began); took != c.ends {
			t.Errorf("it ended after %s, want %s", took, c.ends)
		}
	})
}

func TestAPodEndsAsItWasMadeToButNotAfterItsGrace(t *testing.T) {
	type row struct {
		ending apitest.Ending
		want   time.Duration // 0: never
		phase  corev1.PodPhase
	}
	each(t, map[string]row{
		"sooner":  {apitest.Ending(30 * time.Second), 30 * time.Second, corev1.PodSucceeded},
		"killed":  {apitest.Ending(3 * time.Hour), 100 * time.Second, corev1.PodFailed},
		"not any": {apitest.Never, 0, ""},
	}, func(t *testing.T, c row, s *apitest.Server, client kubernetes.Interface) {
		s.AddPod(lasting(), c.ending)
		s.AddPod(lasting(func(p *corev1.Pod) { p.Name, p.Finalizers = "held", []string{"x/y"} }), c.ending)
		for _, name := range []string{"a", "held"} {
			if err := evict(t, client, name, &metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		if c.want > 0 {
			time.Sleep(c.want - time.Nanosecond)
		} else {
			time.Sleep(time.Hour)
		}
		if !s.HasPod("default/a") {
			t.Error("it ended too soon")
		}
		if c.want == 0 {
			return
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		held := s.Pod("default/held")
		if s.HasPod("default/a") || held == nil || held.Status.Phase != c.phase {
			t.Fatalf("there are %+v", s.Pods())
		}
		s.ChangePod("default/held", func(p *corev1.Pod) { p.Finalizers = nil })
		if s.HasPod("default/held") {
			t.Error("nothing holds it any more")
		}
	})
}

func TestWhatAnEvictionIsAnswered(t *testing.T) {
	budget := apitest.Budget{Namespace: "default", Name: "b", MinAvailable: new(1)}
	type scene struct {
		pod     *corev1.Pod
		budgets []apitest.Budget
		options *metav1.DeleteOptions
		want    int32
		words   string
		took    time.Duration
	}
	phase := func(ph corev1.PodPhase) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Status.Phase = ph } }
	unready := func(p *corev1.Pod) { p.Status.Conditions = nil }
	each(t, map[string]scene{
		"a pod without a budget":          {lasting(), nil, nil, 0, "", 0},
		"a pod that is not there":         {nil, nil, nil, 404, `pods "a" not found`, 0},
		"a pod elsewhere":                 {lasting(func(p *corev1.Pod) { p.Spec.NodeName = "n" }), nil, nil, 403, "can only evict pods with spec.nodeName set to itself", 0},
		"a mirror pod":                    {lasting(func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"} }), nil, nil, 0, "", 0},
		"held":                            {lasting(), []apitest.Budget{budget}, nil, 429, "Cannot evict pod as it would violate the pod's disruption budget.", 0},
		"held, and another UID":           {lasting(), []apitest.Budget{budget}, uidOf("other"), 429, "", 0},
		"another UID":                     {lasting(), nil, uidOf("other"), 409, "does not match the UID in record", 0},
		"another UID, Pending":            {lasting(phase(corev1.PodPending)), nil, uidOf("other"), 409, "does not match the UID in record", 9500 * time.Millisecond},
		"two budgets":                     {lasting(), []apitest.Budget{budget, budget}, nil, 500, "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.", 0},
		"two budgets, but Pending":        {lasting(phase(corev1.PodPending)), []apitest.Budget{budget, budget}, nil, 0, "", 0},
		"held, but finished":              {lasting(phase(corev1.PodFailed)), []apitest.Budget{budget}, nil, 0, "", 0},
		"held, and not Ready":             {lasting(unready), []apitest.Budget{budget}, nil, 429, "", 0},
		"not Ready, with a better budget": {lasting(unready), []apitest.Budget{{Namespace: "default", Name: "b", MinAvailable: new(1), AlwaysAllow: true}}, nil, 0, "", 0},
		"a budget of others":              {lasting(), []apitest.Budget{{Namespace: "default", Name: "b", MinAvailable: new(1), Selector: map[string]string{"app": "x"}}}, nil, 0, "", 0},
		"a budget of another namespace":   {lasting(), []apitest.Budget{{Namespace: "kube-system", Name: "b", MinAvailable: new(1)}}, nil, 0, "", 0},
		"a budget that is new":            {lasting(), []apitest.Budget{{Namespace: "default", Name: "b", MaxUnavailable: new(1), Delay: time.Second}}, nil, 429, "", 0},
	}, func(t *testing.T, c scene, s *apitest.Server, client kubernetes.Interface) {
		if c.pod != nil {
			s.AddPod(c.pod, apitest.Never)
		}
		for _, b := range c.budgets {
			s.AddBudget(b)
		}
		if c.options == nil {
			c.options = &metav1.DeleteOptions{}
		}
		began := time.Now()
		err := evict(t, client, "a", c.options)
		if code(err) != c.want || err != nil && !strings.Contains(err.Error(), c.words) {
			t.Errorf("%v; want %d with %q", err, c.want, c.words)
		}
		if took := time.Since(began); took != c.took {
			t.Errorf("it took %s", took)
		}
		if p := s.Pod("default/a"); err == nil && p != nil && p.DeletionTimestamp == nil {
			t.Errorf("the pod is not ending: %+v", p)
		}
	})
}

func TestABudgetCountsWhatItHasAllowedUntilTheControllerHasSeenIt(t *testing.T) {
	inBubble(t, func(t *testing.T, s *apitest.Server, c kubernetes.Interface) {
		for i := range 3 {
			s.AddPod(lasting(func(p *corev1.Pod) { p.Name = fmt.Sprint("pod-", i) }), apitest.Ending(time.Second))
		}
		s.AddBudget(apitest.Budget{Namespace: "default", Name: "b", MinAvailable: new(2), Delay: 5 * time.Second})
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if err := evict(t, c, "pod-0", &metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		err := evict(t, c, "pod-1", &metav1.DeleteOptions{})
		cause, _ := apierrors.StatusCause(err, policyv1.DisruptionBudgetCause)
		if want := "The disruption budget b does not allow evicting pods currently"; cause.Message != want {
			t.Errorf("%v, %+v; want %q", err, cause, want)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		cause, _ = apierrors.StatusCause(evict(t, c, "pod-1", &metav1.DeleteOptions{}), policyv1.DisruptionBudgetCause)
		if want := "The disruption budget b needs 2 healthy pods and has 2 currently"; cause.Message != want {
			t.Errorf("%+v; want %q", cause, want)
		}
		s.AddPod(lasting(func(p *corev1.Pod) { p.Name, p.Spec.NodeName = "new", "n" }), 0)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if err := evict(t, c, "pod-1", uidOf("other")); code(err) != http.StatusConflict {
			t.Errorf("another UID: %v", err)
		}
		if err := evict(t, c, "pod-1", &metav1.DeleteOptions{}); code(err) != http.StatusTooManyRequests {
			t.Errorf("after a conflict, which has used the budget up: %v", err)
		}
		time.Sleep(3 * time.Minute)
		synctest.Wait()
		if err := evict(t, c, "pod-1", &metav1.DeleteOptions{}); err != nil {
			t.Errorf("when it is given back: %v", err)
		}
	})
}

func TestWhoOwnsACordon(t *testing.T) {
	type write struct {
		manager, patch string
	}
	cordon := func(by string) write { return write{by, `{"spec":{"unschedulable":true}}`} }
	uncordon := func(by string) write { return write{by, `{"spec":{"unschedulable":null}}`} }
	type row struct {
		writes []write
		owner  string
	}
	each(t, map[string]row{
		"nobody":                      {nil, ""},
		"who sets it":                 {[]write{cordon("nth")}, "nth"},
		"not who sets it again":       {[]write{cordon("kubectl"), cordon("nth")}, "kubectl"},
		"nobody after it was lifted":  {[]write{cordon("nth"), uncordon("kubectl")}, ""},
		"who sets it after that":      {[]write{cordon("nth"), uncordon("kubectl"), cordon("kubectl")}, "kubectl"},
		"not who writes other things": {[]write{cordon("nth"), {"kubectl", `{"metadata":{"labels":{"a":"b"}}}`}}, "nth"},
		"false is as good as absent":  {[]write{cordon("nth"), {"kubectl", `{"spec":{"unschedulable":false}}`}}, ""},
	}, func(t *testing.T, c row, s *apitest.Server, client kubernetes.Interface) {
		for _, w := range c.writes {
			before := s.CurrentNode()
			_, err := client.CoreV1().Nodes().Patch(t.Context(), apitest.Node, types.MergePatchType, []byte(w.patch), metav1.PatchOptions{FieldManager: w.manager})
			if err != nil {
				t.Fatal(err)
			}
			if after := s.CurrentNode(); (before.ResourceVersion == after.ResourceVersion) != (before.Spec.Unschedulable == after.Spec.Unschedulable && len(after.Labels) == 0) {
				t.Errorf("%+v: the version went from %s to %s", w, before.ResourceVersion, after.ResourceVersion)
			}
		}
		var owners []string
		for _, m := range s.CurrentNode().ManagedFields {
			if strings.Contains(string(m.FieldsV1.GetRawBytes()), `"f:spec":{"f:unschedulable":{}}`) && m.Operation == metav1.ManagedFieldsOperationUpdate {
				owners = append(owners, m.Manager)
			}
		}
		if strings.Join(owners, ",") != c.owner {
			t.Errorf("owned by %v, want %q", owners, c.owner)
		}
	})
}

func TestWhatAPatchOfTheNodeIsAnswered(t *testing.T) {
	type row struct {
		patch string
		want  int32
	}
	each(t, map[string]row{
		"its version":            {`{"metadata":{"resourceVersion":"VERSION"},"spec":{"unschedulable":true}}`, 0},
		"another version":        {`{"metadata":{"resourceVersion":"999"},"spec":{"unschedulable":true}}`, 409},
		"its UID":                {`{"metadata":{"uid":"UID"},"spec":{"unschedulable":true}}`, 0},
		"another UID":            {`{"metadata":{"uid":"other"},"spec":{"unschedulable":true}}`, 422},
		"another of both":        {`{"metadata":{"uid":"other","resourceVersion":"999"}}`, 409},
		"taints":                 {`{"spec":{"unschedulable":true,"taints":[{"key":"a","effect":"NoSchedule"}]}}`, 403},
		"the taints that it has": {`{"spec":{"unschedulable":true,"taints":null}}`, 0},
		"a label":                {`{"metadata":{"labels":{"a":"b"}}}`, 0},
		"a label of nodes":       {`{"metadata":{"labels":{"node.kubernetes.io/exclude-from-external-load-balancers":"x"}}}`, 0},
		"a label of the system":  {`{"metadata":{"labels":{"node-role.kubernetes.io/x":""}}}`, 403},
		"nonsense":               {`[`, 400},
	}, func(t *testing.T, c row, s *apitest.Server, client kubernetes.Interface) {
		node := s.CurrentNode()
		patch := strings.NewReplacer("VERSION", node.ResourceVersion, "UID", string(node.UID)).Replace(c.patch)
		_, err := client.CoreV1().Nodes().Patch(t.Context(), apitest.Node, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		if code(err) != c.want {
			t.Errorf("%v, want %d", err, c.want)
		}
	})
}

// names are the pods there are, with where they are and whether they are ending.
func names(s *apitest.Server) string {
	var all []string
	for _, p := range s.Pods() {
		name := p.Name + "@" + p.Spec.NodeName
		if p.DeletionTimestamp != nil {
			name += " ending"
		}
		if p.Status.Phase == corev1.PodFailed {
			name += " failed"
		}
		all = append(all, name)
	}
	return strings.Join(all, ", ")
}

func TestWhenAControllerReplacesAPod(t *testing.T) {
	type row struct {
		add         func(*apitest.Server, apitest.Workload)
		w           apitest.Workload
		first, then string
		last        string
	}
	each(t, map[string]row{
		"a ReplicaSet, when it begins to end": {
			(*apitest.Server).AddReplicaSet, apitest.Workload{}, "w-1@node-1", "w-1@node-1 ending, w-2@node-2", "w-2@node-2",
		},
		"a ReplicaSet that tolerates the cordon": {
			(*apitest.Server).AddReplicaSet, apitest.Workload{Tolerates: true}, "w-1@node-1", "w-1@node-1 ending, w-2@node-1", "w-2@node-1",
		},
		"a StatefulSet, when it is gone": {
			(*apitest.Server).AddStatefulSet, apitest.Workload{Tolerates: true}, "w-0@node-1", "w-0@node-1 ending", "w-0@node-1",
		},
		"a DaemonSet, when it is gone": {
			(*apitest.Server).AddDaemonSet, apitest.Workload{}, "w-1@node-1", "w-1@node-1 ending", "w-2@node-1",
		},
	}, func(t *testing.T, c row, s *apitest.Server, _ kubernetes.Interface) {
		c.w.Name, c.w.Ending = "w", apitest.Ending(10*time.Second)
		c.add(s, c.w)
		if got := names(s); got != c.first {
			t.Errorf("at first %s, want %s", got, c.first)
		}
		before := s.Pods()[0]
		s.CordonAs("nth")
		s.DeletePod("default/" + before.Name)
		if got := names(s); got != c.then {
			t.Errorf("then %s, want %s", got, c.then)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if got := names(s); got != c.last || s.Pods()[0].UID == before.UID {
			t.Errorf("at last %s, want %s", got, c.last)
		}
	})
}
