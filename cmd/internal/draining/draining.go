// Package draining turns settings that nth and nth-queue have in common into what the policy and a drain go by.
package draining

import (
	"time"

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

// Options says how a node is drained.
func Options(c config.Drain) drain.Options {
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
