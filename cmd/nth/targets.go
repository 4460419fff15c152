package main

import (
	"context"

	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/imds"
	"github.com/nth-project/nth/pkg/targets"
)

// balancers are the load balancers that are asked when they are done with the node; nil if none are to be.
func balancers(cfg config.Config, metadata *imds.Source) drain.LoadBalancers {
	if len(cfg.LoadBalancers.TargetGroups) == 0 {
		return nil
	}
	return targets.New(targetOptions(cfg, metadata))
}

func targetOptions(cfg config.Config, metadata *imds.Source) targets.Options {
	return targets.Options{
		Groups: cfg.LoadBalancers.TargetGroups, Region: cfg.AWS.Region, Endpoint: cfg.LoadBalancers.Endpoint, Metadata: metadata.Document,
	}
}

// targets checks, without changing anything, whether it can be told when load balancers have deregistered the node.
func (c *check) targets(ctx context.Context, cfg config.Config, metadata *imds.Source) {
	if len(cfg.LoadBalancers.TargetGroups) == 0 {
		return
	}
	const otherwise = "drain.load_balancer_wait holds evictions instead"
	if !cfg.Drain.ExcludeFromLoadBalancers {
		c.Warn("targets", "drain.exclude_from_load_balancers is off: the node is waited for only where somebody else takes it out")
	}
	found, err := targets.New(targetOptions(cfg, metadata)).Check(ctx)
	if err != nil {
		c.Warn("targets", "%s; %s", err, otherwise)
		return
	}
	for _, f := range found {
		if f.Err != nil {
			c.Warn("targets", "%s: %s; %s", f.Group, f.Err, otherwise)
		} else {
			c.OK("targets", "%s", f.Text)
		}
	}
}
