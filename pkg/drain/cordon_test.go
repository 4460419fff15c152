package drain_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/drain/apitest"
	"github.com/nth-project/nth/pkg/kube"
	"github.com/nth-project/nth/pkg/state"
)

func TestCordon(t *testing.T) {
	t.Parallel()
	run(t, "of a Node that is replaced meanwhile", func(t *testing.T, s *apitest.Server) {
		s.Answer("patch", func(http.ResponseWriter, *http.Request) bool {
			s.RemoveNode()
			s.RegisterNode()
			return false // The server answers with a conflict.
		})
		r := begin(t, s, drain.Options{})
		r.await(state.NodeCordoned)
		if reported, after := r.of(state.NodeCordonFailed), time.Since(r.began); len(reported) > 0 || after > time.Second {
			t.Errorf("cordoned after %s, reported %+v", after, reported)
		}
	})
	// The journal says who has cordoned the node, even if that was learned only from the next look.
	run(t, "by a patch without an answer", func(t *testing.T, s *apitest.Server) {
		s.Answer("patch", apitest.Lost())
		r := start(t, s, drain.Options{}, toCordon())
		r.await(state.NodeCordoned)
		if cordon := r.of(state.NodeCordoned)[0].Detail; cordon != string(drain.CordonSet) {
			t.Errorf("the cordon is %q", cordon)
		}
	})
}

func TestCordon_OnePatchOrNone(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		node    func(*corev1.Node)
		want    drain.CordonResult
		patches int
		claim   string
	}{
		"a schedulable node":                 {func(*corev1.Node) {}, drain.CordonSet, 1, "event-1"},
		"a node that somebody else cordoned": {cordoned(""), drain.CordonForeign, 0, ""},
		"a node that we cordoned":            {cordoned(ours), drain.CordonKept, 0, "event-0"},
		"a node that we cordoned, as the API server remembers": {
			func(n *corev1.Node) { cordoned(ours)(n); setBy("nth")(n) }, drain.CordonKept, 0, "event-0",
		},
		"a node that we cordoned, as the API server has forgotten": {
			func(n *corev1.Node) { cordoned(ours)(n); setBy("ancient-changes")(n) }, drain.CordonKept, 0, "event-0",
		},
		"a node that somebody else cordoned after lifting our cordon, where our annotation is left over": {
			func(n *corev1.Node) { cordoned(ours)(n); setBy("kubectl-cordon")(n) }, drain.CordonForeign, 0, "event-0",
		},
		"a node whose cordon somebody has lifted": {
			func(n *corev1.Node) {
				n.Annotations[drain.CordonAnnotation] = strings.Replace(ours, "event-0", "event-1", 1)
			}, drain.Uncordoned, 0, "event-1",
		},
	} {
		run(t, name, func(t *testing.T, s *apitest.Server) {
			s.ChangeNode(c.node)
			node := drain.New(s.Client(), apitest.Node, drain.Options{})
			if got := start(t, s, drain.Options{}, toCordon()).looked(); got != c.want {
				t.Fatalf("cordon is %q; want %q", got, c.want)
			}
			if n := count(s, "patch"); n != c.patches {
				t.Errorf("%d patches; want %d", n, c.patches)
			}
			if s.CurrentNode().Spec.Unschedulable == (c.want == drain.Uncordoned) {
				t.Error("the node is not as it must be")
			}
			held, found, err := node.Claim(within(t, plenty))
			if err != nil || found != (c.claim != "") || held.Event != c.claim {
				t.Errorf("claim is %+v, %v, %v; want the event %q", held, found, err, c.claim)
			}
		})
	}
}

// Another leader of nth-queue may have cordoned the Node since it was read, and the patch arrives late.
func TestCordon_PatchesTheNodeAsItWasRead(t *testing.T) {
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
			bubble(t, func(t *testing.T, s *apitest.Server) {
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

func TestCordon_RefusedStopsASoftDrain(t *testing.T) {
	t.Parallel()
	for name, hard := range map[string]bool{"hard": true, "soft": false} {
		run(t, name, func(t *testing.T, s *apitest.Server) {
			s.AddPod(pod("a"), 0)
			s.Always("patch", apitest.Forbidden("no cordons here"))
			r := beginWithin(t, s, drain.Options{}, hard, plenty)
			result, err := r.wait()
			reported := r.of(state.NodeCordonFailed)
			if len(reported) == 0 || !strings.Contains(reported[0].Detail, "no cordons here") || hard && len(reported) > 1 {
				t.Errorf("reported %+v", reported)
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

// The Node is registered again.
func TestCordon_LostStopsASoftDrain(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]apitest.Answer{"refused": apitest.Forbidden("no cordons here"), "fails": apitest.Unavailable()} {
		run(t, name, func(t *testing.T, s *apitest.Server) {
			r := drained(t, s, drain.Options{})
			s.Always("patch", answer)
			s.RegisterNode()
			time.Sleep(20 * time.Second)
			s.AddPod(pod("new"), 0)
			time.Sleep(time.Minute)
			if state := r.last().State; state.Drained || count(s, "evict") > 0 {
				t.Errorf("an open node has seen %d evictions, and is reported as %+v", count(s, "evict"), state)
			}
			s.Always("patch", nil)
			await(t, "that it is drained again", func() bool { return len(r.of(state.NodeEmpty)) == 2 && !s.HasPod("default/new") })
		})
	}
}

// A webhook or a proxy has made it one that does nothing, or that writes only the claim.
func TestPatch_WithoutEffectIsRefused(t *testing.T) {
	t.Parallel()
	without := func(s *apitest.Server, change func(*corev1.Node)) apitest.Answer {
		return func(w http.ResponseWriter, _ *http.Request) bool {
			s.ChangeNode(change, drain.Host)
			w.Header().Set("Content-Type", "application/json")
			return json.NewEncoder(w).Encode(s.CurrentNode()) == nil
		}
	}
	nothing := func(*corev1.Node) {}
	for name, change := range map[string]func(*corev1.Node){"nothing": nothing, "the claim": asking(drain.CordonAnnotation, ours)} {
		run(t, "a cordon, with "+name, func(t *testing.T, s *apitest.Server) {
			s.Always("patch", without(s, change))
			r := begin(t, s, drain.Options{})
			time.Sleep(time.Minute)
			if last := r.last().State; len(r.of(state.NodeCordonFailed)) != 1 || last.Cordoned || last.Uncordoned || last.Drained {
				t.Errorf("reported %+v, and the state %+v", r.of(state.NodeCordonFailed), last)
			}
		})
	}
	run(t, "a label", func(t *testing.T, s *apitest.Server) {
		s.CordonAs("kubectl")
		s.Always("patch", without(s, nothing))
		r := begin(t, s, drain.Options{ExcludeFromLoadBalancers: true})
		time.Sleep(time.Minute)
		r.reported(0, state.NodeExcluded)
		r.reported(1, state.PodRefused)
	})
	run(t, "an uncordon", func(t *testing.T, s *apitest.Server) {
		s.ChangeNode(cordoned(ours))
		s.Always("patch", without(s, nothing))
		if result, err := drain.New(s.Client(), apitest.Node, drain.Options{}).Uncordon(within(t, plenty), nil); err == nil {
			t.Errorf("uncordon is %q", result)
		}
	})
}

// The machine is lost. How long a cordon that fails is waited for depends on when.
func TestCordon_FailingDelaysEvictions(t *testing.T) {
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
		"refused by a policy":       {apitest.Refused(422, metav1.StatusReasonInvalid, "no cordons here"), time.Minute, 0},
	} {
		run(t, name, func(t *testing.T, s *apitest.Server) {
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

// All nodes of nth-queue share one gate for these, too. That no pod comes to a node that is lost cannot wait, once it has been begun.
func TestCordon_PassesAtTheGate(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		before, what string // what has the place that is waited for then
		opts         drain.Options
		passes       bool
	}{
		"the first look at it":        {"", "get node", drain.Options{}, true},
		"its cordon":                  {"get node", "patch node", drain.Options{}, true},
		"not its load balancer label": {"patch node", "patch node", drain.Options{ExcludeFromLoadBalancers: true}, false},
	} {
		run(t, name, func(t *testing.T, s *apitest.Server) {
			gate := kube.NewGate(1)
			c.opts.Requests = gate
			for _, what := range []string{"get", "patch"} {
				s.Always(what, slowly(time.Second))
			}
			var holder, waiting <-chan func()
			if c.before == "" {
				holder, waiting = apitest.Enter(t, gate, kube.First), apitest.Enter(t, gate, kube.InTurn)
				begin(t, s, c.opts)
			} else {
				begin(t, s, c.opts)
				await(t, "what has the place before", func() bool { return count(s, c.before) == 1 })
				holder, waiting = apitest.Enter(t, gate, kube.First), apitest.Enter(t, gate, kube.InTurn)
			}
			leave := <-holder
			asked := count(s, c.what)
			time.Sleep(500 * time.Millisecond) // Now it waits behind the other one, which has come before it.
			leave()
			synctest.Wait()
			if passed := count(s, c.what) > asked; passed != c.passes || passed == (len(waiting) > 0) {
				t.Errorf("it has passed the one that has waited longer: %t, and that one has entered: %t", passed, len(waiting) > 0)
			}
		})
	}
}

func TestOptOut_NodeAnnotation(t *testing.T) {
	t.Parallel()
	for action, want := range map[string]struct {
		cordon             drain.CordonResult
		patches, evictions int
	}{
		"ignore": {drain.CordonOptedOut, 0, 0},
		"notify": {drain.CordonOptedOut, 0, 0},
		"cordon": {drain.CordonSet, 1, 0},
		"drain":  {drain.CordonSet, 1, 1},
		"dance":  {drain.CordonSet, 1, 1},
	} {
		run(t, action, func(t *testing.T, s *apitest.Server) {
			s.ChangeNode(asking(drain.ActionAnnotation, action))
			s.AddPod(pod("a"), 0)
			r := begin(t, s, drain.Options{})
			if want.evictions == 0 {
				r.result = r.leave()
				time.Sleep(time.Minute)
				if len(r.of(state.NodeEmpty)) > 0 {
					t.Errorf("it is said to be drained: %+v", r.reports)
				}
			} else {
				r.succeed()
			}
			if left := r.last().State.MayNotCordon; left != (want.cordon == drain.CordonOptedOut) {
				t.Errorf("reported is %+v", r.last().State)
			}
			if r.result.Cordon != want.cordon || r.result.MayNotEvict != (want.evictions == 0) {
				t.Errorf("the result is %+v", r.result)
			}
			if count(s, "patch") != want.patches || count(s, "evict") != want.evictions {
				t.Errorf("%d patches and %d evictions; want %d and %d", count(s, "patch"), count(s, "evict"), want.patches, want.evictions)
			}
		})
	}
}

// nth was restarted, and the API server does not answer when it asks for the Node. Operators's last word was to leave the pods alone.
func TestOptOut_NodeBeforeTheFirstLook(t *testing.T) {
	t.Parallel()
	limited := func(t *testing.T, s *apitest.Server, change func(*corev1.Node)) *trial {
		t.Helper()
		s.AddPod(pod("a"), 0)
		s.ChangeNode(change)
		s.Always("get node", apitest.Unavailable())
		goal := goalWithin(true, 2*time.Minute)
		goal.MayNotEvict = true
		r := start(t, s, drain.Options{}, goal)
		time.Sleep(time.Minute)
		s.Requested(t, 0, "evict", "delete")
		return r
	}
	run(t, "and go if it is so no more", func(t *testing.T, s *apitest.Server) {
		r := limited(t, s, func(*corev1.Node) {})
		s.Always("get node", nil)
		r.succeed()
	})
	run(t, "and stay if it is so still", func(t *testing.T, s *apitest.Server) {
		r := limited(t, s, asking(drain.ActionAnnotation, drain.OnlyCordon))
		s.Always("get node", nil)
		r.leave()
		time.Sleep(2 * time.Minute)
		s.Requested(t, 0, "evict", "delete")
	})
}
