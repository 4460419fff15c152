package drain_test

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/drain/apitest"
)

// underOldKey moves what a Node has under a key to where builds before the first release had it.
func underOldKey(key string) func(*corev1.Node) {
	return func(n *corev1.Node) {
		n.Annotations["nth/"+strings.TrimPrefix(key, drain.KeyPrefix)] = n.Annotations[key]
		delete(n.Annotations, key)
	}
}

func TestACordonUnderItsOldKeyIsOurs(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.ChangeNode(cordoned(ours))
		s.ChangeNode(underOldKey(drain.CordonAnnotation))
		node := drain.New(s.Client(), apitest.Node, drain.Options{})
		if found, mine, err := node.Claim(within(t, plenty)); !mine || err != nil {
			t.Errorf("the claim is %+v, %v, %v", found, mine, err)
		}
		if got, err := node.Uncordon(within(t, plenty), nil); got != drain.UncordonLifted || err != nil {
			t.Errorf("uncordon is %q, %v", got, err)
		}
		if after := s.CurrentNode(); after.Spec.Unschedulable || len(after.Annotations) > 0 {
			t.Errorf("the node is left as %+v %+v", after.ObjectMeta, after.Spec)
		}
	})
}

func TestANodeIsNotCordonedTwiceForAnOldKey(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.ChangeNode(cordoned(ours))
		s.ChangeNode(underOldKey(drain.CordonAnnotation))
		s.AddPod(pod("a"), 0)
		r := drained(t, s, drain.Options{})
		if r.result.Cordon != drain.CordonOurs || count(s, "evict") != 1 {
			t.Errorf("the result is %+v, with %d evictions", r.result, count(s, "evict"))
		}
	})
}

func TestWhatPeopleAskForUnderOldKeysIsHeard(t *testing.T) {
	t.Parallel()
	run(t, "on a Node", func(t *testing.T) {
		s := apitest.New(t)
		s.ChangeNode(asking("nth/action", drain.OnlyCordon))
		s.AddPod(pod("a"), 0)
		r := begin(t, s, drain.Options{})
		r.result = r.leave()
		time.Sleep(time.Minute)
		if !r.result.Limited || count(s, "evict") > 0 {
			t.Errorf("the result is %+v, with %d evictions", r.result, count(s, "evict"))
		}
	})
	run(t, "on a pod", func(t *testing.T) {
		s := apitest.New(t)
		s.AddPod(pod("a", annotated("nth/evict", drain.Never)), 0)
		s.AddPod(pod("b"), 0)
		if r := drained(t, s, drain.Options{}); r.result.Evicted != 1 {
			t.Errorf("the result is %+v", r.result)
		}
	})
}
