package soak_test

import (
	"testing"

	"github.com/nth-project/nth/pkg/event"
)

// reconfigure gives nth other rules, which hold at once also for what is announced already: by SIGHUP, or, if it does not run,
// from its next start on.
func (l *life) reconfigure(t *testing.T) {
	t.Helper()
	l.rules = otherRules(l.random)
	l.model.troubled = true // What is new by this may have been announced long ago.
	l.options.Settings = l.rules.settings(l.traits)
	if l.nth != nil {
		l.nth.WaitReady(t) // before, it may yet start with either
	}
	l.machine.Configure(t, l.options)
	l.did("changes of the rules", "%+v, nth runs: %t", l.rules, l.nth != nil)
	if l.nth == nil {
		return
	}
	l.nth.Reload(t)
	l.obey()
}

// obey takes into account that nth follows the rules from now on.
func (l *life) obey() {
	l.inForce = l.rules
	l.model.follow(l.wants)
}

// startWith takes into account with which rules nth is started: what they ignore it does not look for.
func (l *life) startWith() {
	l.deaf = map[event.Kind]bool{}
	for _, kind := range event.AllKinds() {
		l.deaf[kind] = l.rules.of(kind) == ignored
	}
	l.obey()
}
