package asg

import (
	"context"

	"github.com/nth-project/nth/pkg/role"
)

// OwnGroup returns, for "nth check", a client for the hooks of this instance, and the name of the instance's Auto Scaling group. group is empty
// if the instance is in no group. OwnGroup changes nothing. The client reports nothing.
func OwnGroup(ctx context.Context, opts Options, s Settings) (client *HookClient, group string, err error) {
	client, instance, err := ownClient(ctx, opts, s, newReporter(func(HookReport) {}))
	if err != nil {
		return nil, "", err
	}
	group, _, err = client.groupOf(ctx, instance)
	return client, group, err
}

// ownClient returns a client for the hooks of this instance, and the instance's ID. The client reports to r. ownClient asks the metadata service
// for the ID and the region, and sends nothing to Auto Scaling.
func ownClient(ctx context.Context, opts Options, settings Settings, r *reporter) (client *HookClient, instance string, err error) {
	instance, cfg, err := role.Own(ctx, opts.Metadata, opts.AWS)
	if err != nil {
		return nil, "", err
	}
	client = NewHookClient(HookClientOptions{AWS: cfg, Requested: opts.Requested}, settings)
	client.reporter = r // The client shares r, so that nothing is reported twice.
	return client, instance, nil
}

// Explain says which of a group's hooks nth completes, in words for "nth check" and "nth-queue check". completes is false if nth completes none.
// The hooks are those for launches if launch is true, and those for terminations otherwise.
func (c *HookClient) Explain(ctx context.Context, group string, launch bool) (which string, completes bool, err error) {
	chosen, which, err := c.choose(ctx, group, launch)
	return which, len(chosen) > 0, err
}

// No hook and no instance have these names, so requests about them have no effect.
const noHook, noInstance = "nth-check-no-such-hook", "i-00000000000000000"

// Rights lists the permissions that a HookClient needs for a group. Trying them touches no lifecycle action. The list lacks
// autoscaling:DescribeAutoScalingInstances, which OwnGroup tries.
func (c *HookClient) Rights(group string) []role.Right {
	nothing := Action{Group: group, Hook: noHook, Instance: noInstance}
	return []role.Right{
		{Name: heartbeat, Without: without(heartbeat), Try: func(ctx context.Context) error { return c.heartbeat(ctx, nothing) }},
		{Name: complete, Without: without(complete), Try: func(ctx context.Context) error { return c.end(ctx, nothing, Continue) }},
		{Name: describeHooks, Without: without(describeHooks), Try: func(ctx context.Context) error {
			_, err := c.describeHooks(ctx, group)
			return err
		}},
	}
}
