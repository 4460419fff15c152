// Package draining turns settings that nth and nth-queue have in common into what the policy and a drain go by.
package draining

import (
	"time"

	"github.com/nth-project/nth/pkg/asg"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/policy"
)

// SpotNotice is how long before a spot interruption EC2 gives notice, for a notice whose time cannot be read.
const SpotNotice = 2 * time.Minute

// Codes says when the action for scheduled maintenance is taken, for each of its codes.
func Codes(settings map[string]string) map[string]policy.When {
	codes := make(map[string]policy.When, len(settings))
	for code, when := range settings {
		codes[code] = policy.When(when)
	}
	return codes
}

// Hooks are the settings for the lifecycle hooks of terminations. Where nodes are not drained, it is not for us to say when the machine may
// go.
func Hooks(c config.Termination) asg.Settings {
	return asg.Settings{
		Complete: c.CompleteHook && policy.Action(c.Action) == policy.Drain,
		Hooks:    c.Hooks,
		Budget:   c.Budget,
		Abandon:  c.OnIncomplete == "abandon",
	}
}

// Termination is the rule for terminations by an Auto Scaling group.
func Termination(c config.Termination) policy.Rule {
	hooks := Hooks(c)
	return policy.Rule{
		Action: policy.Action(c.Action), Hard: true, Budget: c.Budget, SoftBudget: hooks.Complete && hooks.Abandon,
	}
}

// Options says how a node is drained.
func Options(c config.Drain) drain.Options {
	return drain.Options{
		ScriptsWait:              c.ScriptsWait,
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
