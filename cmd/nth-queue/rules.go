package main

import (
	"time"

	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/fleet"
	"github.com/nth-project/nth/pkg/policy"
)

// spotNotice is how long before a spot interruption EC2 gives notice, for a message whose time cannot be read.
const spotNotice = 2 * time.Minute

// policyOf turns the settings into the rules of the policy. What EC2 takes whatever anybody says has a hard deadline. A
// message is never withdrawn: an event that is over is told as such.
func policyOf(c config.QueueEvents) policy.Settings {
	codes := make(map[string]policy.When, len(c.ScheduledMaintenance.Codes))
	for code, when := range c.ScheduledMaintenance.Codes {
		codes[code] = policy.When(when)
	}
	return policy.Settings{
		event.SpotInterruption: {
			Action: policy.Action(c.SpotInterruption.Action), Hibernate: policy.Action(c.SpotInterruption.Hibernate),
			Hard: true, Budget: spotNotice,
		},
		event.RebalanceRecommendation: {
			Action: policy.Action(c.RebalanceRecommendation.Action), CordonFor: c.RebalanceRecommendation.CordonFor,
		},
		event.ScheduledMaintenance: {
			Action: policy.Action(c.ScheduledMaintenance.Action), Codes: codes,
			Lead: c.ScheduledMaintenance.Lead, Hard: c.ScheduledMaintenance.HardDeadline,
		},
		event.ASGTermination: budgeted(c.ASGTermination),
		event.ReservationEnd: budgeted(c.ReservationEnd),
		event.StateChange:    budgeted(c.StateChange),
	}
}

func budgeted(c config.Budgeted) policy.Rule {
	return policy.Rule{Action: policy.Action(c.Action), Hard: true, Budget: c.Budget}
}

func taintsOf(c config.Fleet) fleet.Taints {
	return fleet.Taints{Kinds: c.Taints, Effect: fleet.TaintEffect(c.TaintEffect), OutOfService: c.OutOfService}
}

// evictionsAtOnce is enough to keep an API server busy, and little enough for it to answer each in time, in a storm too.
const evictionsAtOnce = 100

func drainOptions(c config.Drain) drain.Options {
	return drain.Options{
		Gate:                     drain.NewGate(evictionsAtOnce),
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
