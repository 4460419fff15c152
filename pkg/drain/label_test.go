package drain_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/drain/apitest"
	"github.com/nth-project/nth/pkg/state"
)

func TestLabel_IsTakenBackAlone(t *testing.T) {
	t.Parallel()
	opts := drain.Options{ExcludeFromLoadBalancers: true}
	labeled := func(s *apitest.Server) bool { _, ok := s.CurrentNode().Labels[drain.ExcludeLabel]; return ok }
	for name, node := range map[string]func(*corev1.Node){
		"next to a cordon of ours": func(*corev1.Node) {}, "next to an administrator's": cordoned(""), "next to nth-queue's": cordoned(claimBy(drain.Queue)),
	} {
		run(t, name+", when the event is over", func(t *testing.T, s *apitest.Server) {
			s.ChangeNode(node)
			r := drained(t, s, opts)
			time.Sleep(time.Minute)
			if ours := name == "next to a cordon of ours"; !labeled(s) || r.last().State.Ours != ours {
				t.Errorf("labeled %v, the state is %+v", labeled(s), r.last().State)
			}
			r.stop()
			if _, err := drain.New(s.Client(), apitest.Node, opts).Uncordon(within(t, plenty), nil); err != nil || labeled(s) {
				t.Errorf("labeled %v, %v", labeled(s), err)
			}
		})
		run(t, name+", when somebody uncordons the node", func(t *testing.T, s *apitest.Server) {
			s.ChangeNode(node)
			r := drained(t, s, opts)
			s.ChangeNode(uncordoned)
			lifted := time.Now()
			await(t, "that the label is gone", func() bool { return !labeled(s) })
			if after := time.Since(lifted); after > 6*time.Second || len(r.of(state.NodeUncordoned)) != 1 {
				t.Errorf("gone after %s, reported %+v", after, r.of(state.NodeUncordoned))
			}
			time.Sleep(time.Minute)
			if labeled(s) || s.CurrentNode().Spec.Unschedulable {
				t.Errorf("the node is %+v", s.CurrentNode())
			}
		})
	}
	run(t, "not set without a cordon", func(t *testing.T, s *apitest.Server) {
		s.AddPod(pod("a"), 0)
		s.Always("patch", apitest.Forbidden("a webhook minds cordons"))
		beginWithin(t, s, opts, true, plenty).succeed()
		if labeled(s) {
			t.Error("the label was set")
		}
	})
}

func TestLabel_IsTriedAgain(t *testing.T) {
	t.Parallel()
	opts := drain.Options{ExcludeFromLoadBalancers: true}
	for name, c := range map[string]struct {
		answer   apitest.Answer
		reported int
	}{
		"unavailable": {apitest.Unavailable(), 0}, "changed in the meantime": {apitest.Conflict(), 0}, "refused": {apitest.Forbidden("a webhook minds labels"), 1},
	} {
		run(t, "set, "+name, func(t *testing.T, s *apitest.Server) {
			s.Answer("patch", pass, c.answer, c.answer)
			r := begin(t, s, opts)
			r.await(state.NodeExcluded)
			if after := time.Since(r.began); after < 10*time.Second || after > 11*time.Second {
				t.Errorf("set after %s", after)
			}
			r.reported(c.reported, state.PodRefused)
		})
		run(t, "taken back, "+name, func(t *testing.T, s *apitest.Server) {
			r := drained(t, s, opts)
			s.Answer("patch", c.answer, c.answer)
			s.UncordonAs("kubectl")
			r.await(state.NodeUncordoned)
			await(t, "that the label is off", func() bool { return s.CurrentNode().Labels[drain.ExcludeLabel] == "" })
			time.Sleep(time.Minute)
			r.reported(1, state.NodeExcluded)
		})
	}
}

// Next to somebody else's cordon there is no annotation of ours, and the record may have been lost.
func TestLabel_AloneIsAClaim(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		label, annotation, event string
	}{
		"ours":                        {drain.Host, "", "label"},
		"ours, and nth-queue's claim": {drain.Host, claimBy(drain.Queue), "label"},
		"ours, and our claim":         {drain.Host, ours, "event-0"},
		"somebody's":                  {"true", "", ""},
	} {
		run(t, name, func(t *testing.T, s *apitest.Server) {
			s.ChangeNode(func(n *corev1.Node) {
				cordoned(c.annotation)(n)
				n.Labels[drain.ExcludeLabel] = c.label
				n.Status.NodeInfo.BootID = "boot-7"
			})
			claim, mine, err := drain.New(s.Client(), apitest.Node, drain.Options{}).Claim(t.Context())
			if err != nil || mine != (c.event != "") || mine && claim.Event != c.event {
				t.Fatalf("claim is %+v, %t, %v; want the event %q", claim, mine, err, c.event)
			}
			if c.event == "label" && (claim.BootID != "boot-7" || claim.Since.IsZero()) {
				t.Errorf("claim is %+v", claim)
			}
		})
	}
}

func TestLabel_OnlyWhereNoneIs(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		before   *string
		want     string
		reported int
	}{
		"no label":              {nil, drain.Host, 1},
		"somebody's label":      {new("true"), "true", 0},
		"somebody's void label": {new(""), "", 0},
	} {
		run(t, name, func(t *testing.T, s *apitest.Server) {
			if c.before != nil {
				s.ChangeNode(func(n *corev1.Node) { n.Labels[drain.ExcludeLabel] = *c.before })
			}
			r := drained(t, s, drain.Options{ExcludeFromLoadBalancers: true})
			label, ok := s.CurrentNode().Labels[drain.ExcludeLabel]
			if !ok || label != c.want || len(r.of(state.NodeExcluded)) != c.reported {
				t.Errorf("the label is %q, reported %+v", label, r.of(state.NodeExcluded))
			}
		})
	}
}

func TestLabel(t *testing.T) {
	t.Parallel()
	run(t, "delays no eviction", func(t *testing.T, s *apitest.Server) {
		s.AddPod(pod("a"), 0)
		s.Answer("patch", pass, apitest.Hang())
		r := drained(t, s, drain.Options{ExcludeFromLoadBalancers: true})
		if after := s.Requests("evict")[0].At.Sub(r.began); after > time.Second {
			t.Errorf("evicted after %s", after)
		}
		time.Sleep(time.Until(r.began.Add(7 * time.Second)))
		s.Requested(t, 2, "patch")
		r.await(state.NodeExcluded)
		if !r.last().State.Ours {
			t.Errorf("reported %+v", r.last())
		}
	})
	// Evictions end soon after an operator's uncordon, also if writes of the Node hang: a look tries only for two seconds to take the label off.
	run(t, "delays no uncordon, though writes hang", func(t *testing.T, s *apitest.Server) {
		addHeld(s, pod("held"))
		r := begin(t, s, drain.Options{ExcludeFromLoadBalancers: true})
		r.await(state.NodeExcluded)
		s.Always("patch", apitest.Hang())
		s.UncordonAs("kubectl")
		began := time.Now()
		r.await(state.NodeUncordoned)
		if took := time.Since(began); took > 8*time.Second {
			t.Errorf("the uncordon is reported after %s", took)
		}
	})
}
