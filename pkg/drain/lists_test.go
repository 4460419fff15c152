package drain_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/drain/apitest"
	"github.com/nth-project/nth/pkg/evict"
	"github.com/nth-project/nth/pkg/state"
)

// A pod ends before the first list. The last list comes from another API server, which is behind.
func TestAPodThatOnlyAnOldListShowsIsNotWaitedForForEver(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.AddPod(pod("a"), 0)
		s.Answer("list", apitest.Unavailable(), apitest.Unavailable())
		r := begin(t, s, drain.Options{})
		time.Sleep(50 * time.Millisecond)
		s.RemovePod("default/a")
		r.await(state.PodsFound)
		if r.of(state.PodsFound)[0].Total != 0 {
			t.Fatal("the first list shows the pod")
		}
		s.SetLag(0, 2*time.Second)
		r.await(state.NodeClosed)
		time.Sleep(10 * time.Second)
		s.SetLag(0, 0)
		time.Sleep(10 * time.Minute)
		if told := r.of(state.NodeEmpty); len(told) == 0 {
			t.Errorf("a node without pods is not drained after ten minutes and %d evictions of a pod that is gone: %+v", count(s, "evict"), r.guard.Result())
		}
	})
}

// opened drains a node, has it opened and a pod bound to it, of which no watch tells for ten seconds, and has it closed again.
func opened(t *testing.T, open func(*apitest.Server, *trial)) {
	s := apitest.New(t)
	goal := goalWithin(false, plenty)
	r := start(t, s, drain.Options{}, goal)
	r.succeed()
	time.Sleep(15 * time.Second)
	s.SetLag(0, 10*time.Second)
	open(s, r)
	s.AddPod(pod("new"), 0)
	time.Sleep(time.Second)
	r.adjust(func(g *drain.Goal) {
		joining(g)
	})
	await(t, "another cordon", func() bool { return s.CurrentNode().Spec.Unschedulable })
	for range 60 {
		time.Sleep(500 * time.Millisecond)
		if s.HasPod("default/new") && len(r.now(state.NodeEmpty)) > 0 {
			t.Fatalf("told to be drained for another event, while a pod is there that came before the cordon")
		}
	}
	r.await(state.PodGone, "default/new")
}

func TestANodeThatWasOpenIsNotDrainedByAListFromBefore(t *testing.T) {
	t.Parallel()
	run(t, "people have opened it", func(t *testing.T) {
		opened(t, func(s *apitest.Server, r *trial) {
			s.UncordonAs("kubectl")
			r.await(state.NodeReopened)
		})
	})
	run(t, "it has registered anew", func(t *testing.T) {
		opened(t, func(s *apitest.Server, _ *trial) { s.RegisterNode() })
	})
}

// What a dry run tells of a node that is to be left alone is not that it would be closed and ours.
func TestADryRunOfANodeThatIsLeftAloneSaysSo(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.ChangeNode(asking(drain.ActionAnnotation, drain.LeaveNode))
		r := watchOver(t, drain.NewDryRun(drain.New(s.Client(), apitest.Node, drain.Options{})), goalWithin(false, plenty))
		r.leave()
		if state := r.last().State; state.Closed || !state.Left {
			t.Errorf("told the state %+v", state)
		}
	})
}

// A node's pods may not be listed. That is to be said.
func TestThatPodsCannotBeListedIsSaid(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.AddPod(pod("a"), 0)
		s.Always("list", apitest.Forbidden("no lists here"))
		r := beginWithin(t, s, drain.Options{}, true, 2*time.Minute)
		time.Sleep(2 * time.Minute)
		if told := append(r.of(state.PodRefused), r.of(state.NodeUnclosable)...); len(told) == 0 && r.last().State.Trouble == "" {
			t.Errorf("the pods could not be listed for two minutes; told is only %+v", r.told)
		}
	})
}

// Of the second, only a list tells.
func TestAPodThatStaysCountsNoLongerOnceItIsGone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		for _, name := range []string{"agent-1", "agent-2", "agent-3"} {
			s.AddPod(pod(name, ownedBy("DaemonSet", "apps/v1")), 0)
		}
		r := drained(t, s, drain.Options{})
		skipped := func(n int) func() bool { return func() bool { return r.guard.Result().Skipped == n } }
		await(t, "that three are counted", skipped(3))
		s.RemovePod("default/agent-1")
		await(t, "that two are counted", skipped(2))
		s.ForgetPod("default/agent-2")
		s.Answer("watch", apitest.Expired())
		s.DropWatches()
		await(t, "that one is counted", skipped(1))
	})
}

// A pod comes and goes while the answer of the last list, which shows it, is on its way.
func TestAPodThatIsGoneBeforeTheListThatShowsItComesIsNotWaitedFor(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.Answer("list pods", pass, func(w http.ResponseWriter, _ *http.Request) bool {
			s.AddPod(pod("brief"), 0)
			list := corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}}
			for _, p := range s.Pods() {
				list.ResourceVersion = p.ResourceVersion
				list.Items = append(list.Items, *p)
			}
			s.RemovePod("default/brief")
			time.Sleep(time.Second)
			w.Header().Set("Content-Type", "application/json")
			return json.NewEncoder(w).Encode(list) == nil
		})
		r := drained(t, s, drain.Options{})
		if told := r.of(state.PodGone, "default/brief"); len(told) != 1 {
			t.Errorf("that it is gone is told as %+v", told)
		}
		if after := r.drainedAt().Sub(r.began); after > 10*time.Second {
			t.Errorf("drained after %s", after)
		}
	})
}

// What a drain does not concern is counted, and that one is gone.
func TestAPodThatStaysAndIsGoneBeforeTheListThatShowsItComesCountsNoLonger(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.AddPod(pod("agent", ownedBy("DaemonSet", "apps/v1")), 0)
		arrives := make(chan struct{})
		s.Answer("list pods", pass, answeredLate(s, func() {
			time.AfterFunc(time.Second, func() {
				s.RemovePod("default/agent")
				time.AfterFunc(time.Second, func() { close(arrives) })
			})
		}, arrives))
		if r := drained(t, s, drain.Options{}); r.result.Skipped != 0 {
			t.Errorf("the result is %+v", r.result)
		}
	})
}

// answeredLate has the server answer at once, and the answer arrive when that is closed.
func answeredLate(s *apitest.Server, asked func(), arrives <-chan struct{}) apitest.Answer {
	return func(w http.ResponseWriter, r *http.Request) bool {
		asked()
		answer, err := s.RoundTripper().RoundTrip(r)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		defer func() { _ = answer.Body.Close() }() // it has been read
		text, err := io.ReadAll(answer.Body)
		<-arrives
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(answer.StatusCode)
		_, _ = w.Write(text) // a client that has left needs no answer
		return err == nil
	}
}

// The watch has been silent. The list before the end shows that people do not want the pod left any more.
func TestWhatPeopleWantOfAPodIsHeardFromTheListBeforeTheEnd(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.AddPod(pod("a", annotated(evict.Annotation, evict.Never)), apitest.Ending(time.Second))
		s.Answer("watch pods", apitest.Silence())
		r := drained(t, s, drain.Options{})
		s.ChangePod("default/a", func(p *corev1.Pod) { p.Annotations = nil })
		r.adjust(joining)
		await(t, "that it is drained for both", func() bool { return r.numbered(state.NodeEmpty).State.Drained })
		if s.HasPod("default/a") {
			t.Error("drained, and a pod is left that is to go")
		}
	})
}

// After etcd was restored from a backup, a watch goes on from a version that is still to come, and says nothing until then.
func TestAPodThatTheAPIServerDoesNotKnowIsNotWaitedForWhereTheWatchIsSilent(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		free := addHeld(s, pod("a"))
		r := begin(t, s, drain.Options{})
		r.await(state.PodHeld)
		time.Sleep(15 * time.Second)                                          // A watch that ends within a second of its beginning is followed by a list.
		s.Always("watch", func(w http.ResponseWriter, r *http.Request) bool { // It ends in its time, as any.
			ctx, cancel := context.WithTimeout(r.Context(), 10*time.Second)
			defer cancel()
			return apitest.Silence()(w, r.WithContext(ctx))
		})
		s.DropWatches()
		s.ForgetPod("default/a")
		free()
		forgotten := time.Now()
		r.succeed()
		if after := time.Since(forgotten); after > 20*time.Second {
			t.Errorf("drained after %s", after)
		}
	})
}

func TestAListThatIsRefusedIsAskedForEveryFiveSeconds(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		r := begin(t, s, drain.Options{})
		r.await(state.PodsFound)
		s.Always("list pods", apitest.Forbidden("no lists here"))
		lists := count(s, "list pods")
		time.Sleep(time.Minute)
		for i, after := range gaps(s.Requests("list pods")[lists:]) {
			if after != 5*time.Second {
				t.Errorf("list %d came after %s", i+1, after)
			}
		}
		s.Always("list pods", nil)
		r.succeed()
	})
}
