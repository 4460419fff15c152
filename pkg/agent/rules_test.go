package agent_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
)

// set gives the agent rules that differ from the rig's for one kind.
func (r *rig) set(kind event.Kind, change func(*policy.Rule)) {
	changed := rules()
	rule := changed[kind]
	change(&rule)
	changed[kind] = rule
	r.agent.SetPolicy(changed)
	synctest.Wait()
}

func TestNewRulesHoldForWhatIsAnnouncedAlready(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.run()
		r.announce(recommended("a"))
		r.wantTape("put a seen")
		r.set(event.RebalanceRecommendation, func(rule *policy.Rule) { rule.Action = policy.Cordon })
		r.wantTape("put a cordoning", "guard for a: cordon", "put a cordoned")
	})
}

func TestNewRulesHoldForWhatIsAnnouncedNext(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.run()
		r.set(event.SpotInterruption, func(rule *policy.Rule) { rule.Action = policy.Notify })
		r.announce(r.spot("a", 2*time.Minute))
		r.wantTape("put a seen")
		r.set(event.SpotInterruption, func(*policy.Rule) {})
		r.wantTape("put a draining", "guard for a: drain, hard in 2m0s", "put a drained")
	})
}

func TestNewRulesHoldForWhatIsUnderWay(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		change func(*policy.Rule)
		want   []string
	}{
		"the kind is ignored": {
			func(rule *policy.Rule) { rule.Action = policy.Ignore },
			[]string{"put a undoing", "guard ended", "uncordon", "uncordon ended", "put a closed ignored"},
		},
		"it is only told of": {
			func(rule *policy.Rule) { rule.Action = policy.Notify },
			[]string{"put a undoing", "guard ended", "uncordon", "uncordon ended", "put a seen"},
		},
		"the action is a weaker one": {
			func(rule *policy.Rule) { rule.Action = policy.Cordon },
			[]string{"put a cordoning", "adjust to a: cordon", "put a cordoned"},
		},
		"its deadline is not hard": {
			func(rule *policy.Rule) { rule.Hard = false }, []string{"adjust to a: drain, soft in 2m0s"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(r *rig) {
				r.node.toGuard(stuck)
				r.runFor(r.spot("a", 2*time.Minute))
				r.set(event.SpotInterruption, row.change)
				r.wantTape(row.want...)
				r.announce(r.spot("a", 2*time.Minute))
				r.pass(time.Minute)
				r.wantTape()
			})
		})
	}
}

// What is on the node because of a rule is taken back with it, also if nobody looks for its kind any more.
func TestWhatIsOnTheNodeEndsWithTheRuleThatAskedForIt(t *testing.T) {
	t.Parallel()
	cordon := func(rule *policy.Rule) { rule.Action, rule.CordonFor = policy.Cordon, time.Hour }
	t.Run("set back to be told of", func(t *testing.T) {
		t.Parallel()
		bubble(t, func(r *rig) {
			r.run()
			r.announce(recommended("a"))
			r.set(event.RebalanceRecommendation, cordon)
			r.pass(time.Minute)
			r.tape.take()
			r.set(event.RebalanceRecommendation, func(*policy.Rule) {})
			r.wantTape("put a undoing", "guard ended", "uncordon", "uncordon ended", "put a seen")
		})
	})
	for name, unwatched := range map[string][]event.Kind{"watched": nil, "not watched any more": {event.RebalanceRecommendation}} {
		t.Run("ignored from the next start, "+name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(r *rig) {
				rule := r.cfg.Policy[event.RebalanceRecommendation]
				cordon(&rule)
				r.cfg.Policy[event.RebalanceRecommendation] = rule
				r.runFor(recommended("a"))
				r.pass(time.Minute)
				r.end(nil)
				r.tape.take()
				rule.Action = policy.Ignore
				r.cfg.Policy[event.RebalanceRecommendation], r.cfg.Unwatched = rule, unwatched
				r.node.toClaim(func(ctx context.Context) (drain.Claim, bool, error) { return drain.Claim{}, false, wait(ctx) })
				r.run() // Whether the cordon is from before a reboot is not known yet.
				r.wantTape("put a undoing", "uncordon when ready", "uncordon when ready ended", "put a closed ignored")
			})
		})
	}
}
