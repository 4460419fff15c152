package agent

import (
	"maps"

	"github.com/nth-project/nth/pkg/policy"
)

// Obey replaces the rules for all that begins from now on; what is announced later than this call is judged by them. A
// step in flight goes on as it was begun. Obey may be called from any goroutine, also before Run.
func (a *Agent) Obey(rules policy.Settings) { a.inbox.put(order{rules: maps.Clone(rules)}) }

// rules are those in effect: the last that were given, but for the kind of the step in flight. That one keeps the rule
// it was begun by until it has landed, or else a changed setting would call it back.
func (a *Agent) rules() policy.Settings {
	if a.flight == nil {
		return a.cfg.Policy
	}
	rules := maps.Clone(a.cfg.Policy)
	rules[a.flight.step.Event.Kind] = a.flight.rule
	return rules
}
