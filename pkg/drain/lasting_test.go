package drain_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/drain/apitest"
	"github.com/nth-project/nth/pkg/state"
)

// Each outage of the API server has ten seconds before it is told.
func TestAnOutageThatLastsIsToldAndOneThatDoesNotIsNot(t *testing.T) {
	for what, row := range map[string]struct {
		fails string
		told  state.TransitionKind
	}{
		"the cordon": {"patch", state.NodeUnclosable},
		"the list":   {"list", state.PodRefused},
	} {
		run(t, what, func(t *testing.T) {
			s := apitest.New(t)
			s.AddPod(pod("a"), 0)
			s.Always(row.fails, apitest.Unavailable())
			r := begin(t, s, drain.Options{})
			time.Sleep(9 * time.Second)
			s.AddPod(pod("b"), 0)
			if told := r.of(row.told); len(told) > 0 {
				t.Errorf("after nine seconds, told is %+v", told)
			}
			time.Sleep(30 * time.Second)
			if told := r.of(row.told); len(told) != 1 {
				t.Errorf("after forty seconds, told is %+v", told)
			}
			s.Always(row.fails, nil)
			r.succeed()
			if trouble := r.last().State.Trouble; trouble != "" {
				t.Errorf("when all is well, the trouble is %q", trouble)
			}
			s.RegisterNode()
			s.DropWatches()
			s.Answer("watch", apitest.Expired())
			s.Always(row.fails, failing(http.StatusGatewayTimeout)) // in other words
			time.Sleep(8 * time.Second)
			s.Always(row.fails, nil)
			time.Sleep(30 * time.Second)
			if told := r.of(row.told); len(told) != 1 {
				t.Errorf("of another outage, that did not last, told is %+v", told[1:])
			}
		})
	}
}

// One failure is no trouble: most pass by themselves.
func TestTheStatusHasNoTroubleThatHasNotLasted(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		addHeld(s, pod("a"))
		s.Always("patch", apitest.Unavailable())
		r := beginWithin(t, s, drain.Options{}, true, time.Minute)
		time.Sleep(5 * time.Second)
		r.adjust(func(*drain.Goal) {})
		time.Sleep(time.Second)
		if p := r.last(); p.State.Trouble != "" {
			t.Errorf("after five seconds, the trouble is %q", p.State.Trouble)
		}
		time.Sleep(10 * time.Second)
		r.adjust(func(*drain.Goal) {})
		time.Sleep(time.Second)
		if p := r.last(); !strings.Contains(p.State.Trouble, "503") {
			t.Errorf("after a quarter of a minute, the trouble is %q", p.State.Trouble)
		}
	})
}

// The watch is silent, and the API server does not know some of the pods.
func TestOfPodsThatTheAPIServerDoesNotKnowThoseAreGoneThatAListDoesNotShow(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		for _, name := range []string{"gone-1", "gone-2", "young", "held"} {
			s.AddPod(pod(name), 0)
		}
		s.Always("evict", apitest.HeldBy("budget", 0))
		r := begin(t, s, drain.Options{})
		r.await(state.PodHeld)
		time.Sleep(15 * time.Second)
		s.Always("watch", apitest.Silence())
		s.DropWatches()
		time.Sleep(time.Second)
		s.ForgetPod("default/gone-1")
		s.ForgetPod("default/gone-2")
		for _, name := range []string{"gone-1", "gone-2", "young"} {
			s.Always("evict default/"+name, apitest.NotFound())
		}
		s.Answer("list", apitest.Unavailable())
		time.Sleep(time.Minute)
		var gone []string
		for _, p := range r.of(state.PodGone) {
			gone = append(gone, p.Pod)
		}
		if slices.Sort(gone); !slices.Equal(gone, []string{"default/gone-1", "default/gone-2"}) {
			t.Errorf("told as gone are %q", gone)
		}
	})
}

// A webhook refuses the eviction; a hard deadline is near all the time.
func TestAGoalThatChangesNearTheDeadlineEndsNoPause(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.AddPod(pod("a"), 0)
		s.Always("evict", apitest.Forbidden("no"))
		r := beginWithin(t, s, drain.Options{}, true, 5*time.Minute)
		time.Sleep(time.Minute)
		before := count(s, "evict")
		for range 20 {
			r.adjust(func(*drain.Goal) {})
			time.Sleep(100 * time.Millisecond)
		}
		if n := count(s, "evict") - before; n > 4 {
			t.Errorf("the eviction was tried %d times in two seconds", n)
		}
	})
}

func TestWhatCannotBeListedCannotBeForeseenOrRehearsed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.Always("list", apitest.Forbidden("no"))
		node := drain.New(s.Client(), apitest.Node, drain.Options{})
		const want = "listing the pods of node "
		if _, err := node.Forecast(t.Context(), time.Minute); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("the forecast's error is %v", err)
		}
		if _, err := node.Rehearse(t.Context()); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("the rehearsal's error is %v", err)
		}
	})
}

// An API server may have compacted what a list goes by. The next list does not.
func TestAnExpiredListIsNoTrouble(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.AddPod(pod("a"), 0)
		s.Answer("list", apitest.Expired())
		r := begin(t, s, drain.Options{})
		r.succeed()
		if told := r.of(state.PodRefused); len(told) > 0 {
			t.Errorf("told is %+v", told)
		}
	})
}

// What holds a pod is told once in full, and when it holds it again, for the status alone.
func TestWhatHoldsAPodAgainIsToldForTheStatus(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.AddPod(pod("a"), 0)
		r := begin(t, s, drain.Options{})
		for range 3 {
			s.Always("evict", apitest.HeldBy("budget", 0))
			time.Sleep(time.Minute)
			s.Always("evict", apitest.Unavailable())
			time.Sleep(time.Minute)
		}
		var told []string
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, p := range r.told {
			if p.Pod == "default/a" {
				told = append(told, string(p.Kind)+" "+p.Detail)
			}
		}
		const failed = "503 Service Unavailable: not ready"
		want := []string{"pod-held budget", "pod-refused " + failed}
		for range 2 {
			want = append(want, "pod-held-again PDB budget", "pod-held-again "+failed)
		}
		if !slices.Equal(told, want) {
			t.Errorf("told is %q, want %q", told, want)
		}
	})
}
