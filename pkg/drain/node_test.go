package drain_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/drain/apitest"
)

func TestADrainOfANodeThatIsGoneIsASuccess(t *testing.T) {
	t.Parallel()
	s := apitest.New(t)
	s.RemoveNode()
	if r := drained(t, s, drain.Options{}); !r.result.NodeGone || r.result.Cordon != drain.CordonNone {
		t.Errorf("the result is %+v", r.result)
	}
}

func TestADrainRespectsACordonThatIsThere(t *testing.T) {
	t.Parallel()
	s := apitest.New(t)
	s.ChangeNode(cordoned(""))
	s.AddPod(pod("a"), 0)
	r := drained(t, s, drain.Options{})
	if r.result.Cordon != drain.CordonForeign || len(r.of(drain.NodeCordonFound)) != 1 || count(s, "patch") != 0 {
		t.Errorf("the result is %+v after %d patches", r.result, count(s, "patch"))
	}
}

func TestWhereTheCordonIsRefusedOnlyAHardDeadlineGoesOn(t *testing.T) {
	t.Parallel()
	for name, hard := range map[string]bool{"hard": true, "soft": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := apitest.New(t)
			s.AddPod(pod("a"), 0)
			s.Always("patch", apitest.Forbidden("no cordons here"))
			r := beginWithin(t, s, drain.Options{}, hard, plenty)
			result, err := r.wait()
			if !hard {
				if !apierrors.IsForbidden(err) || count(s, "evict") != 0 {
					t.Errorf("error %v after %d evictions", err, count(s, "evict"))
				}
				return
			}
			if err != nil || result.Evicted != 1 || result.Cordon != drain.CordonNone {
				t.Errorf("the result is %+v, %v", result, err)
			}
			if told := r.of(drain.Refused, ""); len(told) != 1 || !strings.Contains(told[0].Detail, "no cordons here") {
				t.Errorf("told %+v", told)
			}
		})
	}
}

// A webhook on nodes that is down answers 500 for as long as it is down; with a machine that is going away, its pods
// cannot wait for it.
func TestWithAHardDeadlineACordonThatKeepsFailingDoesNotHoldTheEvictionsUp(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]apitest.Answer{"it fails": apitest.Unavailable(), "it hangs": apitest.Hang()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := apitest.New(t)
			s.AddPod(pod("a"), 0)
			free := addHeld(s, pod("b"))
			s.Always("patch", answer)
			r := beginWithin(t, s, drain.Options{}, true, plenty/2)
			r.await(drain.Refused, "")
			r.await(drain.Gone, "default/a")
			s.Always("patch", nil)
			await(t, "the cordon after all", func() bool { return len(r.of(drain.NodeCordoned)) > 0 })
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
		there *string
		want  string
		told  int
	}{
		"no label":              {nil, drain.ExcludeValue, 1},
		"somebody's label":      {new("true"), "true", 0},
		"somebody's void label": {new(""), "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := apitest.New(t)
			if c.there != nil {
				s.ChangeNode(func(n *corev1.Node) { n.Labels[drain.ExcludeLabel] = *c.there })
			}
			r := drained(t, s, drain.Options{ExcludeFromLoadBalancers: true})
			label, there := s.CurrentNode().Labels[drain.ExcludeLabel]
			if !there || label != c.want || len(r.of(drain.NodeExcluded)) != c.told {
				t.Errorf("the label is %q, told %+v", label, r.of(drain.NodeExcluded))
			}
		})
	}
}

func TestALoadBalancerLabelThatIsRefusedBlocksNothing(t *testing.T) {
	t.Parallel()
	s := apitest.New(t)
	s.AddPod(pod("a"), 0)
	s.Answer("patch", pass, apitest.Forbidden("no such label"))
	r := drained(t, s, drain.Options{ExcludeFromLoadBalancers: true})
	if told := r.of(drain.Refused, ""); r.result.Evicted != 1 || len(told) != 1 || !strings.Contains(told[0].Detail, "no such label") {
		t.Errorf("the result is %+v, told %+v", r.result, told)
	}
}

func TestADrainThatIsCalledOffEndsAtOnceAndSaysWhatIsLeft(t *testing.T) {
	t.Parallel()
	s := apitest.New(t)
	addHeld(s, pod("held"))
	s.AddPod(pod("hung"), 0)
	s.Always("evict default/hung", apitest.Hang())
	r := begin(t, s, drain.Options{})
	r.await(drain.Held)
	r.cancel()
	result, err := r.wait()
	if !errors.Is(err, context.Canceled) || len(result.Left) != 2 || result.HeldBy["default/held"] != "budget" {
		t.Errorf("the result is %+v, %v", result, err)
	}
}
