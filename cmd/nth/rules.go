package main

import (
	"time"

	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
)

// policyOf turns the settings into the rules of the policy. Which deadlines are hard is not a setting where EC2 or the
// system take the machine whatever anybody says.
func policyOf(c config.Events) policy.Settings {
	codes := make(map[string]policy.When, len(c.ScheduledMaintenance.Codes))
	for code, when := range c.ScheduledMaintenance.Codes {
		codes[code] = policy.When(when)
	}
	return policy.Settings{
		event.SpotInterruption: {
			Action:         policy.Action(c.SpotInterruption.Action),
			Hibernate:      policy.Action(c.SpotInterruption.Hibernate),
			Hard:           true,
			Budget:         spotNotice,
			WithdrawnAfter: c.SpotInterruption.WithdrawnAfter,
		},
		event.RebalanceRecommendation: {
			Action:         policy.Action(c.RebalanceRecommendation.Action),
			CordonFor:      c.RebalanceRecommendation.CordonFor,
			WithdrawnAfter: c.RebalanceRecommendation.WithdrawnAfter,
		},
		event.ScheduledMaintenance: {
			Action:         policy.Action(c.ScheduledMaintenance.Action),
			Codes:          codes,
			Lead:           c.ScheduledMaintenance.Lead,
			Hard:           c.ScheduledMaintenance.HardDeadline,
			WithdrawnAfter: c.ScheduledMaintenance.WithdrawnAfter,
		},
		event.ASGTermination: {
			Action:         policy.Action(c.ASGTermination.Action),
			Hard:           true,
			Budget:         c.ASGTermination.Budget,
			WithdrawnAfter: c.ASGTermination.WithdrawnAfter,
		},
		event.Shutdown: {
			Action: policy.Action(c.Shutdown.Action),
			Hard:   true,
		},
	}
}

// spotNotice is how long before a spot interruption EC2 gives notice, for a notice whose time cannot be read.
const spotNotice = 2 * time.Minute

func drainOptions(c config.Drain) drain.Options {
	return drain.Options{
		EvictAfter:               c.EvictAfter,
		Margin:                   c.Margin,
		GracePeriod:              c.PodGracePeriod,
		ProtectEmptyDir:          c.ProtectEmptyDir,
		ProtectUnmanaged:         c.ProtectUnmanaged,
		ExcludeFromLoadBalancers: c.ExcludeFromLoadBalancers,
		LoadBalancerWait:         c.LoadBalancerWait,
		VolumeWait:               c.VolumeWait,
	}
}
