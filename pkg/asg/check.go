package asg

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// Checkup is the result of Check.
type Checkup struct {
	// Err is why the check could not be made: a missing permission, mostly.
	Err error
	// Found says which hooks there are, and which of them are ours; empty if the instance is in no group. Ours is set if
	// any is.
	Found string
	Ours  bool
	// Keeps says what on_incomplete = "abandon" means here; empty where it is not set. Kept is set if hooks would be abandoned.
	Keeps string
	Kept  bool
	// Missing has the permissions that are missing for our hooks, a line for each; nil if none is known to be.
	Missing error
}

// Check looks for the group and its hooks, tries the permissions for ours, and changes nothing.
func Check(ctx context.Context, opts Options, s Settings) Checkup {
	opts.Requested = nil
	c, instance, err := ownClient(ctx, opts, nil, s, func(HookReport) {})
	if err != nil {
		return Checkup{Err: err}
	}
	group, _, err := c.place(ctx, instance)
	if err != nil || group == "" {
		return Checkup{Err: err}
	}
	hooks, err := c.describeHooks(ctx, group)
	if err != nil {
		return Checkup{Err: err}
	}
	ours, why := choose(group, hooks, c.rule(false))
	found := Checkup{Found: why, Ours: len(ours) > 0}
	if found.Ours {
		found.Missing = errors.Join(c.try(ctx, heartbeat, group), c.try(ctx, complete, group))
	}
	if found.Ours && s.Abandon {
		found.retention(ctx, c, group)
	}
	return found
}

// retention finds out whether the group keeps a machine whose hook is abandoned.
func (c *Checkup) retention(ctx context.Context, client *HookClient, group string) {
	keeps, err := client.retains(ctx, group)
	switch {
	case unpermitted(err):
		c.Missing = errors.Join(c.Missing, fmt.Errorf("%w; %s", err, without(err)))
	case err != nil:
		c.Missing = errors.Join(c.Missing, err)
	case keeps:
		c.Keeps, c.Kept = willKeep(group), true
	default:
		c.Keeps = willNotKeep(group)
	}
}

// try returns an error if a permission is missing for the group.
func (c *HookClient) try(ctx context.Context, permission, group string) error {
	allowed, err := c.may(ctx, permission, group)
	if err == nil && !allowed {
		err = refusedError{Action: permission}
		return fmt.Errorf("%w; %s", err, without(err))
	}
	return err
}

// There is no hook, group or instance of these names: requests about them have no effect.
const noHook, noGroup, noInstance = "nth-check-no-such-hook", "nth-check-no-such-group", "i-00000000000000000"

// Permission is an IAM action, by its name in policies, and what its absence means.
type Permission struct{ Name, Without string }

// HookClientPermissions lists what a HookClient needs.
func HookClientPermissions(s Settings) []Permission {
	permissions := []Permission{
		{heartbeat, "a machine is held for one timeout of its hook only"},
		{complete, "hooks are left to their timeouts"},
		{describeHooks, "hooks are taken to have a timeout of " + shortTimeout.String() + ", and only those are completed that the settings name"},
	}
	if s.Complete && s.Abandon {
		permissions = append(permissions, Permission{describeGroups, "no hook is abandoned"})
	}
	const stay = "instances stay that are drained for maintenance or a rebalance recommendation"
	switch s.AfterDrain {
	case Terminate:
		permissions = append(permissions, Permission{describeInstances, stay}, Permission{terminateInstance, stay})
	case Detach:
		permissions = append(permissions, Permission{describeInstances, stay}, Permission{detachInstances, stay})
	case Keep:
	}
	return permissions
}

// Explain says which of a group's hooks are ours, and whether any is. found is empty for launches in a group without such hooks.
func (c *HookClient) Explain(ctx context.Context, group string, launch bool) (found string, ours bool, err error) {
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

// CheckPermission tries a permission without effect, by a request for a group, but for a hook and an instance that do not exist. With "" the group
// does not exist either, and a policy that is limited to some groups refuses that.
func (c *HookClient) CheckPermission(ctx context.Context, p Permission, group string) (bool, error) {
	if group == "" {
		group = noGroup
	}
	return c.may(ctx, p.Name, group)
}

func (c *HookClient) may(ctx context.Context, permission, group string) (bool, error) {
	nothing := Action{Group: group, Hook: noHook, Instance: noInstance}
	var err error
	switch permission {
	case heartbeat:
		err = c.heartbeat(ctx, nothing)
	case complete:
		err = c.complete(ctx, nothing, proceed)
	case describeInstances:
		_, _, err = c.place(ctx, noInstance)
	case terminateInstance:
		err = c.remove(ctx, group, noInstance, Terminate)
	case detachInstances:
		err = c.remove(ctx, group, noInstance, Detach)
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
