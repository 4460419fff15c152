package agent_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/agent"
	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/record"
)

// ear writes down what it hears.
type ear struct {
	mu    sync.Mutex
	heard []string
}

func (e *ear) Hear(h record.Happening) {
	line := fmt.Sprintf("%s %s", h.What, h.Entry.Event.ID)
	if h.Action != "" {
		line += fmt.Sprintf(" %s after %s", h.Action, h.Took)
	}
	if h.Pod != "" {
		line += fmt.Sprintf(" %s (%s) %d of %d", h.Pod, h.PodUID, h.Left, h.Total)
	}
	if h.Err != nil {
		line += ": " + h.Err.Error()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.heard = append(e.heard, line+" "+h.Detail)
}

func (e *ear) take() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	heard := e.heard
	e.heard = nil
	return heard
}

func (e *ear) want(t *testing.T, want ...string) {
	t.Helper()
	got := e.take()
	for i := range got {
		got[i] = strings.TrimSpace(got[i])
	}
	if !slices.Equal(got, want) {
		t.Errorf("what was heard is\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
}

func listened(t *testing.T, f func(r *rig, e *ear)) {
	bubble(t, func(r *rig) {
		e := &ear{}
		r.cfg.Listeners = []agent.Listener{e}
		f(r, e)
	})
}

func TestListenersHearADrainFromItsNoticeToItsEnd(t *testing.T) {
	t.Parallel()
	listened(t, func(r *rig, e *ear) {
		r.node.toDrain(func(_ context.Context, plan drain.Plan) (drain.Result, error) {
			pod := drain.Progress{Pod: "default/web", PodUID: "u1", Total: 1, Left: 1}
			tell := func(what drain.What, p drain.Progress) { p.What = what; plan.Tell(p) }
			time.Sleep(time.Second)
			tell(drain.NodeCordoned, drain.Progress{})
			tell(drain.Found, drain.Progress{Total: 1, Left: 1})
			pod.Detail = "default/pdb"
			tell(drain.Held, pod)
			pod.Detail = ""
			tell(drain.Evicted, pod)
			pod.Left = 0
			tell(drain.Gone, pod)
			return drain.Result{Cordon: drain.CordonSet, Evicted: 1}, nil
		})
		r.run()
		r.announce(r.spot("a", 2*time.Minute))
		r.pass(time.Second)
		e.want(t, "announced a", "begun a drain after 0s", "cordoned a drain after 1s",
			"pod-held a drain after 1s default/web (u1) 1 of 1 default/pdb", "pod-evicted a drain after 1s default/web (u1) 1 of 1",
			"pod-gone a drain after 1s default/web (u1) 0 of 1", "done a drain after 1s")
		r.announce()
		r.pass(time.Minute)
		e.want(t, "missed a", "begun a uncordon after 0s", "done a uncordon after 0s")
	})
}

func TestListenersHearHowAStepEndsThatDoesNotEndWell(t *testing.T) {
	t.Parallel()
	t.Run("its deadline comes first", func(t *testing.T) {
		listened(t, func(r *rig, e *ear) {
			r.node.toDrain(stuck)
			r.run()
			r.announce(r.spot("a", time.Minute))
			e.take()
			r.pass(time.Minute)
			e.want(t, "ran-out a drain after 1m0s: context deadline exceeded")
		})
	})
	t.Run("it fails", func(t *testing.T) {
		listened(t, func(r *rig, e *ear) {
			r.node.toDrain(fails)
			r.run()
			r.announce(r.spot("a", time.Minute))
			if !slices.ContainsFunc(e.take(), func(line string) bool { return strings.HasPrefix(line, "failed a drain") }) {
				t.Errorf("nobody heard of the failure")
			}
		})
	})
	t.Run("another comes first", func(t *testing.T) {
		listened(t, func(r *rig, e *ear) {
			r.node.toDrain(stuck)
			r.run()
			r.announce(r.stopping("a", time.Hour))
			e.take()
			r.announce(r.stopping("a", time.Hour), r.spot("b", time.Minute))
			e.want(t, "announced b", "called-back a drain after 0s: context canceled", "begun b drain after 0s")
		})
	})
}

func TestListenersHearOfACordonOnceAndWhoseItIs(t *testing.T) {
	t.Parallel()
	listened(t, func(r *rig, e *ear) {
		rule := r.cfg.Policy[event.RebalanceRecommendation]
		rule.Action = policy.Cordon
		r.cfg.Policy[event.RebalanceRecommendation] = rule
		r.run()
		r.announce(recommended("a"))
		e.want(t, "announced a", "begun a cordon after 0s", "cordoned a cordon after 0s", "done a cordon after 0s")
	})
}

func TestListenersHearOfEachLookThatFails(t *testing.T) {
	t.Parallel()
	listened(t, func(r *rig, e *ear) {
		r.run()
		r.trouble(event.SpotInterruption, "no answer")
		r.trouble(event.SpotInterruption, "no answer")
		r.announce()
		r.pass(2 * time.Second)
		e.want(t, "source-lost : no answer", "source-lost : no answer", "source-back")
	})
}
