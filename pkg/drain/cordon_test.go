package drain_test

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/drain/apitest"
)

const ours = `{"event":"event-0","kind":"spot-interruption","boot_id":"boot-0","since":"2026-01-02T03:04:05Z"}`

// cordoned is a node that is unschedulable, with our annotation's text if there is one.
func cordoned(text string) func(*corev1.Node) {
	return func(n *corev1.Node) {
		n.Spec.Unschedulable = true
		if text != "" {
			n.Annotations[drain.CordonAnnotation] = text
		}
	}
}

// resumed is a claim of a step that is begun anew.
var resumed = func() drain.Claim {
	c := claim
	c.Resumes = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	return c
}()

// setBy is what the API server remembers of who has set a node's cordon, and of a kubelet that has set other things.
func setBy(manager string) func(*corev1.Node) {
	return func(n *corev1.Node) {
		n.ManagedFields = []metav1.ManagedFieldsEntry{
			{Manager: "kubelet", FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:labels":{}},"f:spec":{"f:providerID":{}}}`)},
			{Manager: manager, FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:unschedulable":{}}}`)},
		}
	}
}

func TestACordonIsOnePatchOrNone(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		node    func(*corev1.Node)
		want    drain.CordonResult
		patches int
		claim   string
	}{
		"a schedulable node":                 {func(*corev1.Node) {}, drain.CordonSet, 1, "event-1"},
		"a node that somebody else cordoned": {cordoned(""), drain.CordonForeign, 0, ""},
		"a node that we cordoned":            {cordoned(ours), drain.CordonOurs, 0, "event-0"},
		"a node that we cordoned, as the API server remembers": {
			func(n *corev1.Node) { cordoned(ours)(n); setBy("nth")(n) }, drain.CordonOurs, 0, "event-0",
		},
		"a node that somebody else cordoned after lifting our cordon, where our annotation is left over": {
			func(n *corev1.Node) { cordoned(ours)(n); setBy("kubectl-cordon")(n) }, drain.CordonForeign, 1, "",
		},
		"a node whose cordon for the same event somebody has lifted": {
			func(n *corev1.Node) {
				n.Annotations[drain.CordonAnnotation] = strings.Replace(ours, "event-0", "event-1", 1)
			}, drain.CordonLifted, 0, "event-1",
		},
		"an annotation left from an earlier announcement of the same event": {
			func(n *corev1.Node) {
				n.Annotations[drain.CordonAnnotation] = strings.NewReplacer("event-0", "event-1", "2026-", "2025-").Replace(ours)
			}, drain.CordonSet, 1, "event-1",
		},
		"an annotation left from a cordon of ours that somebody lifted": {
			func(n *corev1.Node) { n.Annotations[drain.CordonAnnotation] = ours }, drain.CordonSet, 1, "event-1",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := apitest.New(t)
			s.ChangeNode(c.node)
			node := drain.New(s.Client(), apitest.Node, drain.Options{})
			got, err := node.Cordon(within(t, plenty), resumed)
			if err != nil || got != c.want {
				t.Fatalf("cordon is %q, %v; want %q", got, err, c.want)
			}
			if n := count(s, "patch"); n != c.patches {
				t.Errorf("%d patches; want %d", n, c.patches)
			}
			if s.CurrentNode().Spec.Unschedulable == (c.want == drain.CordonLifted) {
				t.Error("the node is not as it must be")
			}
			held, found, err := node.Claim(within(t, plenty))
			if err != nil || found != (c.claim != "") || held.Event != c.claim {
				t.Errorf("claim is %+v, %v, %v; want the event %q", held, found, err, c.claim)
			}
		})
	}
}

func TestTheCordonPatchHoldsNothingThatCouldBeRefused(t *testing.T) {
	t.Parallel()
	s := apitest.New(t)
	if _, err := drain.New(s.Client(), apitest.Node, drain.Options{}).Cordon(within(t, plenty), claim); err != nil {
		t.Fatal(err)
	}
	var patch struct {
		Metadata map[string]map[string]string
		Spec     map[string]bool
	}
	if err := json.Unmarshal([]byte(s.Requests("patch")[0].Body), &patch); err != nil {
		t.Fatal(err)
	}
	if !maps.Equal(patch.Spec, map[string]bool{"unschedulable": true}) || len(patch.Metadata) != 1 || len(patch.Metadata["annotations"]) != 1 {
		t.Errorf("the patch is %s", s.Requests("patch")[0].Body)
	}
	var written drain.Claim
	if err := json.Unmarshal([]byte(patch.Metadata["annotations"][drain.CordonAnnotation]), &written); err != nil || written != claim {
		t.Errorf("the claim is %+v, %v; want %+v", written, err, claim)
	}
}

func TestACordonIsTriedAgainAsLongAsTheFailureMayPass(t *testing.T) {
	t.Parallel()
	for name, answers := range map[string][]apitest.Answer{
		"unavailable":             {apitest.Unavailable(), apitest.Unavailable()},
		"a broken connection":     {apitest.Reset(), apitest.Reset(), apitest.Reset()},
		"throttled":               {apitest.Throttled(1)},
		"throttled for a minute":  {apitest.Throttled(60)},
		"changed in the meantime": {apitest.Conflict()},
	} {
		for _, what := range []string{"get node", "patch node"} {
			t.Run(what+": "+name, func(t *testing.T) {
				t.Parallel()
				s := apitest.New(t)
				s.Answer(what, answers...)
				got, err := drain.New(s.Client(), apitest.Node, drain.Options{}).Cordon(within(t, plenty), claim)
				if err != nil || got != drain.CordonSet {
					t.Fatalf("cordon is %q, %v", got, err)
				}
				if n := count(s, what); n != len(answers)+1 {
					t.Errorf("%d requests; want %d: one for each failure, and one more", n, len(answers)+1)
				}
			})
		}
	}
}

func TestACordonThatIsRefusedIsNotTriedAgain(t *testing.T) {
	t.Parallel()
	s := apitest.New(t)
	s.Always("patch node", apitest.Forbidden("no"))
	_, err := drain.New(s.Client(), apitest.Node, drain.Options{}).Cordon(within(t, plenty), claim)
	if !apierrors.IsForbidden(err) || count(s, "patch") != 1 {
		t.Errorf("error %v after %d patches", err, count(s, "patch"))
	}
}

func TestAClaimThatCannotBeReadIsNobodys(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "yes", "{}", `{"event":7}`, `["event"]`} {
		s := apitest.New(t)
		s.ChangeNode(func(n *corev1.Node) { n.Annotations[drain.CordonAnnotation] = text })
		if claim, found, err := drain.New(s.Client(), apitest.Node, drain.Options{}).Claim(within(t, plenty)); found || err != nil {
			t.Errorf("%q is read as %+v, %v", text, claim, err)
		}
	}
}

func TestUncordonTakesBackOnlyWhatIsOurs(t *testing.T) {
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
		"our cordon":                            {[]func(*corev1.Node){cordoned(ours)}, drain.UncordonLifted, 1, false, ""},
		"our cordon and our label":              {[]func(*corev1.Node){cordoned(ours), label("nth")}, drain.UncordonLifted, 1, false, ""},
		"our cordon and somebody's label":       {[]func(*corev1.Node){cordoned(ours), label("true")}, drain.UncordonLifted, 1, false, "true"},
		"our cordon and somebody's empty label": {[]func(*corev1.Node){cordoned(ours), label("")}, drain.UncordonLifted, 1, false, ""},
		"somebody's cordon":                     {[]func(*corev1.Node){cordoned(""), label("nth")}, drain.UncordonNotOurs, 0, true, "nth"},
		"our cordon, as the server remembers":   {[]func(*corev1.Node){cordoned(ours), setBy("nth")}, drain.UncordonLifted, 1, false, ""},
		"somebody's cordon after ours":          {[]func(*corev1.Node){cordoned(ours), setBy("kubectl")}, drain.UncordonNotOurs, 1, true, ""},
		"no cordon":                             {nil, drain.UncordonNotOurs, 0, false, ""},
		"a cordon of ours that somebody lifted": {
			[]func(*corev1.Node){cordoned(ours), func(n *corev1.Node) { n.Spec.Unschedulable = false }}, drain.UncordonNotOurs, 1, false, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := apitest.New(t)
			for _, change := range c.node {
				s.ChangeNode(change)
			}
			node := drain.New(s.Client(), apitest.Node, drain.Options{})
			rehearsed, err := drain.NewDryRun(node).Uncordon(within(t, plenty), true)
			if err != nil || rehearsed != c.want {
				t.Errorf("the dry run says %q, %v; want %q", rehearsed, err, c.want)
			}
			got, err := node.Uncordon(within(t, plenty), true)
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

func TestUncordonOfANodeThatIsGoneIsASuccess(t *testing.T) {
	t.Parallel()
	s := apitest.New(t)
	s.RemoveNode()
	node := drain.New(s.Client(), apitest.Node, drain.Options{})
	for name, uncordon := range map[string]func(context.Context, bool) (drain.UncordonResult, error){
		"real": node.Uncordon, "dry run": drain.NewDryRun(node).Uncordon,
	} {
		if got, err := uncordon(within(t, plenty), true); got != drain.UncordonNodeGone || err != nil {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

func TestUncordonWaitsForTheNodeToBeReadyIfAsked(t *testing.T) {
	t.Parallel()
	s := apitest.New(t)
	s.ChangeNode(cordoned(ours))
	ready := func(status corev1.ConditionStatus) {
		s.ChangeNode(func(n *corev1.Node) { n.Status.Conditions[0].Status = status })
	}
	ready(corev1.ConditionUnknown)
	node := drain.New(s.Client(), apitest.Node, drain.Options{})
	done := make(chan error, 1)
	go func() { _, err := node.Uncordon(within(t, plenty), true); done <- err }()
	await(t, "a second look at the node", func() bool { return count(s, "get node") >= 2 })
	if n := count(s, "patch"); n != 0 {
		t.Errorf("%d patches while the node was not Ready", n)
	}
	ready(corev1.ConditionTrue)
	if err := <-done; err != nil || s.CurrentNode().Spec.Unschedulable {
		t.Errorf("not uncordoned: %v", err)
	}

	s.ChangeNode(cordoned(ours))
	ready(corev1.ConditionFalse)
	if got, err := node.Uncordon(within(t, plenty), false); got != drain.UncordonLifted || err != nil {
		t.Errorf("without being asked to wait: %q, %v", got, err)
	}
}

func TestUncordonThatRunsOutOfTimeSaysWhatItWaitedFor(t *testing.T) {
	t.Parallel()
	s := apitest.New(t)
	s.ChangeNode(cordoned(ours))
	s.ChangeNode(func(n *corev1.Node) { n.Status.Conditions = nil })
	_, err := drain.New(s.Client(), apitest.Node, drain.Options{}).Uncordon(within(t, 300*time.Millisecond), true)
	if !errors.Is(err, context.DeadlineExceeded) || count(s, "patch") != 0 {
		t.Errorf("error %v with %d patches", err, count(s, "patch"))
	}
	if want := `uncordoning node "node-1": the node is not Ready yet (context deadline exceeded)`; err.Error() != want {
		t.Errorf("error %q; want %q", err, want)
	}
}

func within(t *testing.T, limit time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	return ctx
}
