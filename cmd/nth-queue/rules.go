package main

import (
	"strings"

	"github.com/nth-project/nth/cmd/internal/draining"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/ec2"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/fleet"
	"github.com/nth-project/nth/pkg/policy"
)

// kept is how long after it was announced a planned change may stay in the queue, which forgets it after fourteen days.
const kept = longestRetention - day

// policyOf turns the settings into the rules of the policy. What EC2 takes whatever anybody says has a hard deadline.
// Nothing is withdrawn for being missing: an event that is over is told as such.
func policyOf(c config.QueueEvents) policy.Settings {
	return policy.Settings{
		event.SpotInterruption: {
			Action: policy.Action(c.SpotInterruption.Action), Hibernate: policy.Action(c.SpotInterruption.Hibernate),
			Hard: true, Budget: draining.SpotNotice,
		},
		event.RebalanceRecommendation: {
			Action: policy.Action(c.RebalanceRecommendation.Action), CordonFor: c.RebalanceRecommendation.CordonFor,
		},
		event.ScheduledMaintenance: {
			Action: policy.Action(c.ScheduledMaintenance.Action), Codes: draining.Codes(c.ScheduledMaintenance.Codes),
			Lead: c.ScheduledMaintenance.Lead, Window: c.ScheduledMaintenance.Window, Spread: c.ScheduledMaintenance.Spread,
			Hard: c.ScheduledMaintenance.HardDeadline, Kept: kept,
		},
		event.ASGTermination: draining.Termination(c.ASGTermination),
		event.ReservationEnd: budgeted(c.ReservationEnd),
		event.StateChange:    budgeted(c.StateChange),
		event.StatusCheck:    {Action: policy.Action(c.StatusCheck.Action), Budget: c.StatusCheck.Budget},
	}
}

func budgeted(c config.Budgeted) policy.Rule {
	return policy.Rule{Action: policy.Action(c.Action), Hard: true, Budget: c.Budget}
}

// clusterOf is this cluster's name in the tags of its instances, as far as the settings say it.
func clusterOf(c config.Fleet) string {
	if name, is := strings.CutPrefix(c.ManagedTag, ec2.ClusterTag); is && c.Cluster == "" {
		return name
	}
	return c.Cluster
}

func taintsOf(c config.Fleet) fleet.Taints {
	return fleet.Taints{Kinds: c.Taints, Effect: fleet.TaintEffect(c.TaintEffect), OutOfService: c.OutOfService}
}

// evictionsAtOnce is enough to keep an API server busy, and little enough for it to answer each in time. In storms on a
// control plane with two processors, fewer tell the last pod later to go, and with more the cordons of other nodes wait.
const evictionsAtOnce = 100

func drainOptions(c config.Queue, gate *drain.Gate) drain.Options {
	options := draining.Options(c.Drain)
	options.Gate, options.RestartWait = gate, c.Fleet.RestartWait
	return options
}
