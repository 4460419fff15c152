package evict_test

import (
	"cmp"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nth-project/nth/pkg/drain/apitest"
	"github.com/nth-project/nth/pkg/evict"
	"github.com/nth-project/nth/pkg/state"
)

// A pod that goes after its eviction was sent went by that, whatever became of the answer.

func TestEvict_Counts(t *testing.T) {
	t.Parallel()
	held := apitest.HeldBy("budget", 0)
	for name, c := range map[string]struct {
		grace, ends      time.Duration
		hard, lag        time.Duration // 0 is none
		evict, then      apitest.Answer
		delete           func(*apitest.Server)
		after            time.Duration // when others do something
		others           func(*apitest.Server)
		evicted, deleted int
	}{
		"an eviction whose answer is lost": {
			grace: 5 * time.Second, ends: 5 * time.Second, lag: 50 * time.Millisecond, evict: apitest.Lost(), evicted: 1,
		},
		"one whose pod is gone before the watch says so": {lag: 3 * time.Second, evict: apitest.Lost(), evicted: 1},
		"none that is refused after a broken connection": {
			evict: apitest.Reset(), then: held, after: time.Second, others: func(s *apitest.Server) { s.RemovePod("default/a") },
		},
		// The eviction hangs until the pod's turn. The watch shows that the pod is terminating before the deletion is answered.
		"a deletion after one that hangs": {
			grace: 10 * time.Second, ends: 3 * time.Second, hard: 30 * time.Second, then: apitest.Hang(), deleted: 1,
			delete: func(s *apitest.Server) { s.DeletePod("default/a", 10); time.Sleep(time.Second) },
		},
	} {
		run(t, name, func(t *testing.T, s *apitest.Server) {
			s.AddPod(pod("a", grace(int64(c.grace.Seconds()))), apitest.Ending(c.ends))
			s.SetLag(0, c.lag)
			if c.evict != nil {
				s.Answer("evict", c.evict)
			}
			s.Always("evict", c.then)
			if c.delete != nil {
				s.Always("delete", func(http.ResponseWriter, *http.Request) bool { c.delete(s); return false })
			}
			r := beginWithin(t, s, evict.Options{}, c.hard > 0, cmp.Or(c.hard, plenty))
			if c.others != nil {
				time.AfterFunc(c.after, func() { c.others(s) })
			}
			if result := r.succeed(); result.Evicted != c.evicted || result.Deleted != c.deleted {
				t.Errorf("the result is %+v", result)
			}
			r.reported(c.evicted, state.PodEvicted)
		})
	}
	// The API server writes that a pod without a grace is ending, and then removes it. Who sees the first must let it do the second.
	run(t, "an eviction under way as the pod terminates", func(t *testing.T, s *apitest.Server) {
		s.AddPod(pod("a", grace(10)), apitest.Ending(10*time.Second))
		s.Always("evict", func(_ http.ResponseWriter, r *http.Request) bool {
			s.DeletePod("default/a")
			time.Sleep(time.Second)
			if err := r.Context().Err(); err != nil {
				t.Errorf("it was taken back: %v", err)
			}
			return false
		})
		r := begin(t, s, evict.Options{})
		if result := r.succeed(); result.Evicted != 1 {
			t.Errorf("the result is %+v", result)
		}
		if reported := r.of(state.PodRefused); len(reported) > 0 || count(s, "evict") != 1 {
			t.Errorf("after %d evictions was reported %+v", count(s, "evict"), reported)
		}
	})
}

func TestBudget(t *testing.T) {
	t.Parallel()
	// It may hold all pods of a node for days, on many nodes.
	for deadline, hard := range map[string]bool{"soft": false, "hard": true} {
		run(t, "is asked ten times a second at most, "+deadline, func(t *testing.T, s *apitest.Server) {
			const pods = 50
			for i := range pods {
				s.AddPod(pod(fmt.Sprintf("a%d", i)), 0)
			}
			s.Always("evict", apitest.HeldBy("budget", 0))
			beginWithin(t, s, evict.Options{}, hard, plenty)
			time.Sleep(time.Minute)
			before := count(s, "evict")
			time.Sleep(time.Minute)
			if n := count(s, "evict") - before; n < pods || n > 660 {
				t.Errorf("%d evictions in a minute", n)
			}
		})
	}
	// Names of budgets may differ in a number.
	run(t, "another one whose name differs in a number", func(t *testing.T, s *apitest.Server) {
		s.AddPod(pod("a"), 0)
		s.Answer("evict", apitest.HeldBy("web-1", 0), apitest.HeldBy("web-2", 0))
		r := drained(t, s, evict.Options{})
		if reported := r.of(state.PodHeld); len(reported) != 2 || reported[1].Detail != "web-2" {
			t.Errorf("reported %+v", reported)
		}
	})
	// Until the watch shows the pod's end, what refused its eviction before does not hold it any more.
	run(t, "holds no pod whose eviction is accepted", func(t *testing.T, s *apitest.Server) {
		free := s.AddHeld(pod("a"))
		r := begin(t, s, evict.Options{})
		r.await(state.PodHeld)
		s.SetLag(0, 5*time.Second)
		free()
		await(t, "the end of the pod", func() bool { return !s.HasPod("default/a") })
		if result := r.result(); len(result.Left) != 1 || len(result.HeldBy) != 0 {
			t.Errorf("the result is %+v", result)
		}
	})
}

// The first answer of an API server that has not heard of a young pod, and the last of one whose pod has gone, are the same: only the watch
// tells which it is. So they are not reported.
func TestRefusal_IsRepeatedAndReported(t *testing.T) {
	t.Parallel()
	const webhook = `admission webhook "db.example.org" denied the request: a backup is under way`
	for name, c := range map[string]struct {
		answer apitest.Answer
		detail string
	}{
		"throttled":             {apitest.Throttled(1), "429 Too Many Requests"},
		"two budgets":           {apitest.TwoBudgets(), "more than one PodDisruptionBudget"},
		"unavailable":           {apitest.Unavailable(), "503 Service Unavailable"},
		"a webhook says no":     {apitest.Forbidden("admission webhook denied the request"), "admission webhook denied"},
		"a webhook, by 404":     {apitest.Refused(404, metav1.StatusReasonNotFound, webhook), "a backup is under way"},
		"a webhook, by 409":     {apitest.Refused(409, metav1.StatusReasonConflict, webhook), "a backup is under way"},
		"the connection breaks": {apitest.Reset(), "the API server cannot be reached"},
		"it hangs":              {apitest.Hang(), "no answer from the API server"},
		"404":                   {apitest.NotFound(), ""},
		"403, no relationship":  {apitest.NoRelationship(), ""},
		"409":                   {apitest.Reborn(), ""},
	} {
		for _, what := range []string{"evict", "delete"} {
			run(t, what+", "+name, func(t *testing.T, s *apitest.Server) {
				s.AddPod(pod("a", grace(600)), 0)
				if what == "delete" {
					s.Always("evict", apitest.HeldBy("budget", 0))
				}
				s.Answer(what, c.answer, c.answer)
				r := beginWithin(t, s, evict.Options{}, what == "delete", plenty/6)
				if result := r.succeed(); result.Evicted+result.Deleted != 1 || count(s, what) != 3 {
					t.Errorf("%+v after %d requests; want 3", result, count(s, what))
				}
				if reported := r.of(state.PodRefused); (c.detail != "") != (len(reported) == 1) || len(reported) == 1 && !strings.Contains(reported[0].Detail, c.detail) {
					t.Errorf("reported %+v; want once %q", reported, c.detail)
				}
			})
		}
	}
}

// numbering refuses each time in other words: they differ in a number.
func numbering(words string) apitest.Answer {
	var n atomic.Int32
	return func(w http.ResponseWriter, r *http.Request) bool {
		return apitest.Forbidden(fmt.Sprintf(words, n.Add(1)))(w, r)
	}
}

// A webhook may say as much as it likes.
func TestRefusal_IsCut(t *testing.T) {
	apitest.Bubble(t, func(t *testing.T, s *apitest.Server) {
		s.AddPod(pod("a"), 0)
		s.Always("evict", apitest.Forbidden(strings.Repeat("x", 256<<10)))
		r := begin(t, s, evict.Options{})
		r.await(state.PodRefused)
		if length := len(r.of(state.PodRefused)[0].Detail); length > 4096 {
			t.Errorf("%d bytes are reported", length)
		}
	})
}

func TestRefusal_WithChangingNumbersIsReportedOnce(t *testing.T) {
	t.Parallel()
	const words = "admission webhook denied request %d"
	for name, what := range map[string]string{"an eviction": "evict", "a list": "list"} {
		run(t, name, func(t *testing.T, s *apitest.Server) {
			s.AddPod(pod("a"), 0)
			s.Always(what, numbering(words))
			r := beginWithin(t, s, evict.Options{}, true, plenty)
			time.Sleep(10 * time.Minute)
			reported := r.of(state.PodRefused)
			if len(reported) != 1 || count(s, what) < 10 {
				t.Errorf("%d refusals of %d are reported: %+v", len(reported), count(s, what), reported)
			}
			if held := r.result().HeldBy["default/a"]; what == "evict" && held == reported[0].Detail {
				t.Errorf("held by %q, which was the first refusal", held)
			}
		})
	}
}

// The API server does not ask budgets for a pod that has finished.
func TestBudget_FinishedPodsGo(t *testing.T) {
	t.Parallel()
	for name, ended := range map[string]corev1.PodPhase{"succeeded": corev1.PodSucceeded, "failed": corev1.PodFailed} {
		run(t, name, func(t *testing.T, s *apitest.Server) {
			none := 0
			s.AddBudget(apitest.Budget{Namespace: "default", Name: "budget", MaxUnavailable: &none})
			const pods = 20
			for i := range pods {
				s.AddPod(pod(fmt.Sprintf("job-%02d", i), apitest.Ready), 0)
			}
			r := begin(t, s, evict.Options{})
			await(t, "that all are held", func() bool { return len(r.of(state.PodHeld)) == pods })
			time.Sleep(time.Minute) // Now each is asked for every few seconds.
			at := time.Now()
			for i := range pods - 1 {
				s.ChangePod(fmt.Sprintf("default/job-%02d", i+1), phase(ended))
			}
			await(t, "the finished pods' end", func() bool { return len(r.of(state.PodGone)) == pods-1 })
			if after := time.Since(at); after > 4*time.Second {
				t.Errorf("the last is gone after %s", after)
			}
			asked := count(s, "evict")
			time.Sleep(time.Minute)
			if n := count(s, "evict") - asked; n > 45 || !s.HasPod("default/job-00") {
				t.Errorf("%d evictions of the pod that is held", n)
			}
		})
	}
}
