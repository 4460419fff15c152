package drain_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/drain/apitest"
	"github.com/nth-project/nth/pkg/kube"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/wait"
)

// scripts take a time, and come to something.
type scripts struct {
	take time.Duration
	err  error
	deaf bool // they run to their end though nobody waits any more

	runs   atomic.Int32
	closed atomic.Bool // the node was, when they began
	ended  atomic.Bool
	server *apitest.Server
}

func (s *scripts) Wait(ctx context.Context, _ wait.Node, _ func(string)) error {
	s.runs.Add(1)
	defer s.ended.Store(true)
	s.closed.Store(s.server.CurrentNode().Spec.Unschedulable)
	if s.deaf {
		time.Sleep(s.take)
		return s.err
	}
	if !kube.Await(ctx, nil, s.take) {
		return ctx.Err()
	}
	return s.err
}

func TestScriptsRunOnceTheNodeIsClosedAndEvictionsWaitForThemWithinBounds(t *testing.T) {
	t.Parallel()
	const late = "their time is over, and evictions begin without them"
	for name, c := range map[string]struct {
		scripts    *scripts
		wait       time.Duration
		evictAfter time.Duration
		limit      time.Duration // hard; 0 is no deadline
		want       time.Duration
		told       string
	}{
		"that take no time":                        {&scripts{}, time.Minute, 0, 0, 0, ""},
		"that take ten seconds":                    {&scripts{take: 10 * time.Second}, time.Minute, 0, 0, 10 * time.Second, ""},
		"that fail":                                {&scripts{take: time.Second, err: errors.New("failed: save.service")}, time.Minute, 0, 0, time.Second, "failed: save.service"},
		"that take too long":                       {&scripts{take: time.Hour}, time.Minute, 0, 0, time.Minute, late},
		"that hear nobody":                         {&scripts{take: 2 * time.Minute, deaf: true}, time.Minute, 0, 0, time.Minute, late},
		"that take a quarter of what there is":     {&scripts{take: time.Hour}, time.Minute, 0, 2 * time.Minute, 30 * time.Second, late},
		"that run where nothing is left":           {&scripts{take: time.Hour}, time.Minute, 0, time.Nanosecond, 0, late},
		"before the wait that holds all evictions": {&scripts{take: 10 * time.Second}, time.Minute, 20 * time.Second, 0, 30 * time.Second, ""},
	} {
		run(t, name, func(t *testing.T) {
			s := apitest.New(t)
			c.scripts.server = s
			s.AddPod(pod("a", grace(1)), 0)
			r := beginWithin(t, s, drain.Options{Scripts: c.scripts, ScriptsWait: c.wait, LoadBalancerWait: c.evictAfter}, c.limit > 0, c.limit)
			r.await(state.NodeEmpty)
			ended := append(s.Requests("evict"), s.Requests("delete")...)
			if after := ended[0].At.Sub(r.began); after != c.want {
				t.Errorf("the pod was evicted after %s, want %s", after, c.want)
			}
			if n := c.scripts.runs.Load(); n != 1 || !c.scripts.closed.Load() {
				t.Errorf("the scripts ran %d times, on a closed node: %t", n, c.scripts.closed.Load())
			}
			if !c.scripts.ended.Load() && !c.scripts.deaf {
				t.Error("nobody waits for the scripts, and they were not told to end")
			}
			told := r.of(state.ScriptsFailed)
			if (c.told != "") != (len(told) == 1) || c.told != "" && told[0].Detail != c.told {
				t.Errorf("told %+v, want %q", told, c.told)
			}
		})
	}
}

func TestNoPodWaitsForScriptsBeyondItsTurn(t *testing.T) {
	t.Parallel()
	for name, hard := range map[string]bool{"on a machine that is lost": true, "on one that is not": false} {
		run(t, name, func(t *testing.T) {
			s := apitest.New(t)
			s.AddPod(pod("long", grace(110)), 0)
			r := beginWithin(t, s, drain.Options{Scripts: &scripts{take: time.Hour, server: s}, ScriptsWait: time.Hour, Margin: 2 * time.Second}, hard, 2*time.Minute)
			r.await(state.PodGone)
			if after := append(s.Requests("evict"), s.Requests("delete")...)[0].At.Sub(r.began); after != 8*time.Second {
				t.Errorf("the pod that needs 110 s of 118 was evicted after %s", after)
			}
		})
	}
}

// What comes of a node without pods, such as the end of the machine, waits for them, too.
func TestANodeWithoutPodsIsDrainedWhenTheScriptsHaveRun(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		r := drained(t, s, drain.Options{Scripts: &scripts{take: 10 * time.Second, server: s}, ScriptsWait: time.Minute})
		if after := r.drainedAt().Sub(r.began); after < 10*time.Second || after > 12*time.Second {
			t.Errorf("drained after %s", after)
		}
	})
}

func TestANodeThatIsOnlyCordonedRunsNoScriptsUntilItIsDrained(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		own := &scripts{server: s}
		goal := goalWithin(false, plenty)
		goal.Evict = false
		r := start(t, s, drain.Options{Scripts: own, ScriptsWait: time.Minute}, goal)
		r.await(state.NodeClosed)
		time.Sleep(time.Minute)
		if n := own.runs.Load(); n != 0 {
			t.Errorf("they ran %d times", n)
		}
		r.adjust(func(g *drain.Goal) { g.Evict = true })
		r.await(state.NodeEmpty)
		if n := own.runs.Load(); n != 1 {
			t.Errorf("they ran %d times", n)
		}
	})
}

// They run, and are not begun beside themselves.
func TestADrainThatIsCalledOffAndBegunAnewGoesOnWaitingForItsScripts(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.AddPod(pod("a"), 0)
		own := &scripts{take: 30 * time.Second, server: s}
		r := begin(t, s, drain.Options{Scripts: own, ScriptsWait: time.Hour})
		for _, evict := range []bool{false, true} {
			time.Sleep(5 * time.Second)
			r.adjust(func(g *drain.Goal) { g.Evict = evict })
		}
		r.await(state.NodeEmpty)
		if after := s.Requests("evict")[0].At.Sub(r.began); after != 30*time.Second || own.runs.Load() != 1 {
			t.Errorf("evicted after %s; the scripts ran %d times", after, own.runs.Load())
		}
	})
}

func TestAForecastTakesAccountOfScriptsThatNeedAllOfTheirTime(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.AddPod(pod("a", grace(20)), 0)
		for wait, want := range map[time.Duration]time.Duration{0: 20 * time.Second, 10 * time.Second: 30 * time.Second, time.Hour: 50 * time.Second} {
			f, err := drain.New(s.Client(), apitest.Node, drain.Options{ScriptsWait: wait}).Forecast(t.Context(), 2*time.Minute)
			if err != nil || f.Needs != want {
				t.Errorf("with scripts that may take %s, a drain needs %s, want %s (%v)", wait, f.Needs, want, err)
			}
		}
	})
}
