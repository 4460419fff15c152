package fleet

import (
	"time"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/policy"
)

// Rules are the settings that may change while a fleet is run.
type Rules struct {
	Policy policy.Settings
	Drain  drain.Options
	// Draining and Group are the ceilings of Limits.
	Draining, Group int
	// Impaired is for how long a status check must have failed.
	Impaired time.Duration
}

// Use replaces the rules for all that begins from now on. What is being drained goes on as it was begun. It may be called
// from any goroutine.
func (f *Fleet) Use(rules Rules) {
	f.rules.Store(&rules)
	f.nudge()
}

func (f *Fleet) policy() policy.Settings { return f.rules.Load().Policy }

// limits are those in effect.
func (f *Fleet) limits() Limits {
	now := f.rules.Load()
	return Limits{Draining: now.Draining, Group: now.Group, Label: f.opts.Limits.Label}
}
