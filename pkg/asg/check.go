package asg

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/nth-project/nth/pkg/role"
)

// OwnGroup returns a client for the hooks of this instance, and the name of its Auto Scaling group; empty if it is in none. It changes
// nothing, and is for "nth check".
func OwnGroup(ctx context.Context, opts Options, s Settings) (client *HookClient, group string, err error) {
	client, instance, err := ownClient(ctx, opts, s, newReporter(func(HookReport) {}))
	if err != nil {
		return nil, "", err
	}
	group, _, err = client.groupOf(ctx, instance)
	return client, group, err
}

// ownClient returns a client for the hooks of this instance, and the instance's ID. It asks the metadata service for the ID and the
// region, and sends nothing to Auto Scaling. The client reports to r.
func ownClient(ctx context.Context, opts Options, settings Settings, r reporter) (client *HookClient, instance string, err error) {
	instance, cfg, err := role.Own(ctx, opts.Metadata, opts.AWS)
	if err != nil {
		return nil, "", err
	}
	client = NewHookClient(HookClientOptions{AWS: cfg, Requested: opts.Requested}, settings)
	client.reporter = r
	return client, instance, nil
}

// Explain says in words which of a group's hooks nth completes; completes is false if that is none. With launch, the hooks are those for
// launches, and which is empty if the group has none. Otherwise they are those for terminations.
func (c *HookClient) Explain(ctx context.Context, group string, launch bool) (which string, completes bool, err error) {
	hooks, err := c.describeHooks(ctx, group)
	if err != nil {
		return "", false, err
	}
	if launch && !slices.ContainsFunc(hooks, func(h hook) bool { return h.transition == launching }) {
		return "", false, nil // Most groups have none: this is not worth a line.
	}
	chosen, why := choose(group, hooks, c.rule(Action{Launch: launch}.transition()))
	return why, len(chosen) > 0, nil
}

// ExplainAbandon says in words what the setting on_incomplete = "abandon" means for a group. keeps says whether the group keeps a machine
// whose hook is abandoned.
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

// Permissions lists what a HookClient with these settings needs, for CheckPermission. It leaves out
// autoscaling:DescribeAutoScalingInstances, which only a Keeper needs: OwnGroup tries that.
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

// CheckPermission reports whether IAM allows an action for a group. It tries that without effect: the request names a hook and an instance
// that do not exist. With "", the group does not exist either, and a policy that is limited to some groups refuses the request. The error
// says why the answer is not known.
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
		return true, nil // Auto Scaling has looked for the hook or the instance, so IAM has allowed the request.
	}
	return err == nil, err
}
