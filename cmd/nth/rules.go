package main

import (
	"github.com/nth-project/nth/cmd/internal/draining"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
)

// policyOf turns the settings into the rules of the policy. Which deadlines are hard is not a setting where EC2 or the
// system take the machine whatever anybody says. A group that keeps a machine with pods left takes it no sooner than pkg/asg says.
func policyOf(c config.Events) policy.Settings {
	termination := draining.Termination(c.ASGTermination.Termination)
	termination.WithdrawnAfter = c.ASGTermination.WithdrawnAfter
	return policy.Settings{
		event.SpotInterruption: {
			Action:         policy.Action(c.SpotInterruption.Action),
			Hibernate:      policy.Action(c.SpotInterruption.Hibernate),
			Hard:           true,
			Budget:         draining.SpotNotice,
			WithdrawnAfter: c.SpotInterruption.WithdrawnAfter,
		},
		event.RebalanceRecommendation: {
			Action:         policy.Action(c.RebalanceRecommendation.Action),
			CordonFor:      c.RebalanceRecommendation.CordonFor,
			WithdrawnAfter: c.RebalanceRecommendation.WithdrawnAfter,
		},
		event.ScheduledMaintenance: {
			Action:         policy.Action(c.ScheduledMaintenance.Action),
			Codes:          draining.Codes(c.ScheduledMaintenance.Codes),
			Lead:           c.ScheduledMaintenance.Lead,
			Window:         c.ScheduledMaintenance.Window,
			Spread:         c.ScheduledMaintenance.Spread,
			Hard:           c.ScheduledMaintenance.HardDeadline,
			WithdrawnAfter: c.ScheduledMaintenance.WithdrawnAfter,
		},
		event.ASGTermination: termination,
		event.Shutdown: {
			Action: policy.Action(c.Shutdown.Action),
			Hard:   true,
		},
		event.Hibernation: {
			Action: policy.Action(c.Hibernation.Action),
			Hard:   true,
		},
		event.ReservationEnd: {
			Action:         policy.Action(c.ReservationEnd.Action),
			Lead:           c.ReservationEnd.Lead,
			Hard:           true,
			Budget:         draining.SpotNotice, // which is also that of an interruptible reservation
			WithdrawnAfter: c.ReservationEnd.WithdrawnAfter,
		},
	}
}
