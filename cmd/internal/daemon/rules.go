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

// moments converts the settings of when the action for scheduled maintenance is taken, by event code.
func moments(settings map[string]string) map[string]policy.When {
	codes := make(map[string]policy.When, len(settings))
	for code, when := range settings {
		codes[code] = policy.When(when)
	}
	return codes
}

// maintenanceHours converts the setting of when maintenance may begin. pkg/config has refused texts that are no hours.
func maintenanceHours(texts []string) (all []hours.Hours) {
	for _, text := range texts {
		if h, ok := hours.Parse(text); ok {
			all = append(all, h)
		}
	}
	return all
}

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
	hooks := Hooks(c.ASGTermination)
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
			Codes:  moments(c.ScheduledMaintenance.Codes),
			Lead:   c.ScheduledMaintenance.Lead,
			Window: c.ScheduledMaintenance.Window,
			Spread: maintenanceSpread,
			Hard:   c.ScheduledMaintenance.HardDeadline,
			Hours:  maintenanceHours(c.ScheduledMaintenance.Hours),
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
