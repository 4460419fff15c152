package drain_test

import (
	"reflect"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/drain/apitest"
	"github.com/nth-project/nth/pkg/evict"
	"github.com/nth-project/nth/pkg/state"
)

// evictAt has a pod evicted as its annotation says.
func evictAt(when string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Annotations = map[string]string{evict.Annotation: when} }
}

func TestAForecastGoesByEachRuleOfADrain(t *testing.T) {
	t.Parallel()
	const second = time.Second
	for name, row := range map[string]struct {
		opts drain.Options
		pods []*corev1.Pod
		want evict.Forecast
	}{
		"one pod takes its grace": {
			drain.Options{}, []*corev1.Pod{pod("web", grace(30))}, evict.Forecast{Pods: 1, Needs: 30 * second},
		},
		"evictions are delayed": {
			drain.Options{LoadBalancerWait: 10 * second}, []*corev1.Pod{pod("web", grace(30))}, evict.Forecast{Pods: 1, Needs: 40 * second},
		},
		"critical pods go after the others": {
			drain.Options{}, []*corev1.Pod{pod("dns", grace(20), critical), pod("web", grace(30))}, evict.Forecast{Pods: 2, Needs: 50 * second},
		},
		"a pod that has finished takes no time": {
			drain.Options{}, []*corev1.Pod{pod("job", grace(60), phase(corev1.PodSucceeded))}, evict.Forecast{Pods: 1},
		},
		"a pod that runs until the deadline takes all of it": {
			drain.Options{Margin: 5 * second}, []*corev1.Pod{pod("job", grace(30), evictAt(evict.AtDeadline))}, evict.Forecast{Pods: 1, Needs: 115 * second},
		},
		"a pod that needs longer is cut short, to a whole second": {
			drain.Options{Margin: 4500 * time.Millisecond}, []*corev1.Pod{pod("db", grace(200))},
			evict.Forecast{Pods: 1, Needs: 115 * second, Cut: []evict.Cut{{Pod: "default/db", Grace: 200 * second, Gets: 115 * second}}},
		},
		"a pod gets a second where there is no time": {
			drain.Options{Margin: time.Hour}, []*corev1.Pod{pod("db", grace(200))},
			evict.Forecast{Pods: 1, Needs: second, Cut: []evict.Cut{{Pod: "default/db", Grace: 200 * second, Gets: second}}},
		},
	} {
		run(t, name, func(t *testing.T) {
			s := apitest.New(t)
			for _, p := range row.pods {
				s.AddPod(p, apitest.Never)
			}
			got, err := drain.New(s.Client(), apitest.Node, row.opts).Forecast(t.Context(), 2*time.Minute)
			if err != nil || !reflect.DeepEqual(got, row.want) {
				t.Errorf("the forecast is %+v, %v; want %+v", got, err, row.want)
			}
		})
	}
}

func TestADryRunCountsPodsThatRunUntilTheDeadlineIfThereIsOne(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		change func(*drain.Goal)
		want   int
	}{
		"hard": {func(*drain.Goal) {}, 1},
		"soft": {func(goal *drain.Goal) { goal.Hard, goal.Soft = time.Time{}, goal.Hard }, 1},
		"none": {func(goal *drain.Goal) { goal.Hard, goal.Soft = time.Time{}, time.Time{} }, 0},
	} {
		run(t, name, func(t *testing.T) {
			s := apitest.New(t)
			s.AddPod(pod("job", evictAt(evict.AtDeadline)), 0)
			goal := goalWithin(true, plenty)
			row.change(&goal)
			r := watchOver(t, drain.NewDryRun(drain.New(s.Client(), apitest.Node, drain.Options{})), goal)
			if result := r.succeed(); result.Evicted != row.want || result.Skipped != 1-row.want {
				t.Errorf("the result is %+v", result)
			}
		})
	}
}

func TestADryRunTellsWhyItCannotLookOnceAndTriesAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.Always("get node", apitest.Forbidden("not you"))
		node := drain.NewDryRun(drain.New(s.Client(), apitest.Node, drain.Options{}))
		r := watchOver(t, node, goalWithin(true, plenty))
		time.Sleep(14 * time.Second)
		told := r.of(state.NodeUnclosable)
		if len(told) != 1 || told[0].State.Trouble != told[0].Detail || told[0].Detail == "" || told[0].Generation != 1 {
			t.Errorf("told %+v", told)
		}
		if looks := count(s, "get node"); looks != 3 {
			t.Errorf("it was looked at %d times in 14 seconds", looks)
		}
		if _, err := node.Uncordon(within(t, plenty), thisBoot); err == nil {
			t.Error("an uncordon that cannot look tells no error")
		}
	})
}

func TestADryRunTellsHowTheNodeWouldStand(t *testing.T) {
	t.Parallel()
	want := drain.State{Closed: true, Ours: true, Seen: true, Drained: true, Looked: true}
	for name, change := range map[string]func(*apitest.Server){"there is a Node": func(*apitest.Server) {}, "it is gone": (*apitest.Server).RemoveNode} {
		run(t, name, func(t *testing.T) {
			s := apitest.New(t)
			change(s)
			goal := goalWithin(true, plenty)
			goal.NodeSeen = true
			r := watchOver(t, drain.NewDryRun(drain.New(s.Client(), apitest.Node, drain.Options{})), goal)
			r.succeed()
			if got := r.of(state.NodeEmpty)[0].State; got != want {
				t.Errorf("the state is %+v", got)
			}
		})
	}
}

func TestADryRunTellsOfEachPodOnceUnderAllGoals(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.AddPod(pod("a"), 0)
		s.AddPod(pod("b"), 0)
		r := watchOver(t, drain.NewDryRun(drain.New(s.Client(), apitest.Node, drain.Options{})), goalWithin(true, plenty))
		r.succeed()
		for range 2 {
			r.adjust(func(goal *drain.Goal) { goal.Hard = goal.Hard.Add(-time.Minute) })
			await(t, "that it is drained under the new goal", func() bool { return len(r.now(state.NodeEmpty)) > 0 })
		}
		told := r.of(state.PodEvicted)
		if len(told) != 2 || told[0].Total != 2 || !told[0].State.Closed {
			t.Errorf("told %+v", told)
		}
	})
}
