package agent_test

import (
	"context"
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

// notes keeps all that it hears, as it was.
type notes struct {
	mu    sync.Mutex
	heard []state.Transition
}

func (n *notes) OnTransition(h state.Transition) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.heard = append(n.heard, h)
}

func (n *notes) find(what state.TransitionKind) state.Transition {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, h := range n.heard {
		if h.Kind == what {
			return h
		}
	}
	return state.Transition{}
}

func TestListenersHearWhenWhereWhyAndUntilWhen(t *testing.T) {
	t.Parallel()
	const reason, plan = "EC2 will terminate this spot instance at 00:02:00 UTC on 1 Jan 2000", "; drain now"
	bubble(t, func(r *rig) {
		n := &notes{}
		r.cfg.Listeners = []agent.Listener{n}
		r.node.toGuard(after(10 * time.Second))
		r.run()
		r.announce(r.spot("a", 2*time.Minute))
		r.pass(10 * time.Second)
		for what, at := range map[state.TransitionKind]time.Duration{state.Begun: 0, state.NodeCordoned: 0, state.Done: 10 * time.Second} {
			h := n.find(what)
			if !h.At.Equal(r.in(at)) || h.Node != "node-a" || h.Reason != reason || !h.Deadline.Equal(r.in(2*time.Minute)) || !h.Hard {
				t.Errorf("%s: at %s on %q, as %q, until %s, hard: %t", what, h.At, h.Node, h.Reason, h.Deadline, h.Hard)
			}
		}
		if h := n.find(state.Announced); h.Plan != reason+plan {
			t.Errorf("the plan is %q", h.Plan)
		}
	})
	bubble(t, func(r *rig) {
		n := &notes{}
		r.cfg.Listeners = []agent.Listener{n}
		r.run()
		r.announce(r.hibernating("a", 2*time.Minute))
		if h := n.find(state.Done); h.Action != "cordon" || !h.Deadline.IsZero() || h.Hard {
			t.Errorf("a cordon is until %s, hard: %t", h.Deadline, h.Hard)
		}
	})
}

func TestListenersHearOfAnEventThatChangesOrIsBack(t *testing.T) {
	t.Parallel()
	listened(t, func(r *rig, heard *ear) {
		r.run()
		r.announce(r.rebooting("a", time.Hour))
		r.announce(r.rebooting("a", 2*time.Hour))
		heard.want(t, "announced a", "changed a")
		r.announce(r.spot("b", time.Hour))
		r.announce()
		r.pass(30 * time.Second)
		heard.take()
		r.announce(r.spot("b", time.Hour)) // It had been given up.
		heard.want(t, "announced b", "begun b drain after 0s", "cordoned b drain after 0s", "done b drain after 0s")
	})
}

// It ran out of time in an earlier process, of which this listener has heard nothing.
func TestListenersHearTheBeginningOfADrainOfWhichTheyHearTheEnd(t *testing.T) {
	t.Parallel()
	for name, closes := range map[string]bool{"behind a cordon": true, "on a node that cannot be cordoned": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			listened(t, func(r *rig, heard *ear) {
				r.node.toGuard(stuck)
				r.runFor(r.spot("a", 2*time.Minute))
				r.pass(3 * time.Minute)
				r.end(nil)
				heard.take()
				r.node.toGuard(func(context.Context, *guard) {})
				want := []string{"begun a drain after 0s", "done a drain after 10s"}
				if closes {
					want = []string{"begun a drain after 0s", "cordoned a drain after 10s", "done a drain after 10s"}
				}
				r.node.toGuard(func(ctx context.Context, g *guard) {
					if closes {
						g.closeAs(state.NodeClosed, drain.CordonOurs)
					}
					time.Sleep(10 * time.Second)
					emptied(ctx, g)
				})
				r.run()
				r.pass(time.Minute)
				heard.want(t, want...)
			})
		})
	}
}

func TestListenersHearThatACordonIsCalledBackIfPeopleOpenTheNode(t *testing.T) {
	t.Parallel()
	listened(t, func(r *rig, heard *ear) {
		r.node.toGuard(func(_ context.Context, g *guard) {
			time.Sleep(time.Second)
			g.say(drain.Progress{Kind: state.NodeReopened, Events: g.wants().Events})
		})
		r.run()
		r.announce(r.hibernating("a", 2*time.Minute))
		r.pass(2 * time.Second)
		heard.want(t, "announced a", "begun a cordon after 0s", "preempted a cordon after 1s")
		if e := r.entry("a"); !e.Reopened || e.Phase != state.Cordoned {
			t.Errorf("the entry is %+v", e)
		}
	})
}

// A node that takes no pods, with an Event that says the opposite, would be no help.
func TestListenersHearWhenANodeThatWasLeftOpenIsCordoned(t *testing.T) {
	t.Parallel()
	listened(t, func(r *rig, heard *ear) {
		r.node.toGuard(leftOpenFor(time.Minute))
		r.runFor(r.hibernating("a", 10*time.Minute))
		heard.want(t, "announced a", "begun a cordon after 0s", "done a cordon after 0s")
		r.wantSaid(systemd.Cordoned)
		r.pass(2 * time.Minute)
		heard.want(t, "begun a cordon after 0s", "cordoned a cordon after 0s", "done a cordon after 0s")
		r.wantSaid(systemd.Cordoned, "warning: cordoned the node: EC2 will hibernate this spot instance at 00:10:00 UTC on 1 Jan 2000")
	})
}

func TestAnOrderByHandIsWrittenOnce(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		var standing *guard
		r.node.toGuard(func(_ context.Context, g *guard) { standing = g })
		r.runFor(r.stopping("a", time.Hour))
		puts := 0
		for range 2 {
			puts = r.record.puts()
			standing.say(drain.Progress{Kind: state.NodeReopened, Events: []string{"a"}})
			r.pass(time.Second)
		}
		if again := r.record.puts() - puts; again > 0 || !r.entry("a").Reopened {
			t.Errorf("it was written %d times more; the entry is %+v", again, r.entry("a"))
		}
	})
}

// Of the taking back it is told for the event that comes first, and of the others that they are over.
func TestListenersHearOfEachEventThatEndsWithAnother(t *testing.T) {
	t.Parallel()
	listened(t, func(r *rig, heard *ear) {
		r.run()
		a, b := r.stopping("a", time.Hour), r.stopping("b", 2*time.Hour)
		r.announce(a, b)
		heard.take()
		a.State, b.State = event.Canceled, event.Canceled
		r.announce(a, b)
		heard.want(t, "begun a uncordon after 0s", "done a uncordon after 0s", "closed b")
	})
}

// Each of them is told on its own, to people who may be waiting for either.
func TestListenersHearOfEachEventThatIsPutOff(t *testing.T) {
	t.Parallel()
	t.Run("with another", func(t *testing.T) {
		t.Parallel()
		listened(t, func(r *rig, heard *ear) {
			r.run()
			r.announce(r.rebooting("a", 5*time.Minute), r.rebooting("b", 6*time.Minute))
			heard.take()
			r.announce(r.rebooting("a", 5*time.Hour), r.rebooting("b", 6*time.Hour))
			heard.want(t, "begun a uncordon after 0s", "done a uncordon after 0s", "changed b", "put-off b uncordon after 0s")
		})
	})
	t.Run("while another keeps the node closed", func(t *testing.T) {
		t.Parallel()
		listened(t, func(r *rig, heard *ear) {
			r.run()
			notice := r.spot("b", time.Hour)
			r.announce(r.rebooting("a", 5*time.Minute), notice)
			heard.take()
			r.announce(r.rebooting("a", 5*time.Hour), notice)
			heard.want(t, "changed a", "put-off a")
			r.announce(r.rebooting("a", 6*time.Hour), notice)
			heard.want(t, "changed a")
		})
	})
}

// Karpenter has tainted the node before the cordon is lifted.
func TestAnEventThatIsPutOffOnANodeThatStaysClosedIsNotSaidToBeUncordonedFor(t *testing.T) {
	t.Parallel()
	for result, want := range map[drain.UncordonResult]string{drain.UncordonLeftKarpenter: "", drain.UncordonLifted: "uncordon"} {
		bubble(t, func(r *rig) {
			n := &notes{}
			r.cfg.Listeners = []agent.Listener{n}
			r.node.toUncordon(func(context.Context) (drain.UncordonResult, error) { return result, nil })
			r.runFor(r.rebooting("a", 5*time.Minute), r.rebooting("b", 6*time.Minute))
			r.announce(r.rebooting("a", 5*time.Hour), r.rebooting("b", 6*time.Hour))
			r.pass(time.Second)
			if h := n.find(state.PutOff); h.Entry.Event.ID != "b" || h.Action != want {
				t.Errorf("%s: %s is put off with the action %q, want %q", result, h.Entry.Event.ID, h.Action, want)
			}
		})
	}
}

func TestListenersHearOfAnEventThatIsBackWhileItIsUndone(t *testing.T) {
	t.Parallel()
	listened(t, func(r *rig, heard *ear) {
		r.node.toUncordon(func(ctx context.Context) (drain.UncordonResult, error) {
			<-ctx.Done()
			return drain.UncordonLifted, nil
		})
		r.run()
		r.announce(r.spot("a", time.Hour))
		r.announce()
		r.pass(30 * time.Second)
		heard.take()
		r.announce(r.spot("a", time.Hour))
		heard.want(t, "preempted a uncordon after 0s", "changed a", "begun a drain after 0s", "cordoned a drain after 0s", "done a drain after 0s")
	})
}

// A guard may be in the midst of something when it is stopped.
func TestNobodyListensToAGuardThatIsOver(t *testing.T) {
	t.Parallel()
	listened(t, func(r *rig, heard *ear) {
		var late *guard
		r.node.toGuard(func(_ context.Context, g *guard) {
			late = g
			g.close()
		})
		r.node.toUncordon(func(ctx context.Context) (drain.UncordonResult, error) {
			if rest(ctx, 10*time.Second) {
				return drain.UncordonLifted, nil
			}
			return "", ctx.Err()
		})
		r.run()
		stop := r.stopping("a", time.Hour)
		r.announce(stop)
		stop.State = event.Canceled
		r.announce(stop)
		heard.take()
		late.say(pod(state.PodGone, ""))
		r.pass(10 * time.Second)
		heard.want(t, "done a uncordon after 10s")
		late.say(pod(state.PodGone, ""))
		r.pass(time.Second)
		heard.want(t)
	})
}

// What was so under the goal before is not so under this one.
func TestANodeIsDrainedForAnEventOnlyIfTheGuardSaysSoUnderItsGoal(t *testing.T) {
	t.Parallel()
	for name, late := range map[string]func(g *guard, old drain.Goal){
		"what was told before the event joined":                func(*guard, drain.Goal) {},
		"what is told of the goal before, after it has joined": func(g *guard, old drain.Goal) { g.told(drainedFor(old)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(r *rig) {
				r.node.toGuard(func(ctx context.Context, g *guard) {
					g.close()
					g.drain()
					old := g.wants()
					<-g.adjusted
					late(g, old)
					<-ctx.Done()
				})
				r.runFor(r.stopping("a", time.Hour))
				r.announce(r.stopping("a", time.Hour), r.spot("b", 2*time.Minute))
				r.pass(time.Second)
				if a, b := r.entry("a"), r.entry("b"); a.Phase != state.Drained || b.Phase != state.Draining {
					t.Errorf("a is %s, and b is %s", a.Phase, b.Phase)
				}
			})
		})
	}
}

func drainedFor(goal drain.Goal) drain.Progress {
	return drain.Progress{Kind: state.NodeEmpty, Goal: goal.Number, State: drain.State{Closed: true, Ours: true, Seen: true, Drained: true}}
}

func TestTheBoardTellsWhetherTheMachineIsLostAtTheDeadline(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		events func(r *rig) []event.Event
		want   bool
	}{
		"with a hard deadline": {func(r *rig) []event.Event { return []event.Event{r.spot("a", time.Hour)} }, true},
		"with a soft one":      {func(r *rig) []event.Event { return []event.Event{r.stopping("a", time.Hour)} }, false},
		"with a soft one that is nearer": {func(r *rig) []event.Event {
			return []event.Event{r.stopping("a", time.Hour), r.spot("b", 2*time.Hour)}
		}, false},
		"with none": {func(*rig) []event.Event { return []event.Event{recommended("a")} }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			withBoard(t, func(r *rig, b *board) {
				r.cfg.Policy[event.RebalanceRecommendation] = policy.Rule{Action: policy.Drain}
				r.node.toGuard(nothing)
				r.runFor(row.events(r)...)
				r.pass(time.Second)
				step := b.last().Step
				if step == nil || step.Hard != row.want || step.PodsTotal != 0 || step.PodsLeft != 0 {
					t.Errorf("the step is %+v, want hard: %t", step, row.want)
				}
			})
		})
	}
}

func TestTheBoardShowsNothingOfWhatIsOver(t *testing.T) {
	t.Parallel()
	withBoard(t, func(r *rig, b *board) {
		r.run()
		r.announce(r.spot("a", time.Hour))
		r.announce()
		r.trouble(event.SpotInterruption, "connection refused")
		r.pass(time.Minute + 500*time.Millisecond)
		r.announce()
		if got := b.last().Documents[0]; !got.LastGood.Equal(r.in(time.Minute+500*time.Millisecond)) || got.Trouble != "" || !got.Since.IsZero() {
			t.Errorf("the document is %+v", got)
		}
		r.pass(time.Minute)
		if got := b.last(); len(got.Events) > 0 {
			t.Errorf("the events are %+v", got.Events)
		}
	})
}

func TestAQuietBoardIsRefreshedEveryTenSeconds(t *testing.T) {
	t.Parallel()
	withBoard(t, func(r *rig, b *board) {
		r.run()
		r.pass(time.Minute)
		shown := b.all()
		for i := len(shown) - 3; i < len(shown); i++ {
			if age := shown[i].Updated.Sub(shown[i-1].Updated); age != 10*time.Second {
				t.Errorf("it was refreshed after %s", age)
			}
		}
	})
}
