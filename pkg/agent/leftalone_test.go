package agent_test

import (
	"context"
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

// outcomes notes each event's outcome whenever that becomes another, as in "a left-alone after 1m0s".
type outcomes struct {
	mu   sync.Mutex
	last map[string]event.Outcome
	told []string
}

// noting runs f with a rig whose outcomes are noted.
func noting(t *testing.T, f func(r *rig, o *outcomes)) {
	t.Helper()
	bubble(t, func(r *rig) {
		o := &outcomes{last: map[string]event.Outcome{}}
		r.cfg.Settled = func(ev event.Event, outcome event.Outcome) {
			o.mu.Lock()
			defer o.mu.Unlock()
			if last, told := o.last[ev.ID]; !told || last != outcome {
				o.last[ev.ID] = outcome
				o.told = append(o.told, strings.TrimSpace(ev.ID+" "+string(outcome))+" after "+time.Since(r.start).String())
			}
		}
		f(r, o)
	})
}

// want compares what was noted since the last time.
func (o *outcomes) want(t *testing.T, want ...string) {
	t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	if !slices.Equal(o.told, want) {
		t.Errorf("the outcomes were %q, want %q", o.told, want)
	}
	o.told = nil
}

// limitedFor guards a node that people want left alone for so long; after that it is drained in ten seconds.
func limitedFor(d time.Duration) script {
	return func(ctx context.Context, g *guard) {
		g.close()
		g.limit(true)
		if !rest(ctx, d) {
			return
		}
		g.limit(false)
		if rest(ctx, 10*time.Second) {
			emptied(ctx, g)
		}
	}
}

func TestANodeThatPeopleGiveFreeAgainIsDrained(t *testing.T) {
	t.Parallel()
	noting(t, func(r *rig, o *outcomes) {
		heard := &ear{}
		r.cfg.Listeners = []agent.Listener{heard}
		r.node.toGuard(limitedFor(time.Minute))
		r.run()
		r.announce(terminated("a"))
		r.pass(time.Minute - time.Second)
		o.want(t, "a after 0s", "a left-alone after 0s")
		if e := r.entry("a"); !e.LeftAlone || e.Phase != state.Draining || e.Result != nil {
			t.Errorf("the entry is %+v", e)
		}
		r.wantSaid(systemd.Drained)
		r.pass(time.Minute)
		o.want(t, "a after 1m0s", "a drained after 1m10s")
		r.wantSaid(systemd.DrainLeft,
			"warning: the node is left alone because of its annotation "+drain.ActionAnnotation+": its pods are not evicted for asg-termination",
			"info: annotation "+drain.ActionAnnotation+" no longer asks to leave the node alone")
		if e := r.entry("a"); e.LeftAlone || e.Phase != state.Drained {
			t.Errorf("the entry is %+v", e)
		}
		heard.want(t, "announced a", "begun a drain after 0s", "cordoned a drain after 0s", "left-alone a drain after 0s",
			"begun a drain after 0s", "cordoned a drain after 0s", "done a drain after 10s")
	})
}

// The time of the termination goes by while people want the node left alone. From when they do not, it has half a minute.
func TestANodeThatIsLeftAloneDoesNotRunOutOfTime(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		takes time.Duration
		want  string
	}{
		"and is drained in its overtime": {10 * time.Second, "a drained after 20m10s"},
		"and then does":                  {time.Hour, "a out-of-time after 20m30s"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			noting(t, func(r *rig, o *outcomes) {
				r.node.toGuard(func(ctx context.Context, g *guard) {
					g.close()
					g.limit(true)
					if !rest(ctx, 20*time.Minute) {
						return
					}
					g.limit(false)
					if rest(ctx, row.takes) {
						emptied(ctx, g)
					}
				})
				r.run()
				r.announce(terminated("a"))
				r.pass(20*time.Minute - time.Second)
				o.want(t, "a after 0s", "a left-alone after 0s")
				r.wantSaid(systemd.DrainIncomplete)
				r.pass(2 * time.Minute)
				o.want(t, "a after 20m0s", row.want)
			})
		})
	}
}

func TestThatANodeIsLeftAloneSurvivesARestart(t *testing.T) {
	t.Parallel()
	noting(t, func(r *rig, o *outcomes) {
		r.node.toGuard(limitedFor(time.Hour))
		r.run()
		r.announce(terminated("a"))
		r.pass(time.Minute)
		o.want(t, "a after 0s", "a left-alone after 0s")
		r.end(nil)
		r.node.toGuard(func(ctx context.Context, g *guard) { // There is no answer of the API server for ten minutes.
			if rest(ctx, 10*time.Minute) {
				g.close()
				g.limit(true)
			}
		})
		r.run()
		r.announce(terminated("a"))
		r.pass(time.Hour)
		o.want(t)
	})
}

// The API server may not say for a while how the Node is.
func TestWhoGuardsANodeAfterARestartKnowsThatItWasLeftAlone(t *testing.T) {
	t.Parallel()
	noting(t, func(r *rig, _ *outcomes) {
		orders := &orders{node: r.node}
		r.cfg.Node = orders
		r.node.toGuard(limitedFor(time.Hour))
		r.run()
		r.announce(terminated("a"))
		r.pass(time.Minute)
		r.end(nil)
		r.run()
		r.announce(terminated("a"))
		r.pass(2 * time.Hour) // It is given free, and drained.
		r.end(nil)
		r.run()
		r.announce(terminated("a"))
		r.pass(time.Minute)
		if got := orders.begun(); !slices.Equal(got, []bool{false, true, false}) {
			t.Errorf("three guards began with a node that was left alone: %t; want that of the second only", got)
		}
	})
}

// A drain has ended, nth is gone before the hook is completed, and people want the node left alone before it is back.
func TestWhatIsDrainedCountsAfterARestartWhenTheNodeIsSaidToBe(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		limited bool
		want    []string
	}{
		"which people limit since": {true, []string{"a after 1m0s", "a left-alone after 1m5s"}},
		"which is as it was":       {false, []string{"a after 1m0s", "a drained after 1m6s"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			noting(t, func(r *rig, o *outcomes) {
				r.run()
				r.announce(terminated("a"))
				r.pass(time.Minute)
				o.want(t, "a after 0s", "a drained after 0s")
				r.end(nil)
				r.node.toGuard(func(ctx context.Context, g *guard) {
					if rest(ctx, 5*time.Second) {
						g.limit(row.limited)
					}
					if rest(ctx, time.Second) && !row.limited {
						g.drain()
					}
				})
				r.run()
				r.announce(terminated("a"))
				r.pass(time.Minute)
				o.want(t, row.want...)
			})
		})
	}
}

// The last word counts, also after the outcome has been told.
func TestPeopleMayChangeTheirMindAfterTheOutcome(t *testing.T) {
	t.Parallel()
	noting(t, func(r *rig, o *outcomes) {
		heard := &ear{}
		r.cfg.Listeners = []agent.Listener{heard}
		r.node.toGuard(func(ctx context.Context, g *guard) {
			g.close()
			g.drain()
			for _, limited := range []bool{true, false} {
				if !rest(ctx, time.Minute) {
					return
				}
				g.limit(limited)
			}
			if rest(ctx, time.Second) {
				g.drain()
			}
		})
		r.run()
		r.announce(terminated("a"))
		r.pass(3 * time.Minute)
		o.want(t, "a after 0s", "a drained after 0s", "a left-alone after 1m0s", "a after 2m0s", "a drained after 2m1s")
		heard.want(t, "announced a", "begun a drain after 0s", "cordoned a drain after 0s", "done a drain after 0s",
			"left-alone a drain after 1m0s", "begun a drain after 0s", "cordoned a drain after 0s", "done a drain after 1s")
	})
}

// What a look has shown before an event came is no word about it.
func TestAnEventThatJoinsIsLeftAloneWhenALookAfterItHasShownThat(t *testing.T) {
	t.Parallel()
	noting(t, func(r *rig, o *outcomes) {
		r.node.toGuard(func(ctx context.Context, g *guard) {
			g.close()
			g.limit(true)
			select { // The look for the one that joins takes a while.
			case <-ctx.Done():
				return
			case <-g.adjusted:
			}
			g.becomes(func(s *drain.State) { s.Looked = false }, drain.Progress{Kind: state.GoalChanged})
			if rest(ctx, 3*time.Second) {
				g.limit(true)
			}
		})
		r.run()
		r.announce(terminated("a"))
		r.pass(time.Minute)
		o.want(t, "a after 0s", "a left-alone after 0s")
		r.announce(terminated("a"), r.spot("s", 2*time.Minute))
		r.pass(time.Minute)
		o.want(t, "s after 1m0s", "s left-alone after 1m3s")
	})
}

func TestAnEventThatIsWithdrawnWhileItsNodeIsLeftAloneIsTakenBack(t *testing.T) {
	t.Parallel()
	noting(t, func(r *rig, o *outcomes) {
		heard := &ear{}
		r.cfg.Listeners = []agent.Listener{heard}
		r.node.toGuard(limitedFor(time.Hour))
		r.run()
		r.announce(terminated("a"))
		r.pass(time.Minute)
		heard.take()
		r.announce()
		r.pass(time.Minute)
		if e := r.entry("a"); e.Phase != state.Closed || e.LeftAlone {
			t.Errorf("the entry is %+v", e)
		}
		heard.want(t, "missed a", "begun a uncordon after 0s", "done a uncordon after 0s")
	})
}

func TestTheStatusSaysThatANodeIsLeftAlone(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.node.toGuard(limitedFor(time.Hour))
		r.runFor(terminated("a"))
		r.pass(time.Minute)
		const want = "watching node node-a: the Auto Scaling group terminates this instance; the node is left alone because of its annotation"
		if got := r.service.sentence(); got != want {
			t.Errorf("the status is %q, want %q", got, want)
		}
	})
}

// leftOpenFor is a guard of a node that is to be cordoned only, and that people want left alone for so long.
func leftOpenFor(d time.Duration) script {
	return func(ctx context.Context, g *guard) {
		g.did(drain.Result{Cordon: drain.CordonLeft, Limited: true})
		g.becomes(func(s *drain.State) { s.Seen, s.Left, s.Looked, s.Limited = true, true, true, true }, drain.Progress{Kind: state.NodeOptedOut})
		if rest(ctx, d) {
			g.close()
		}
	}
}

func TestTheStatusSaysThatANodeIsLeftOpen(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.node.toGuard(leftOpenFor(time.Minute))
		r.runFor(r.hibernating("a", 10*time.Minute))
		r.wantStatus("watching node node-a: EC2 will hibernate this spot instance at 00:10:00 UTC on 1 Jan 2000; the node is left open because of its annotation")
		r.pass(time.Minute)
		r.wantStatus("node node-a is cordoned for spot-interruption")
	})
}

// Under rules that ask for a cordon only, nothing is left that people keep nth from.
func TestNoDrainIsLeftAloneThatTheRulesDoNotAskForAnyMore(t *testing.T) {
	t.Parallel()
	noting(t, func(r *rig, o *outcomes) {
		r.node.toGuard(limitedFor(time.Hour))
		r.run()
		r.announce(terminated("a"))
		r.pass(time.Minute)
		o.want(t, "a after 0s", "a left-alone after 0s")
		r.set(event.ASGTermination, func(rule *policy.Rule) { rule.Action = policy.Cordon })
		r.pass(time.Minute)
		if e := r.entry("a"); e.Phase != state.Cordoned || e.LeftAlone {
			t.Errorf("the entry is %+v", e)
		}
	})
}

// The root volume was replaced by an instance refresh, and the record with it. The Node bears the claim of the boot before.
func TestACordonOfBeforeTheRootVolumeWasReplacedIsLiftedByTheClaimAlone(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.node.toClaim(func(context.Context) (drain.Claim, bool, error) {
			return drain.Claim{Event: "a", Kind: string(event.ASGTermination), Events: []string{"a"}, BootID: "the-boot-before", Since: r.start.Add(-10 * time.Minute)}, true, nil
		})
		r.run()
		r.announce()
		r.pass(5 * time.Minute)
		if e := r.entry("a"); e.Phase != state.Closed || !r.node.awaits() {
			t.Errorf("the entry is %+v; waited for Ready: %t", e, r.node.awaits())
		}
	})
}

// The next event may come while the API server does not answer.
func TestOptedOut_IsKnownToTheNextGuard(t *testing.T) {
	t.Parallel()
	noting(t, func(r *rig, _ *outcomes) {
		orders := &orders{node: r.node}
		r.cfg.Node = orders
		r.node.toGuard(limitedFor(24 * time.Hour))
		r.run()
		r.announce(terminated("a"))
		r.pass(time.Minute)
		r.announce()
		r.pass(time.Hour)
		r.announce(terminated("b"))
		r.pass(time.Minute)
		if got := orders.begun(); !slices.Equal(got, []bool{false, true}) {
			t.Errorf("the guards began with a node that was opted out: %t; want that of the second only", got)
		}
	})
}
