package agent_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
)

// obey gives the agent rules that differ from the rig's for one kind.
func (r *rig) obey(kind event.Kind, change func(*policy.Rule)) {
	changed := rules()
	rule := changed[kind]
	change(&rule)
	changed[kind] = rule
	r.agent.Obey(changed)
	synctest.Wait()
}

func TestNewRulesHoldForWhatIsAnnouncedAlready(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.run()
		r.announce(recommended("a"))
		r.wantTape("put a seen")
		r.obey(event.RebalanceRecommendation, func(rule *policy.Rule) { rule.Action = policy.Cordon })
		r.wantTape("put a cordoning", "cordon for a", "cordon for a ended", "put a cordoned")
	})
}

func TestNewRulesHoldForWhatIsAnnouncedNext(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.run()
		r.obey(event.SpotInterruption, func(rule *policy.Rule) { rule.Action = policy.Notify })
		r.announce(r.spot("a", 2*time.Minute))
		r.wantTape("put a seen")
		r.obey(event.SpotInterruption, func(*policy.Rule) {})
		r.wantTape("put a draining", "drain for a in 2m0s hard", "drain for a in 2m0s hard ended", "put a drained")
	})
}

func TestNewRulesLeaveAStepInFlightAlone(t *testing.T) {
	t.Parallel()
	changes := map[string]func(*policy.Rule){
		"the kind is ignored":        func(rule *policy.Rule) { rule.Action = policy.Ignore },
		"the action is a weaker one": func(rule *policy.Rule) { rule.Action = policy.Cordon },
		"its deadline is not hard":   func(rule *policy.Rule) { rule.Hard = false },
	}
	for name, change := range changes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(r *rig) {
				r.node.toDrain(stuck)
				r.runFor(r.spot("a", 2*time.Minute))
				r.obey(event.SpotInterruption, change)
				r.announce(r.spot("a", 2*time.Minute))
				r.pass(time.Minute)
				r.wantTape()
			})
		})
	}
}

// What comes after the step that was in flight is begun by the new rules, and other kinds do not wait for its end.
func TestNewRulesHoldBesideAndAfterAStepInFlight(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.node.toDrain(only("b"))
		r.runFor(r.stopping("b", time.Hour))
		r.agent.Obey(policy.Settings{
			event.SpotInterruption:     {Action: policy.Drain, WithdrawnAfter: 30 * time.Second},
			event.ScheduledMaintenance: {Action: policy.Drain, Hard: true, WithdrawnAfter: time.Hour},
		})
		r.announce(r.stopping("b", time.Hour), r.spot("a", 2*time.Minute))
		r.wantTape("put a seen", "drain for b in 1h0m0s ended", "put b draining",
			"put a draining", "drain for a in 2m0s", "drain for a in 2m0s ended", "put a drained",
			"put b draining", "drain for b in 1h0m0s hard")
	})
}
