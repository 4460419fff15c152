package daemon

import (
	"time"

	"github.com/nth-project/nth/pkg/asg"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/hours"
	"github.com/nth-project/nth/pkg/policy"
)

// SpotNotice is how long before a spot interruption EC2 gives notice.
const SpotNotice = 2 * time.Minute

// maintenanceSpread is over how long the instances of a fleet begin to drain for maintenance, so that not all do at once.
const maintenanceSpread = 20 * time.Minute

// Hooks returns the settings for the lifecycle hooks of terminations. nth completes no hook if the settings do not ask for a drain at a termination.
func Hooks(c config.ASGTermination) asg.Settings {
	return asg.Settings{
		Complete: c.CompleteHook && policy.Action(c.Action) == policy.Drain,
		Hooks:    c.Hooks,
		Abandon:  c.OnIncomplete == "abandon",
	}
}

// Rules returns the rules for the kinds of events that both programs handle. A deadline is hard if EC2 takes the machine then in any case. The budget
// of a termination is soft if nth may abandon its lifecycle hook: the group may then keep the machine (TerminateHookAbandon=retain).
func Rules(c config.Announced) policy.Settings {
	hooks, codes := Hooks(c.ASGTermination), map[string]policy.When{}
	for code, when := range c.ScheduledMaintenance.Codes {
		codes[code] = policy.When(when)
	}
	var allowed []hours.Hours
	for _, text := range c.ScheduledMaintenance.Hours {
		if h, ok := hours.Parse(text); ok { // pkg/config has refused texts that are no hours.
			allowed = append(allowed, h)
		}
	}
	return policy.Settings{
		event.SpotInterruption: {
			Action:    policy.Action(c.SpotInterruption.Action),
			Hibernate: policy.Cordon,
			Hard:      true,
			Budget:    SpotNotice,
		},
		event.RebalanceRecommendation: {
			Action:    policy.Action(c.RebalanceRecommendation.Action),
			CordonFor: c.RebalanceRecommendation.CordonFor,
		},
		event.ScheduledMaintenance: {
			Action: policy.Action(c.ScheduledMaintenance.Action),
			Codes:  codes,
			Lead:   c.ScheduledMaintenance.Lead,
			Window: c.ScheduledMaintenance.Window,
			Spread: maintenanceSpread,
			Hard:   c.ScheduledMaintenance.HardDeadline,
			Hours:  allowed,
		},
		event.ASGTermination: {
			Action:     policy.Action(c.ASGTermination.Action),
			Hard:       true,
			Budget:     c.ASGTermination.Budget,
			SoftBudget: hooks.Complete && hooks.Abandon,
		},
	}
}

// volumeWait is how long the volumes of pods that are gone are waited for. A kubelet takes some seconds to release them.
const volumeWait = 20 * time.Second

// DrainOptions turns the settings into the options for draining a node.
func DrainOptions(c config.Drain) drain.Options {
	o := drain.Options{
		ScriptsWait:              c.ScriptsWait,
		ExcludeFromLoadBalancers: c.LoadBalancerWait > 0,
		LoadBalancerWait:         c.LoadBalancerWait,
		VolumeWait:               volumeWait,
	}
	if c.PodGracePeriod > 0 {
		o.GracePeriod = &c.PodGracePeriod
	}
	o.Margin, o.RespectDoNotDisrupt = c.Margin, c.RespectDoNotDisrupt
	o.ProtectEmptyDir, o.ProtectUnmanaged = c.ProtectEmptyDir, c.ProtectUnmanaged
	return o
}
