package drain_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/drain/apitest"
	"github.com/nth-project/nth/pkg/evict"
	"github.com/nth-project/nth/pkg/state"
)

func TestDryRun(t *testing.T) {
	t.Parallel()
	// A dry run tells of pods also where the goal comes to be a drain later.
	run(t, "a drain after a cordon", func(t *testing.T, s *apitest.Server) {
		s.AddPod(pod("a"), 0)
		r := watchOver(t, drain.NewDryRun(drain.New(s.Client(), apitest.Node, drain.Options{})), toCordon())
		time.Sleep(time.Second)
		r.adjust(func(g *drain.Goal) { g.Evict = true })
		r.succeed()
		r.reported(1, state.PodEvicted)
		r.reported(0, state.StateChanged)
		r.adjust(func(g *drain.Goal) { g.Evict = false })
		time.Sleep(time.Second)
		if reported := r.of(state.StateChanged); len(reported) != 1 || !reported[0].State.Cordoned || !reported[0].State.Ours || reported[0].State.Drained || len(r.of(state.NodeCordoned)) != 2 {
			t.Errorf("reported %+v", r.reports)
		}
	})
	// What the policy makes of it depends on the events that it concerns.
	run(t, "for which events a node was uncordoned", func(t *testing.T, s *apitest.Server) {
		goal := goalWithin(false, plenty)
		text, _ := json.Marshal(goal.Claim)
		s.ChangeNode(asking(drain.CordonAnnotation, string(text)))
		r := watchOver(t, drain.NewDryRun(drain.New(s.Client(), apitest.Node, drain.Options{})), goal)
		r.await(state.NodeUncordoned)
		if reported := r.of(state.NodeUncordoned); len(reported) != 1 || !reported[0].Claim.Names(claim.Event) || reported[0].Generation != 1 {
			t.Errorf("reported %+v", reported)
		}
		r.adjust(joining) // The claim is not taken for another uncordon.
		r.succeed()
		r.reported(1, state.NodeCordoned)
		r.reported(1, state.NodeUncordoned)
		s.ChangeNode(cordoned(string(text)))
		r = watchOver(t, drain.NewDryRun(drain.New(s.Client(), apitest.Node, drain.Options{})), goal)
		r.succeed()
		r.reported(1, state.NodeCordoned)
	})
	run(t, "looks that are refused", func(t *testing.T, s *apitest.Server) {
		refusal := apitest.Forbidden("not you")
		s.Always("get node", refusal)
		node := drain.NewDryRun(drain.New(s.Client(), apitest.Node, drain.Options{}))
		r := watchOver(t, node, goalWithin(true, plenty))
		time.Sleep(14 * time.Second)
		reported := r.of(state.NodeCordonFailed)
		if len(reported) != 1 || reported[0].State.Trouble != reported[0].Detail || reported[0].Detail == "" || reported[0].Generation != 1 {
			t.Errorf("reported %+v", reported)
		}
		if looks := count(s, "get node"); looks != 3 {
			t.Errorf("it was looked at %d times in 14 seconds", looks)
		}
		if _, err := node.Uncordon(within(t, plenty), thisBoot); err == nil {
			t.Error("an uncordon that cannot look tells no error")
		}
		s.Always("get node", nil)
		r.succeed()
		s.Always("get node", refusal)
		r.adjust(joining)
		time.Sleep(time.Minute)
		r.reported(2, state.NodeCordonFailed)
	})
	// What a dry run tells of a node that is to be left alone is not that it would be closed and ours.
	run(t, "a node that is opted out", func(t *testing.T, s *apitest.Server) {
		s.ChangeNode(asking(drain.ActionAnnotation, drain.LeaveNode))
		r := watchOver(t, drain.NewDryRun(drain.New(s.Client(), apitest.Node, drain.Options{})), goalWithin(false, plenty))
		r.leave()
		if state := r.last().State; state.Cordoned || !state.MayNotCordon {
			t.Errorf("reported the state %+v", state)
		}
	})
	run(t, "reports all and writes nothing", func(t *testing.T, s *apitest.Server) {
		for _, p := range []*corev1.Pod{
			pod("web"), pod("agent", ownedBy("DaemonSet", "apps/v1")), pod("proxy", mirror, unmanaged), pod("done", phase(corev1.PodSucceeded)),
		} {
			s.AddPod(p, 0)
		}
		node := drain.NewDryRun(drain.New(s.Client(), apitest.Node, drain.Options{ExcludeFromLoadBalancers: true}))
		if _, found, err := node.Claim(within(t, plenty)); found || err != nil {
			t.Errorf("claim: %v, %v", found, err)
		}
		r := watchOver(t, node, goalWithin(true, plenty))
		if result := r.succeed(); result.Cordon != drain.CordonNone || result.Evicted != 2 || result.Skipped != 2 {
			t.Errorf("the result is %+v", result)
		}
		if len(r.of(state.NodeCordoned)) != 1 || len(r.of(state.PodEvicted)) != 2 || len(r.of(state.PodEvicted, "default/web")) != 1 || len(r.of(state.PodEvicted, "default/done")) != 1 {
			t.Errorf("reported %+v", r.reports)
		}
		r.adjust(func(goal *drain.Goal) { goal.Hard = goal.Hard.Add(-time.Minute) })
		await(t, "that it is drained under the new goal", func() bool { return r.numbered(state.StateChanged).State.Drained })
		s.ChangeNode(cordoned(""))
		goal := goalWithin(true, plenty)
		goal.NodeSeen = true
		r = watchOver(t, node, goal)
		if result := r.succeed(); result.Cordon != drain.CordonForeign || len(r.of(state.CordonFound)) != 1 {
			t.Errorf("on a cordoned node: %+v", result)
		}
		s.RemoveNode()
		r = watchOver(t, node, goal)
		r.await(state.StateChanged)
		if result, want := r.task.Result(), (drain.State{Drained: true, Looked: true}); !result.NodeGone || r.last().State != want {
			t.Errorf("without a node: %+v, %+v", result, r.reports)
		}
		for _, r := range s.Requests() {
			if !slices.Contains([]string{"get node", "list pods"}, r.What) {
				t.Errorf("a dry run asked to %s", r.What)
			}
		}
	})
}

// foreseen is what matters of a forecast.
type foreseen struct {
	pods  int
	needs time.Duration
	cut   string
}

func essence(f evict.Forecast) foreseen {
	var cut []string
	for _, pod := range f.Cut() {
		cut = append(cut, fmt.Sprintf("%s %s of %s", pod.Pod, pod.Gets, pod.Grace))
	}
	return foreseen{len(f.Pods), f.Needs, strings.Join(cut, ", ")}
}

func TestForecast_GoesByEachRule(t *testing.T) {
	t.Parallel()
	const second = time.Second
	for name, row := range map[string]struct {
		opts drain.Options
		pods []*corev1.Pod
		want foreseen
	}{
		"pods take the longest grace": {
			drain.Options{}, []*corev1.Pod{pod("web", grace(30)), pod("app", grace(20))}, foreseen{pods: 2, needs: 30 * second},
		},
		"evictions are delayed": {
			drain.Options{LoadBalancerWait: 10 * second}, []*corev1.Pod{pod("web", grace(30))}, foreseen{pods: 1, needs: 40 * second},
		},
		"critical pods go after the others": {
			drain.Options{}, []*corev1.Pod{pod("dns", grace(20), critical), pod("web", grace(30))}, foreseen{pods: 2, needs: 50 * second},
		},
		"a pod that has finished takes no time": {
			drain.Options{}, []*corev1.Pod{pod("job", grace(60), phase(corev1.PodSucceeded))}, foreseen{pods: 1},
		},
		"a pod that runs until the deadline takes all of it": {
			drain.Options{Options: evict.Options{Margin: 5 * second}}, []*corev1.Pod{pod("job", grace(30), annotated(evict.Annotation, evict.AtDeadline))}, foreseen{pods: 1, needs: 115 * second},
		},
		"a pod that needs longer is cut short, to a whole second": {
			drain.Options{Options: evict.Options{Margin: 4500 * time.Millisecond}}, []*corev1.Pod{pod("db", grace(200))},
			foreseen{pods: 1, needs: 115 * second, cut: "default/db 1m55s of 3m20s"},
		},
		"a pod gets a second where there is no time": {
			drain.Options{Options: evict.Options{Margin: time.Hour}}, []*corev1.Pod{pod("db", grace(200))},
			foreseen{pods: 1, needs: second, cut: "default/db 1s of 3m20s"},
		},
	} {
		run(t, name, func(t *testing.T, s *apitest.Server) {
			for _, p := range row.pods {
				s.AddPod(p, apitest.Never)
			}
			got, err := drain.New(s.Client(), apitest.Node, row.opts).Forecast(t.Context(), 2*time.Minute)
			if seen := essence(got); err != nil || seen != row.want {
				t.Errorf("the forecast is %+v, %v; want %+v", seen, err, row.want)
			}
		})
	}
}

func TestForecast(t *testing.T) {
	t.Parallel()
	run(t, "pods by name, with owner and emptyDir", func(t *testing.T, s *apitest.Server) {
		s.AddPod(pod("b", unmanaged, apitest.EmptyDir), 0)
		s.AddPod(pod("c"), 0)
		s.AddPod(pod("a"), 0)
		forecast, err := drain.New(s.Client(), apitest.Node, drain.Options{}).Forecast(t.Context(), time.Minute)
		var found []string
		for _, p := range forecast.Pods {
			found = append(found, fmt.Sprintf("%s %q %t", p.Pod, p.Owner, p.EmptyDir))
		}
		want := []string{`default/a "ReplicaSet" false`, `default/b "" true`, `default/c "ReplicaSet" false`}
		if err != nil || !slices.Equal(found, want) {
			t.Errorf("the forecast is %q, %v; want %q", found, err, want)
		}
	})
	run(t, "without a list", func(t *testing.T, s *apitest.Server) {
		s.Always("list", apitest.Forbidden("no"))
		node := drain.New(s.Client(), apitest.Node, drain.Options{})
		const want = "listing the pods of node "
		if _, err := node.Forecast(t.Context(), time.Minute); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("the forecast's error is %v", err)
		}
	})
	run(t, "scripts take all of their time", func(t *testing.T, s *apitest.Server) {
		s.AddPod(pod("a", grace(20)), 0)
		for wait, want := range map[time.Duration]time.Duration{0: 20 * time.Second, 10 * time.Second: 30 * time.Second, time.Hour: 50 * time.Second} {
			f, err := drain.New(s.Client(), apitest.Node, drain.Options{ScriptsWait: wait}).Forecast(t.Context(), 2*time.Minute)
			if err != nil || f.Needs != want {
				t.Errorf("with scripts that may take %s, a drain needs %s, want %s (%v)", wait, f.Needs, want, err)
			}
		}
	})
}

func TestHeldBy(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer       apitest.Answer
		held, failed string
	}{
		"no budget":  {answer: accepted},
		"a budget":   {answer: apitest.HeldBy("web", 0), held: "web"},
		"is refused": {answer: apitest.Forbidden("not you"), failed: "evicting default/web as a dry run: 403 Forbidden: not you"},
	} {
		run(t, name, func(t *testing.T, s *apitest.Server) {
			s.AddPod(pod("web"), apitest.Never)
			s.Always("evict", c.answer)
			node := drain.New(s.Client(), apitest.Node, drain.Options{})
			f, err := node.Forecast(t.Context(), time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			budget, err := node.HeldBy(t.Context(), f.Pods[0])
			if budget != c.held || (err == nil) != (c.failed == "") || err != nil && err.Error() != c.failed {
				t.Errorf("held by %q, %v", budget, err)
			}
			asked := s.Requests("evict")
			if len(asked) != 1 || !slices.Equal(asked[0].Query["dryRun"], []string{"All"}) || !slices.Equal(asked[0].Options.DryRun, []string{"All"}) {
				t.Errorf("asked: %+v", asked)
			}
		})
	}
}
