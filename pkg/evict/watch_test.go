package evict_test

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nth-project/nth/pkg/drain/apitest"
	"github.com/nth-project/nth/pkg/evict"
	"github.com/nth-project/nth/pkg/state"
)

// The first list may come from a cache that is behind. The one before the end is as new as the API server is then.
func TestList_FirstFromTheCacheLastNewest(t *testing.T) {
	t.Parallel()
	for name, pods := range map[string]int{"and was empty before that": 0, "and was not": 1} {
		run(t, name, func(t *testing.T, s *apitest.Server) {
			for i := range pods {
				s.AddPod(pod(fmt.Sprint("pod-", i)), 0)
			}
			drained(t, s, evict.Options{})
			var versions []string
			for _, list := range s.Requests("list pods") {
				if versions = append(versions, strings.Join(list.Query["resourceVersion"], " ")); len(list.Query["limit"]) > 0 {
					t.Errorf("it listed with %+v", list.Query)
				}
			}
			if !slices.Equal(versions, []string{"0", ""}) {
				t.Errorf("the lists asked for the versions %q", versions)
			}
		})
	}
}

func TestList(t *testing.T) {
	t.Parallel()
	// Of the second, only a list tells.
	run(t, "shows the end of pods that stayed", func(t *testing.T, s *apitest.Server) {
		for _, name := range []string{"agent-1", "agent-2", "agent-3"} {
			s.AddPod(pod(name, ownedBy("DaemonSet", "apps/v1")), 0)
		}
		r := drained(t, s, evict.Options{})
		skipped := func(n int) func() bool { return func() bool { return r.result().Skipped == n } }
		await(t, "that three are counted", skipped(3))
		s.RemovePod("default/agent-1")
		await(t, "that two are counted", skipped(2))
		s.ForgetPod("default/agent-2")
		s.Answer("watch", apitest.Expired())
		s.DropWatches()
		await(t, "that one is counted", skipped(1))
	})
	// The list that is to confirm it.
	run(t, "the last one refused", func(t *testing.T, s *apitest.Server) {
		s.Answer("list pods", pass)
		s.Always("list pods", apitest.Forbidden("no lists any more"))
		r := begin(t, s, evict.Options{})
		r.await(state.PodRefused)
		time.Sleep(time.Minute)
		if reported := r.of(state.PodRefused); len(reported) != 1 || len(r.of(state.NodeEmpty)) != 0 {
			t.Errorf("reported %+v, and %d times that it is drained", reported, len(r.of(state.NodeEmpty)))
		}
		if lists := count(s, "list pods"); lists > 20 {
			t.Errorf("%d lists in a minute", lists)
		}
		s.Always("list pods", nil)
		r.succeed()
		s.Always("list pods", apitest.Forbidden("no lists any more"))
		r.join()
		time.Sleep(time.Minute)
		r.reported(2, state.PodRefused)
	})
	// Something between nth and the API server may ignore the selector.
	run(t, "ignores pods of other nodes", func(t *testing.T, s *apitest.Server) {
		elsewhere := func(p *corev1.Pod) { p.Spec.NodeName = "node-2" }
		s.IgnoreSelector()
		s.AddPod(pod("ours"), 0)
		s.AddPod(pod("other", elsewhere), 0)
		r := begin(t, s, evict.Options{})
		r.await(state.PodGone)
		s.AddPod(pod("other-later", elsewhere), 0)
		time.Sleep(time.Minute)
		if result := r.succeed(); result.Evicted != 1 || result.Skipped != 0 || count(s, "evict") != 1 {
			t.Errorf("the result is %+v, after %+v", result, s.Requests("evict"))
		}
	})
}

func TestWatch_EndOfAPodIsSeen(t *testing.T) {
	t.Parallel()
	for name, upset := range map[string]func(*apitest.Server){
		"dropped":            func(s *apitest.Server) { s.DropWatches() },
		"connection broken":  func(s *apitest.Server) { s.GoAway(); s.ComeBack() },
		"expired":            func(s *apitest.Server) { s.Answer("watch", apitest.Expired()); s.DropWatches() },
		"expired, as event":  func(s *apitest.Server) { s.Answer("watch", apitest.ExpiredEvent()); s.DropWatches() },
		"throttled for good": func(s *apitest.Server) { s.Always("watch", apitest.Throttled(600)); s.DropWatches() },
		"refused for a while": func(s *apitest.Server) {
			s.Answer("watch", slices.Repeat([]apitest.Answer{apitest.Unavailable()}, 3)...)
			s.DropWatches()
		},
		"reset, list too": func(s *apitest.Server) {
			s.Answer("watch", apitest.Reset(), apitest.Reset())
			s.Answer("list", apitest.Reset(), apitest.Unavailable(), apitest.Throttled(600))
			s.DropWatches()
		},
		"hanging": func(s *apitest.Server) { s.Answer("watch", apitest.Hang()); s.DropWatches() },
		"silent":  func(s *apitest.Server) { s.Answer("watch", apitest.Silence()); s.DropWatches() },
	} {
		for how, end := range map[string]func(*apitest.Server, string){
			"an event tells": (*apitest.Server).RemovePod,
			"a list tells":   (*apitest.Server).ForgetPod,
		} {
			run(t, name+", "+how, func(t *testing.T, s *apitest.Server) {
				s.AddPod(pod("a"), apitest.Never)
				r := begin(t, s, evict.Options{})
				r.await(state.PodEvicted)
				await(t, "the first watch", func() bool { return count(s, "watch pods") > 0 })
				if how == "a list tells" {
					// Without this a watch would continue where it ended, and the loss of an event is what is tested.
					s.Answer("watch", apitest.Expired())
				}
				upset(s)
				end(s, "default/a")
				if result := r.succeed(); result.Evicted != 1 {
					t.Errorf("the result is %+v", result)
				}
			})
		}
	}
}

// Pods end and come all the time, and only the watch tells of it.
func TestWatch_IsRenewed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer      apitest.Answer
		after, most time.Duration
	}{
		"one that the API server ends, after ten seconds":                     {nil, 10 * time.Second, 10 * time.Second},
		"one behind a connection that is dead, two seconds later":             {apitest.Silence(), 12 * time.Second, 12200 * time.Millisecond},
		"one that is not answered, when a request is over, and after a pause": {apitest.Hang(), 12 * time.Second, 12200 * time.Millisecond},
	} {
		run(t, name, func(t *testing.T, s *apitest.Server) {
			s.Always("watch pods", c.answer)
			drained(t, s, evict.Options{})
			await(t, "two more watches", func() bool { return count(s, "watch pods") >= 3 })
			if after := gaps(s.Requests("watch pods"))[0]; after < c.after || after > c.most {
				t.Errorf("the next watch came after %s; want %s to %s", after, c.after, c.most)
			}
		})
	}
}

func TestList_ThatIsCutOrForeign(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]string{
		"empty":           ``,
		"page":            `<html>sign in</html>`,
		"array":           `[]`,
		"another list":    `{"kind":"NodeList","items":[]}`,
		"no kind":         `{"items":[]}`,
		"cut":             `{"kind":"PodList","items":[{"metadata":{"name":"a"}}`,
		"cut at the end":  `{"kind":"PodList","items":[]`,
		"items no list":   `{"kind":"PodList","items":{}}`,
		"pod that is not": `{"kind":"PodList","items":[7]}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := apitest.New(t)
			s.Always("list pods", func(w http.ResponseWriter, _ *http.Request) bool {
				_, _ = io.WriteString(w, body)
				return true
			})
			if f, err := evict.New(s.Client().CoreV1().RESTClient(), apitest.Node, evict.Options{}).Forecast(t.Context(), time.Minute, 0); err == nil {
				t.Errorf("it forecasts %+v", f)
			}
		})
	}
}
