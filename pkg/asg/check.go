package asg

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/nth-project/nth/pkg/role"
)

// OwnGroup returns a client for the hooks of this instance, and the name of its group; empty if it is in none. It changes nothing.
func OwnGroup(ctx context.Context, opts Options, s Settings) (client *HookClient, group string, err error) {
	client, instance, err := ownClient(ctx, opts, s, newReporter(func(HookReport) {}))
	if err != nil {
		return nil, "", err
	}
	group, err = client.groupOf(ctx, instance)
	return client, group, err
}

// ownClient asks the metadata service for the instance's ID and region. It sends nothing to Auto Scaling.
func ownClient(ctx context.Context, opts Options, settings Settings, says reporter) (*HookClient, string, error) {
	instance, cfg, err := role.Own(ctx, opts.Metadata, opts.AWS)
	if err != nil {
		return nil, "", err
	}
	client := NewHookClient(HookClientOptions{AWS: cfg, Requested: opts.Requested}, settings)
	client.reporter = says
	return client, instance, nil
}

// Explain says in words which of a group's hooks nth completes, and reports whether there is any. With launch, it is about the hooks for
// launches, otherwise about those for terminations. which is empty if launch is set and the group has none for launches.
func (c *HookClient) Explain(ctx context.Context, group string, launch bool) (which string, ours bool, err error) {
	hooks, err := c.describeHooks(ctx, group)
	if err != nil {
		return "", false, err
	}
	if launch && !slices.ContainsFunc(hooks, func(h hook) bool { return h.transition == launching }) {
		return "", false, nil
	}
	chosen, why := choose(group, hooks, c.rule(launch))
	return why, len(chosen) > 0, nil
}

// ExplainAbandon says in words what on_incomplete = "abandon" means for a group. keeps reports whether the group keeps a machine whose hook is
// abandoned.
func (c *HookClient) ExplainAbandon(ctx context.Context, group string) (meaning string, keeps bool, err error) {
	keeps, err = c.retains(ctx, group)
	switch {
	case err != nil:
		return "", false, err
	case keeps:
		return fmt.Sprintf("out of time with pods left, hooks are abandoned, and the Auto Scaling group %s keeps the machine (Terminating:Retained)", group), true, nil
	}
	return willNotKeep(group), false, nil
}

// Permission is an IAM action, by its name in policies, and what its absence means.
type Permission struct{ Name, Without string }

// Permissions lists what a HookClient with these settings needs. Only a Keeper needs
// autoscaling:DescribeAutoScalingInstances.
func Permissions(s Settings) []Permission {
	permissions := []Permission{
		{heartbeat, without(heartbeat)},
		{complete, without(complete)},
		{describeHooks, "hooks are taken to have a timeout of " + shortTimeout.String() + ", and only those are completed that the settings name"},
	}
	if s.Complete && s.Abandon {
		permissions = append(permissions, Permission{describeGroups, without(describeGroups)})
	}
	return permissions
}

// There is no hook, group or instance of these names: requests about them have no effect.
const noHook, noGroup, noInstance = "nth-check-no-such-hook", "nth-check-no-such-group", "i-00000000000000000"

// CheckPermission tries a permission without effect, by a request for a group, but for a hook and an instance that do not exist. With "" the group
// does not exist either, and a policy that is limited to some groups refuses that.
func (c *HookClient) CheckPermission(ctx context.Context, p Permission, group string) (allowed bool, err error) {
	if group == "" {
		group = noGroup
	}
	nothing := Action{Group: group, Hook: noHook, Instance: noInstance}
	switch p.Name {
	case heartbeat:
		err = c.heartbeat(ctx, nothing)
	case complete:
		err = c.end(ctx, nothing, proceed)
	case describeGroups:
		_, err = c.retains(ctx, group)
	default:
		_, err = c.describeHooks(ctx, group)
	}
	if _, refused := errors.AsType[refusedError](err); refused {
		return false, nil
	}
	if isInvalid(err) {
		return true, nil
	}
	return err == nil, err
}
