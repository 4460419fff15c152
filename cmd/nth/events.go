package main

import (
	"context"

	"github.com/sirupsen/logrus"

	"github.com/nth-project/nth/cmd/internal/daemon"
	"github.com/nth-project/nth/pkg/asg"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/imds"
	"github.com/nth-project/nth/pkg/logind"
	"github.com/nth-project/nth/pkg/metrics"
	"github.com/nth-project/nth/pkg/role"
	"github.com/nth-project/nth/pkg/systemd"
	"github.com/nth-project/nth/pkg/targets"
	"github.com/nth-project/nth/pkg/wait"
)

// newHooks returns the keeper of lifecycle hooks, which holds the hook of a termination and completes it after the drain. A keeper in a dry run
// does nothing. Its reports are shown in the status, and logged.
func newHooks(metadata *imds.Source, cfg config.Config, board *statusReporter, meter *metrics.Metrics, log *logrus.Entry) *asg.Keeper {
	settings := daemon.Hooks(cfg.Events.ASGTermination)
	settings.Complete = settings.Complete && !cfg.DryRun
	options := hookOptions(metadata)
	options.Requested = daemon.CountHooks(meter)
	options.Report = func(n asg.HookReport) {
		board.set(func() { board.hook = n.Text })
		daemon.LogHook(log.WithField(systemd.FieldEventID, n.Event.ID).WithField(systemd.FieldEventKind, string(n.Event.Kind)), n)
	}
	return asg.New(options, settings)
}

// hookOptions returns how Auto Scaling is reached: with the credentials of the instance's role, which the metadata service has.
func hookOptions(metadata *imds.Source) asg.Options {
	return asg.Options{AWS: role.Metadata(metadata.Document).Account, Metadata: metadata.Document}
}

// hook checks, without changing anything, whether nth can complete a termination hook of the instance's Auto Scaling group.
func (c *check) hook(ctx context.Context, metadata *imds.Source) {
	settings := daemon.Hooks(c.cfg.Events.ASGTermination)
	if !settings.Complete {
		c.OK("hook", "lifecycle hooks are disabled by configuration: events.%s", event.ASGTermination)
		return
	}
	client, group, err := asg.OwnGroup(ctx, hookOptions(metadata), settings)
	finding, completes := "the instance is in no Auto Scaling group", false // completes: nth completes one of the group's hooks
	if err == nil && group != "" {
		const launch = false // The check is about hooks for terminations.
		finding, completes, err = client.Explain(ctx, group, launch)
	}
	switch {
	case err != nil:
		c.Warn("hook", "%s; nth would drain within the budget, and leave lifecycle hooks to their timeouts", err)
	case completes, group == "":
		c.OK("hook", "%s", finding)
	default:
		c.Warn("hook", "%s", finding)
	}
	if !completes { // nth needs no right then.
		return
	}
	const needed = false // Without the rights, nth drains within its budget.
	c.Rights(ctx, "hook", needed, client.Rights(group))
}

// balancers returns the wait for load balancers that deregister the node; nil if the settings name no target group.
func balancers(cfg config.Config, metadata *imds.Source) wait.Blocker {
	if len(cfg.LoadBalancers.TargetGroups) == 0 {
		return nil
	}
	return targets.New(targetOptions(cfg, metadata))
}

// targetOptions returns the target groups in the settings, and how nth asks about them: with the instance's role.
func targetOptions(cfg config.Config, metadata *imds.Source) targets.Options {
	return targets.Options{Groups: cfg.LoadBalancers.TargetGroups, AWS: role.Metadata(metadata.Document).Account, Metadata: metadata.Document}
}

// targets checks, without changing anything, whether nth can see when load balancers have deregistered the node.
func (c *check) targets(ctx context.Context, metadata *imds.Source) {
	if len(c.cfg.LoadBalancers.TargetGroups) == 0 {
		return
	}
	const otherwise = "drain.load_balancer_wait holds evictions instead"
	found, err := targets.New(targetOptions(c.cfg, metadata)).Check(ctx)
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

// beforeDrain is the systemd target to which operators add units that run before a drain.
const beforeDrain = "nth-before-drain.target"

// scripts runs the units of beforeDrain on a host, and waits for them.
type scripts struct{ host logind.Host }

// Wait implements wait.Blocker: it starts beforeDrain, and returns when its units have run.
func (s scripts) Wait(ctx context.Context, _ wait.Node, _ func(string)) error {
	return s.host.StartTarget(ctx, beforeDrain)
}
