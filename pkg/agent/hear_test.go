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
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/systemd"
)

// ear writes down what it hears.
type ear struct {
	mu    sync.Mutex
	heard []string
}

func (e *ear) OnTransition(h state.Transition) {
	line := fmt.Sprintf("%s %s", h.Kind, h.Entry.Event.ID)
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
		r.node.toGuard(func(ctx context.Context, g *guard) {
			pod := func(what state.TransitionKind, left int, detail string) drain.Progress {
				return drain.Progress{Kind: what, Pod: "default/web", PodUID: "u1", Total: 1, Left: left, Detail: detail}
			}
			time.Sleep(time.Second)
			g.close()
			g.pods(
				drain.Progress{Kind: state.PodsFound, Total: 1, Left: 1}, pod(state.PodHeld, 1, "default/pdb"), pod(state.PodSpared, 1, ""),
				pod(state.PodHeldAgain, 1, "default/pdb"), pod(state.PodEvicted, 1, ""),
				pod(state.PodGone, 0, ""),
			)
			emptied(ctx, g)
		})
		r.run()
		r.announce(r.spot("a", 2*time.Minute))
		r.pass(time.Second)
		e.want(t, "announced a", "begun a drain after 0s", "cordoned a drain after 1s",
			"pod-held a drain after 1s default/web (u1) 1 of 1 default/pdb", "pod-spared a drain after 1s default/web (u1) 1 of 1",
			"pod-evicted a drain after 1s default/web (u1) 1 of 1",
			"pod-gone a drain after 1s default/web (u1) 0 of 1", "done a drain after 1s")
		r.announce()
		r.pass(time.Minute)
		e.want(t, "missed a", "begun a uncordon after 0s", "done a uncordon after 0s")
	})
}

func TestListenersHearHowADrainEndsThatDoesNotEndWell(t *testing.T) {
	t.Parallel()
	t.Run("its deadline comes first, and it goes on", func(t *testing.T) {
		t.Parallel()
		listened(t, func(r *rig, e *ear) {
			r.node.toGuard(after(90 * time.Second))
			r.run()
			r.announce(r.spot("a", time.Minute))
			e.want(t, "announced a", "begun a drain after 0s", "cordoned a drain after 0s")
			r.pass(time.Minute)
			e.want(t, "deadline-exceeded a drain after 1m0s")
			r.pass(time.Minute)
			e.want(t, "done a drain after 1m30s")
		})
	})
	t.Run("the node cannot be closed", func(t *testing.T) {
		t.Parallel()
		listened(t, func(r *rig, e *ear) {
			r.node.toGuard(forbidden)
			r.run()
			r.announce(r.stopping("a", time.Hour))
			r.pass(3 * time.Second)
			e.want(t, "announced a", "begun a drain after 0s", "failed a drain after 0s: forbidden", "failed a drain after 2s: forbidden")
		})
	})
	t.Run("nth stops", func(t *testing.T) {
		t.Parallel()
		listened(t, func(r *rig, e *ear) {
			r.node.toGuard(stuck)
			r.run()
			r.announce(r.stopping("a", time.Hour), r.spot("b", time.Minute))
			e.take()
			r.pass(time.Second)
			r.end(nil)
			e.want(t, "preempted a drain after 1s", "preempted b drain after 1s")
			r.run()
			e.want(t, "begun b drain after 0s", "begun a drain after 0s", "cordoned b drain after 0s", "cordoned a drain after 0s")
		})
	})
}

// One guard works for several events, and what each is due is told of each, once.
func TestListenersHearOfEachEventThatADrainIsFor(t *testing.T) {
	t.Parallel()
	listened(t, func(r *rig, e *ear) {
		r.node.toGuard(after(90 * time.Second))
		r.run()
		stop, notice := r.stopping("a", time.Hour), r.spot("b", time.Minute)
		r.announce(stop)
		e.want(t, "announced a", "begun a drain after 0s", "cordoned a drain after 0s")
		r.pass(10 * time.Second)
		r.announce(stop, notice)
		e.want(t, "announced b", "begun b drain after 0s", "cordoned b drain after 0s")
		r.pass(50 * time.Second)
		e.want(t, "deadline-exceeded b drain after 50s")
		r.pass(30 * time.Second)
		e.want(t, "done a drain after 1m30s", "done b drain after 1m20s")
		r.announce(stop)
		r.pass(30 * time.Second)
		stop.State = event.Canceled
		r.announce(stop)
		e.want(t, "missed b", "closed b", "begun a uncordon after 0s", "done a uncordon after 0s")
	})
}

// Pods that were bound late are evicted after the node was drained, and it is drained then again. That is told once.
func TestListenersHearOnceThatANodeIsDrained(t *testing.T) {
	t.Parallel()
	listened(t, func(r *rig, e *ear) {
		r.node.toGuard(func(_ context.Context, g *guard) {
			g.close()
			g.drain()
			time.Sleep(5 * time.Second)
			pod := drain.Progress{Kind: state.PodArrived, Pod: "default/late", PodUID: "u2", Total: 1, Left: 1}
			g.becomes(func(s *drain.State) { s.Drained = false }, pod)
			pod.Kind = state.PodEvicted
			g.say(pod)
			time.Sleep(5 * time.Second)
			pod.Kind, pod.Left = state.PodGone, 0
			g.say(pod)
			g.drain()
		})
		r.run()
		r.announce(r.spot("a", time.Minute))
		e.want(t, "announced a", "begun a drain after 0s", "cordoned a drain after 0s", "done a drain after 0s")
		r.pass(time.Minute)
		e.want(t, "pod-evicted a drain after 5s default/late (u2) 1 of 1", "pod-gone a drain after 10s default/late (u2) 0 of 1")
		r.wantSaid(systemd.Drained, "warning: drained: 0 pods evicted, 0 deleted, 0 left in place; 60 s before the deadline")
	})
}

// What was begun is ended, in the same words, before something else is begun for the same event.
func TestListenersHearThatSomethingElseIsDoneForAnEvent(t *testing.T) {
	t.Parallel()
	listened(t, func(r *rig, e *ear) {
		r.node.toGuard(stuck)
		r.run()
		r.announce(r.spot("a", time.Hour))
		r.set(event.SpotInterruption, func(rule *policy.Rule) { rule.Action = policy.Cordon })
		e.want(t, "announced a", "begun a drain after 0s", "cordoned a drain after 0s",
			"preempted a drain after 0s", "begun a cordon after 0s", "cordoned a cordon after 0s", "done a cordon after 0s")
		r.set(event.SpotInterruption, func(*policy.Rule) {})
		e.want(t, "begun a drain after 0s", "cordoned a drain after 0s")
		r.node.toUncordon(func(ctx context.Context) (drain.UncordonResult, error) { return "", wait(ctx) })
		r.set(event.SpotInterruption, func(rule *policy.Rule) { rule.Action = policy.Notify })
		e.want(t, "preempted a drain after 0s", "begun a uncordon after 0s")
		r.set(event.SpotInterruption, func(*policy.Rule) {})
		e.want(t, "preempted a uncordon after 0s", "begun a drain after 0s", "cordoned a drain after 0s")
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
