package drain_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/drain/apitest"
	"github.com/nth-project/nth/pkg/evict"
)

// anyPods puts pods of any sort on the node, none of which ends before its grace is over.
func anyPods(s *apitest.Server, random *rand.Rand) {
	for i := range 1 + random.IntN(40) {
		changes := []func(*corev1.Pod){grace([]int64{1, 5, 10, 30, 30, 30, 60, 90, 115, 120, 300, 3600}[random.IntN(12)])}
		switch random.IntN(10) {
		case 0:
			changes = append(changes, critical)
		case 1:
			changes = append(changes, ownedBy("DaemonSet", "apps/v1"))
		case 2:
			changes = append(changes, func(p *corev1.Pod) {
				p.Annotations = map[string]string{evict.Annotation: []string{evict.AtDeadline, evict.Never}[random.IntN(2)]}
			})
		case 3:
			changes = append(changes, phase(corev1.PodSucceeded), grace(1)) // It has nothing to lose.
		}
		s.AddPod(pod(fmt.Sprintf("p-%d", i), changes...), apitest.Ending(24*time.Hour))
	}
}

// clipped are the pods whose grace was shortened, by what the API server was asked.
func clipped(s *apitest.Server) []string {
	var names []string
	for _, r := range s.Requests("evict", "delete") {
		name := strings.Fields(r.What)[1]
		if r.Options.GracePeriodSeconds != nil && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// A fleet's nodes ask all the time, and no answer is worth a read from etcd.
func TestAForecastIsMadeFromOneListThatTheAPIServerHasInMemory(t *testing.T) {
	t.Parallel()
	s := apitest.New(t)
	if _, err := drain.New(s.Client(), apitest.Node, drain.Options{}).Forecast(t.Context(), time.Minute); err != nil {
		t.Fatal(err)
	}
	asked := s.Requests("list pods")
	if len(asked) != 1 || !slices.Equal(asked[0].Query["resourceVersion"], []string{"0"}) {
		t.Errorf("it asked %+v", asked)
	}
}

// They may need them until they are gone.
func TestInAForecastCriticalPodsGoAfterThoseThatAreEnding(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.AddPod(pod("dns", critical, grace(30)), 0)
		s.AddPod(pod("web", ending(60)), apitest.Never)
		forecast, err := drain.New(s.Client(), apitest.Node, drain.Options{}).Forecast(t.Context(), 10*time.Minute)
		if err != nil || forecast.Pods != 2 || forecast.Needs != 90*time.Second {
			t.Errorf("the forecast is %+v, %v", forecast, err)
		}
	})
}

func TestAForecastIsWhatTheGuardThenDoes(t *testing.T) {
	t.Parallel()
	const notice = 2 * time.Minute
	var errors []time.Duration
	for seed := range uint64(50) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 1))
			s := apitest.New(t)
			anyPods(s, random)
			opts := drain.Options{Margin: time.Duration(1+random.IntN(10)) * time.Second}
			if random.IntN(3) == 0 {
				opts.LoadBalancerWait = time.Duration(random.IntN(90)) * time.Second
			}
			forecast, err := drain.New(s.Client(), apitest.Node, opts).Forecast(t.Context(), notice)
			if err != nil {
				t.Fatal(err)
			}
			r := beginWithin(t, s, opts, true, notice)
			r.succeed()
			off := (r.drainedAt().Sub(r.began) - forecast.Needs).Abs()
			if errors = append(errors, off); off > 2*time.Second {
				t.Logf("seed %d: %s, for a drain of %s", seed, forecast.Needs, r.drainedAt().Sub(r.began))
			}
			var cut []string
			for _, c := range forecast.Cut {
				cut = append(cut, c.Pod)
			}
			if got := clipped(s); !slices.Equal(got, cut) {
				t.Errorf("seed %d: the forecast was that %q would be cut short, and it was %q", seed, cut, got)
			}
		})
	}
	slices.Sort(errors)
	if p95 := errors[len(errors)*95/100]; p95 > 2*time.Second {
		t.Errorf("of 50 forecasts, one in twenty was wrong by more than %s; the worst by %s", p95, errors[len(errors)-1])
	}
}
