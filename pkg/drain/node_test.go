package drain_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/drain/apitest"
	"github.com/nth-project/nth/pkg/kube"
	"github.com/nth-project/nth/pkg/state"
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

// toCordon is a goal of a node that is closed and keeps its pods, for an event that was met before our claim was written.
func toCordon() drain.Goal {
	goal := goalWithin(false, 0)
	goal.Evict = false
	return goal
}

// looked waits until a guard has seen the Node, and returns how it is cordoned.
func (r *trial) looked() drain.CordonResult {
	r.t.Helper()
	await(r.t, "a look at the Node", func() bool {
		return len(r.of(state.NodeClosed))+len(r.of(state.NodeFoundClosed))+len(r.of(state.NodeReopened))+len(r.of(state.NodeOptedOut)) > 0
	})
	return r.guard.Result().Cordon
}

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
		"a node whose cordon somebody has lifted": {
			func(n *corev1.Node) {
				n.Annotations[drain.CordonAnnotation] = strings.Replace(ours, "event-0", "event-1", 1)
			}, drain.CordonLifted, 0, "event-1",
		},
	} {
		run(t, name, func(t *testing.T) {
			s := apitest.New(t)
			s.ChangeNode(c.node)
			node := drain.New(s.Client(), apitest.Node, drain.Options{})
			if got := start(t, s, drain.Options{}, toCordon()).looked(); got != c.want {
				t.Fatalf("cordon is %q; want %q", got, c.want)
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
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.ChangeNode(func(n *corev1.Node) { n.UID = "uid-1" })
		seen := s.CurrentNode().ResourceVersion
		goal := toCordon()
		start(t, s, drain.Options{}, goal).looked()
		written := goal.Claim
		written.Writer = drain.Host
		text, err := json.Marshal(written)
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]any{
			"metadata": map[string]any{
				"uid": "uid-1", "resourceVersion": seen, "annotations": map[string]any{drain.CordonAnnotation: string(text)},
			},
			"spec": map[string]any{"unschedulable": true},
		}
		var got map[string]any
		if err := json.Unmarshal([]byte(s.Requests("patch")[0].Body), &got); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("the patch is %s, %v; want %v", s.Requests("patch")[0].Body, err, want)
		}
	})
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
			run(t, what+": "+name, func(t *testing.T) {
				s := apitest.New(t)
				s.OverHTTP()
				s.Answer(what, answers...)
				if got := start(t, s, drain.Options{}, toCordon()).looked(); got != drain.CordonSet {
					t.Fatalf("cordon is %q", got)
				}
				if n := count(s, what); n != len(answers)+1 {
					t.Errorf("%d requests; want %d: one for each failure, and one more", n, len(answers)+1)
				}
			})
		}
	}
}

// The API server takes a second for each request, and others write the Node more often than that: what they write may be its status alone.
func TestANodeThatOthersWriteAllTheTimeIsClosedAndOpened(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		ctx, stop := context.WithCancel(t.Context())
		var others sync.WaitGroup
		defer others.Wait()
		defer stop()
		others.Go(func() {
			for n := int64(0); kube.Await(ctx, nil, 900*time.Millisecond); n++ {
				s.ChangeNode(func(node *corev1.Node) { node.Status.Images = []corev1.ContainerImage{{SizeBytes: n}} })
			}
		})
		s.Always("get node", slowly(time.Second))
		s.Always("patch", slowly(time.Second))
		r := beginWithin(t, s, drain.Options{}, true, 2*time.Minute)
		r.await(state.NodeClosed)
		if after := time.Since(r.began); after > 20*time.Second {
			t.Errorf("closed after %s", after)
		}
		r.cancel()
		<-r.done
		result, err := drain.New(s.Client(), apitest.Node, drain.Options{}).Uncordon(within(t, 20*time.Second), nil)
		if s.CurrentNode().Spec.Unschedulable {
			t.Errorf("uncordoned with %q, %v", result, err)
		}
	})
}

// Another leader of nth-queue may have cordoned the Node since it was read, and the patch arrives late.
func TestNode_ofManyWritersIsPatchedOnlyAsItWasRead(t *testing.T) {
	for name, act := range map[string]func(t *testing.T, s *apitest.Server, o drain.Options){
		"cordon": func(t *testing.T, s *apitest.Server, o drain.Options) {
			start(t, s, o, toCordon())
			time.Sleep(time.Minute)
		},
		"uncordon": func(t *testing.T, s *apitest.Server, o drain.Options) {
			text, _ := json.Marshal(claim)
			s.ChangeNode(cordoned(string(text)))
			if _, err := drain.New(s.Client(), apitest.Node, o).Uncordon(within(t, time.Minute), nil); err == nil {
				t.Error("it was uncordoned")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := apitest.New(t)
				s.Always("patch", apitest.Conflict())
				act(t, s, drain.Options{UID: s.CurrentNode().UID})
				patches := s.Requests("patch")
				if len(patches) < 5 {
					t.Fatalf("%d patches", len(patches))
				}
				for _, p := range patches {
					if body := p.Body; !strings.Contains(body, `"resourceVersion":"`) || !strings.Contains(body, `"uid":"`) {
						t.Fatalf("a patch applies to any version of the Node: %s", body)
					}
				}
			})
		})
	}
}

// A webhook may be mended, and the node is not closed before that.
func TestACordonThatIsRefusedIsTriedAgainWithGrowingPauses(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.Always("patch node", apitest.Forbidden("no"))
		r := start(t, s, drain.Options{}, toCordon())
		time.Sleep(10 * time.Minute)
		if n := count(s, "patch"); n < 10 || n > 25 {
			t.Errorf("%d patches in ten minutes", n)
		}
		told := r.of(state.NodeUnclosable)
		if len(told) != count(s, "patch") || told[0].Detail != `cordoning node "node-1": no` || told[0].State.Trouble != "no" || told[0].State.Closed {
			t.Errorf("told %+v", told)
		}
		s.Always("patch node", nil)
		if got := r.looked(); got != drain.CordonSet {
			t.Errorf("cordon is %q", got)
		}
		if state := r.of(state.NodeClosed)[0].State; state.Trouble != "" || !state.Closed || !state.Ours {
			t.Errorf("the state is %+v", state)
		}
	})
}

func TestAClaimThatCannotBeReadIsNobodys(t *testing.T) {
	bubble(t, func(t *testing.T) {
		for _, text := range []string{"", "yes", "{}", `{"event":7}`, `["event"]`} {
			s := apitest.New(t)
			s.ChangeNode(func(n *corev1.Node) { n.Annotations[drain.CordonAnnotation] = text })
			if claim, found, err := drain.New(s.Client(), apitest.Node, drain.Options{}).Claim(within(t, plenty)); found || err != nil {
				t.Errorf("%q is read as %+v, %v", text, claim, err)
			}
		}
	})
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
		"somebody's cordon":                     {[]func(*corev1.Node){cordoned(""), label("true")}, drain.UncordonNotOurs, 0, true, "true"},
		"somebody's cordon and our label":       {[]func(*corev1.Node){cordoned(""), label("nth")}, drain.UncordonNotOurs, 1, true, ""},
		"our label alone":                       {[]func(*corev1.Node){label("nth")}, drain.UncordonNotOurs, 1, false, ""},
		"our cordon, as the server remembers":   {[]func(*corev1.Node){cordoned(ours), setBy("nth")}, drain.UncordonLifted, 1, false, ""},
		"somebody's cordon after ours":          {[]func(*corev1.Node){cordoned(ours), setBy("kubectl")}, drain.UncordonNotOurs, 1, true, ""},
		"no cordon":                             {nil, drain.UncordonNotOurs, 0, false, ""},
		"a cordon of ours that somebody lifted": {
			[]func(*corev1.Node){cordoned(ours), func(n *corev1.Node) { n.Spec.Unschedulable = false }}, drain.UncordonOpened, 1, false, "",
		},
	} {
		run(t, name, func(t *testing.T) {
			s := apitest.New(t)
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

// failing is the answer of a code, as an API server says what failed.
func failing(code int) apitest.Answer {
	return func(w http.ResponseWriter, _ *http.Request) bool {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_, err := fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","code":%d}`, code)
		return err == nil
	}
}

func TestAnUncordonIsTriedAgainAsLongAsTheFailureMayPass(t *testing.T) {
	t.Parallel()
	for _, what := range []string{"get node", "patch node"} {
		for name, c := range map[string]struct {
			answer apitest.Answer
			passes bool
		}{
			"the connection breaks":                 {apitest.Reset(), true},
			"400, what is asked for makes no sense": {failing(http.StatusBadRequest), false},
			"401, the credential is not known":      {failing(http.StatusUnauthorized), true},
			"403, it may not be":                    {failing(http.StatusForbidden), false},
			"408, it has taken too long":            {failing(http.StatusRequestTimeout), true},
			"409, it has changed in the meantime":   {apitest.Conflict(), true},
			"422, it is not valid":                  {failing(http.StatusUnprocessableEntity), false},
			"429, the API server is busy":           {apitest.Throttled(1), true},
			"500, the API server has failed":        {failing(http.StatusInternalServerError), true},
			"503, the API server is not ready":      {apitest.Unavailable(), true},
		} {
			run(t, what+": "+name, func(t *testing.T) {
				s := apitest.New(t)
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

// Whether the kubelet is the right one is asked of others, who may be the ones to stop it all.
func TestAnUncordonThatIsCalledOffWritesNothingAndSaysSo(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.ChangeNode(cordoned(ours))
		ctx, cancel := context.WithCancel(t.Context())
		got, err := drain.New(s.Client(), apitest.Node, drain.Options{}).Uncordon(ctx, func(string, time.Time) bool { cancel(); return true })
		if !errors.Is(err, context.Canceled) || count(s, "patch") != 0 {
			t.Errorf("uncordon is %q, %v after %d patches", got, err, count(s, "patch"))
		}
	})
}

func TestUncordonOfANodeThatIsGoneIsASuccess(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
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
}

func TestAnUncordonDoesNotEndWithAProxysPage(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		node := drain.New(s.Client(), apitest.Node, drain.Options{})
		for _, uncordon := range []func(context.Context, drain.Booted) (drain.UncordonResult, error){drain.NewDryRun(node).Uncordon, node.Uncordon} {
			s.ChangeNode(cordoned(ours))
			s.Answer("get node", apitest.Page(http.StatusNotFound))
			if got, err := uncordon(within(t, plenty), thisBoot); got != drain.UncordonLifted || err != nil {
				t.Errorf("%q, %v", got, err)
			}
		}
		if s.CurrentNode().Spec.Unschedulable {
			t.Error("the node is closed")
		}
	})
}

func TestUncordonWaitsForTheNodeToBeReadyIfAsked(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.ChangeNode(cordoned(ours))
		ready := func(status corev1.ConditionStatus) {
			s.ChangeNode(func(n *corev1.Node) { n.Status.Conditions[0].Status = status })
		}
		ready(corev1.ConditionUnknown)
		node := drain.New(s.Client(), apitest.Node, drain.Options{})
		done := make(chan error, 1)
		go func() { _, err := node.Uncordon(within(t, plenty), thisBoot); done <- err }()
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
		if got, err := node.Uncordon(within(t, plenty), nil); got != drain.UncordonLifted || err != nil {
			t.Errorf("without being asked to wait: %q, %v", got, err)
		}
	})
}

// Its network may be broken for a day.
func TestAKubeletThatIsNotReadyIsLookedForEveryFiveSeconds(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.ChangeNode(cordoned(ours))
		_, _ = drain.New(s.Client(), apitest.Node, drain.Options{}).Uncordon(within(t, time.Hour), func(string, time.Time) bool { return false })
		for i, after := range gaps(s.Requests("get node")) {
			if after != 5*time.Second {
				t.Errorf("read %d came after %s", i+2, after)
			}
		}
	})
}

func TestUncordonThatRunsOutOfTimeSaysWhatItWaitedFor(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.ChangeNode(cordoned(ours))
		s.ChangeNode(func(n *corev1.Node) { n.Status.Conditions = nil })
		_, err := drain.New(s.Client(), apitest.Node, drain.Options{}).Uncordon(within(t, 300*time.Millisecond), thisBoot)
		if !errors.Is(err, context.DeadlineExceeded) || count(s, "patch") != 0 {
			t.Errorf("error %v with %d patches", err, count(s, "patch"))
		}
		if want := `uncordoning node "node-1": the node is not Ready yet (context deadline exceeded)`; err.Error() != want {
			t.Errorf("error %q; want %q", err, want)
		}
	})
}

// That there is no time left says nothing of why.
func TestUncordonThatRunsOutOfTimeSaysWhatWentWrongLast(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		first, then apitest.Answer
		want        string
	}{
		"the API server was not ready":                 {pass, apitest.Unavailable(), "not ready (context deadline exceeded)"},
		"it hangs":                                     {apitest.Hang(), apitest.Hang(), `Get "http://apiserver.test/api/v1/nodes/node-1": context deadline exceeded (context deadline exceeded)`},
		"it was not ready, and hangs":                  {apitest.Unavailable(), apitest.Hang(), "not ready (context deadline exceeded)"},
		"it was not ready, and is too busy after that": {apitest.Unavailable(), apitest.Throttled(60), "too many requests (context deadline exceeded)"},
	} {
		run(t, name, func(t *testing.T) {
			s := apitest.New(t)
			s.ChangeNode(cordoned(ours))
			s.ChangeNode(func(n *corev1.Node) { n.Status.Conditions = nil })
			s.Answer("get node", c.first)
			s.Always("get node", c.then)
			_, err := drain.New(s.Client(), apitest.Node, drain.Options{}).Uncordon(within(t, 7*time.Second), thisBoot)
			if want := `uncordoning node "node-1": ` + c.want; !errors.Is(err, context.DeadlineExceeded) || err.Error() != want {
				t.Errorf("error %q; want %q", err, want)
			}
		})
	}
}

// thisBoot tells of the boot ID of the claim that it is the present one.
func thisBoot(id string, _ time.Time) bool { return id == claim.BootID }

func within(t *testing.T, limit time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	return ctx
}

func TestADrainOfANodeThatIsGoneIsASuccess(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.RemoveNode()
		goal := goalWithin(false, plenty)
		goal.NodeSeen = true
		if result := start(t, s, drain.Options{}, goal).succeed(); !result.NodeGone || result.Cordon != drain.CordonNone {
			t.Errorf("the result is %+v", result)
		}
	})
}

func TestADrainRespectsACordonThatIsThere(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.ChangeNode(cordoned(""))
		s.AddPod(pod("a"), 0)
		r := drained(t, s, drain.Options{})
		if r.result.Cordon != drain.CordonForeign || len(r.of(state.NodeFoundClosed)) != 1 || count(s, "patch") != 0 {
			t.Errorf("the result is %+v after %d patches", r.result, count(s, "patch"))
		}
	})
}

func TestWhereTheCordonIsRefusedOnlyAHardDeadlineGoesOn(t *testing.T) {
	t.Parallel()
	for name, hard := range map[string]bool{"hard": true, "soft": false} {
		run(t, name, func(t *testing.T) {
			s := apitest.New(t)
			s.AddPod(pod("a"), 0)
			s.Always("patch", apitest.Forbidden("no cordons here"))
			r := beginWithin(t, s, drain.Options{}, hard, plenty)
			result, err := r.wait()
			told := r.of(state.NodeUnclosable)
			if len(told) == 0 || !strings.Contains(told[0].Detail, "no cordons here") || hard && len(told) > 1 {
				t.Errorf("told %+v", told)
			}
			if !hard {
				if err == nil || count(s, "evict") != 0 {
					t.Errorf("%v after %d evictions", err, count(s, "evict"))
				}
				return
			}
			if err != nil || result.Evicted != 1 || result.Cordon != drain.CordonNone {
				t.Errorf("the result is %+v, %v", result, err)
			}
		})
	}
}

// A webhook on nodes that is down answers 500 for as long as it is down; with a machine that is going away, its pods
// cannot wait for it.
func TestWithAHardDeadlineACordonThatKeepsFailingDoesNotHoldTheEvictionsUp(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]apitest.Answer{"it fails": apitest.Unavailable(), "it hangs": apitest.Hang()} {
		run(t, name, func(t *testing.T) {
			s := apitest.New(t)
			s.AddPod(pod("a"), 0)
			free := addHeld(s, pod("b"))
			s.Always("patch", answer)
			r := beginWithin(t, s, drain.Options{}, true, plenty/2)
			r.await(state.PodGone, "default/a")
			s.Always("patch", nil)
			await(t, "the cordon after all", func() bool { return len(r.of(state.NodeClosed)) > 0 })
			free()
			if result := r.succeed(); result.Cordon != drain.CordonSet || !s.CurrentNode().Spec.Unschedulable {
				t.Errorf("the result is %+v", result)
			}
		})
	}
}

func TestTheLoadBalancerLabelIsSetOnlyWhereNoneIs(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		before *string
		want   string
		told   int
	}{
		"no label":              {nil, drain.Host, 1},
		"somebody's label":      {new("true"), "true", 0},
		"somebody's void label": {new(""), "", 0},
	} {
		run(t, name, func(t *testing.T) {
			s := apitest.New(t)
			if c.before != nil {
				s.ChangeNode(func(n *corev1.Node) { n.Labels[drain.ExcludeLabel] = *c.before })
			}
			r := drained(t, s, drain.Options{ExcludeFromLoadBalancers: true})
			label, ok := s.CurrentNode().Labels[drain.ExcludeLabel]
			if !ok || label != c.want || len(r.of(state.NodeExcluded)) != c.told {
				t.Errorf("the label is %q, told %+v", label, r.of(state.NodeExcluded))
			}
		})
	}
}

func TestALoadBalancerLabelThatIsRefusedBlocksNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.AddPod(pod("a"), 0)
		s.Answer("patch", pass, apitest.Forbidden("no such label"))
		r := drained(t, s, drain.Options{ExcludeFromLoadBalancers: true})
		if told := r.of(state.PodRefused, ""); r.result.Evicted != 1 || len(told) != 1 || !strings.Contains(told[0].Detail, "no such label") {
			t.Errorf("the result is %+v, told %+v", r.result, told)
		}
	})
}

func TestADrainThatIsCalledOffEndsAtOnceAndSaysWhatIsLeft(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		addHeld(s, pod("held"))
		s.AddPod(pod("hung"), 0)
		s.Always("evict default/hung", apitest.Hang())
		r := begin(t, s, drain.Options{})
		r.await(state.PodHeld)
		r.cancel()
		result, err := r.wait()
		if !errors.Is(err, context.Canceled) || len(result.Left) != 2 || result.HeldBy["default/held"] != "budget" {
			t.Errorf("the result is %+v, %v", result, err)
		}
	})
}

// The machine is lost. How long a cordon that fails is waited for depends on when.
func TestACordonThatFailsIsWaitedForAQuarterOfTheTimeBetweenOneSecondAndTen(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer apitest.Answer
		left   time.Duration
		after  time.Duration
	}{
		"a minute is left":          {apitest.Unavailable(), time.Minute, 10 * time.Second},
		"20 seconds are left":       {apitest.Unavailable(), 20 * time.Second, 5 * time.Second},
		"2 seconds are left":        {apitest.Unavailable(), 2 * time.Second, time.Second},
		"it should be gone":         {apitest.Unavailable(), -time.Minute, time.Second},
		"refused, it is not at all": {apitest.Forbidden("no cordons here"), time.Minute, 0},
	} {
		run(t, name, func(t *testing.T) {
			s := apitest.New(t)
			s.AddPod(pod("a"), 0)
			s.Always("patch", c.answer)
			r := beginWithin(t, s, drain.Options{}, true, c.left)
			r.await(state.PodEvicted)
			if after := s.Requests("evict")[0].At.Sub(r.began); after != c.after {
				t.Errorf("evicted after %s; want %s", after, c.after)
			}
		})
	}
}

// That a cordon is refused once more says nothing new of the pods.
func TestWhereTheCordonIsRefusedANodeIsDrainedOnceItsLastPodIsGone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		addHeld(s, pod("a"))
		s.Always("patch", apitest.Forbidden("no cordons here"))
		r := beginWithin(t, s, drain.Options{}, true, plenty)
		time.Sleep(10 * time.Second)
		patches := count(s, "patch")
		await(t, "another refusal", func() bool { return count(s, "patch") > patches })
		s.RemovePod("default/a")
		gone := time.Now()
		r.succeed()
		if after := r.drainedAt().Sub(gone); after > 100*time.Millisecond {
			t.Errorf("drained %s later", after)
		}
	})
}
