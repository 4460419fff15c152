package asg

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/smithy-go"
)

// Checkup is what can be found out about lifecycle hooks while nothing is announced.
type Checkup struct {
	// Err is why that could not be found out: a missing permission, mostly.
	Err error
	// Found says which hooks there are, and which of them are ours; empty if the instance is in no group. Ours tells
	// whether any is.
	Found string
	Ours  bool
	// Keeps says what on_incomplete = "abandon" comes to, and Kept whether hooks would be abandoned; empty where people do not ask for it.
	Keeps string
	Kept  bool
	// Missing is what keeps heartbeats and completions of ours from working, a line for each; nil if nothing is known to.
	Missing error
}

// Check looks for the group and its hooks, tries the permissions for ours, and changes nothing.
func Check(ctx context.Context, opts Options, s Settings) Checkup {
	service, err := newService(ctx, opts, nil)
	if err != nil {
		return Checkup{Err: err}
	}
	group, _, err := service.place(ctx)
	if err != nil || group == "" {
		return Checkup{Err: err}
	}
	hooks, err := service.hooks(ctx, group)
	if err != nil {
		return Checkup{Err: err}
	}
	ours, why := choose(group, hooks, rule{transition: terminating, named: s.Hooks})
	found := Checkup{Found: why, Ours: len(ours) > 0}
	if found.Ours {
		found.Missing = errors.Join(service.try(ctx, heartbeat, group), service.try(ctx, complete, group))
	}
	if found.Ours && s.Abandon {
		found.retention(ctx, service, group)
	}
	return found
}

// retention finds out whether the group keeps a machine whose hook is abandoned.
func (c *Checkup) retention(ctx context.Context, s *service, group string) {
	keeps, err := s.retains(ctx, group)
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

// try tries a permission for the group, with the name of a hook that it has not.
func (s *service) try(ctx context.Context, permission, group string) error {
	allowed, err := may(ctx, s.sdk, permission, group)
	if err == nil && !allowed {
		err = refusedError{Action: permission}
		return fmt.Errorf("%w; %s", err, without(err))
	}
	return err
}

// There is no hook, group or instance of these names: what is asked of Auto Scaling about them has no effect.
const nobodysHook, nobodysGroup, nobodysInstance = "nth-check-no-such-hook", "nth-check-no-such-group", "i-00000000000000000"

// Permission is an IAM action, by its name in policies, with what it means to be without it.
type Permission struct{ Name, Without string }

// ToldPermissions lists what a HookClient needs.
func ToldPermissions(s Settings) []Permission {
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

// Explain says which of a group's hooks are ours, and whether any is; nothing of those for launches, where it has none.
func (t *HookClient) Explain(ctx context.Context, group string, launch bool) (found string, ours bool, err error) {
	hooks, err := (&service{sdk: t.sdk}).hooks(ctx, group)
	if err != nil {
		return "", false, err
	}
	r := t.rule(Action{Launch: launch})
	if launch && !slices.ContainsFunc(hooks, func(h hook) bool { return h.transition == launching }) {
		return "", false, nil
	}
	chosen, why := choose(group, hooks, r)
	return why, len(chosen) > 0, nil
}

// May tries a permission without effect: for a group, but for no hook that it has. With "" the group is made up, and a
// policy that is limited to some groups refuses that. What Auto Scaling finds wrong with the request it has looked at,
// so that is allowed.
func (t *HookClient) May(ctx context.Context, p Permission, group string) (bool, error) {
	if group == "" {
		group = nobodysGroup
	}
	return may(ctx, t.sdk, p.Name, group)
}

func may(ctx context.Context, sdk *autoscaling.Client, permission, group string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	var err error
	switch permission {
	case heartbeat:
		_, err = sdk.RecordLifecycleActionHeartbeat(ctx, &autoscaling.RecordLifecycleActionHeartbeatInput{
			AutoScalingGroupName: &group, LifecycleHookName: aws.String(nobodysHook), InstanceId: aws.String(nobodysInstance),
		})
	case complete:
		_, err = sdk.CompleteLifecycleAction(ctx, &autoscaling.CompleteLifecycleActionInput{
			AutoScalingGroupName: &group, LifecycleHookName: aws.String(nobodysHook), InstanceId: aws.String(nobodysInstance),
			LifecycleActionResult: aws.String(proceed),
		})
	case describeInstances:
		_, err = sdk.DescribeAutoScalingInstances(ctx, &autoscaling.DescribeAutoScalingInstancesInput{InstanceIds: []string{nobodysInstance}})
	case terminateInstance:
		_, err = sdk.TerminateInstanceInAutoScalingGroup(ctx, &autoscaling.TerminateInstanceInAutoScalingGroupInput{
			InstanceId: aws.String(nobodysInstance), ShouldDecrementDesiredCapacity: aws.Bool(false),
		})
	case detachInstances:
		_, err = sdk.DetachInstances(ctx, &autoscaling.DetachInstancesInput{
			AutoScalingGroupName: &group, InstanceIds: []string{nobodysInstance}, ShouldDecrementDesiredCapacity: aws.Bool(false),
		})
	case describeGroups:
		_, err = sdk.DescribeAutoScalingGroups(ctx, &autoscaling.DescribeAutoScalingGroupsInput{AutoScalingGroupNames: []string{group}})
	default:
		_, err = sdk.DescribeLifecycleHooks(ctx, &autoscaling.DescribeLifecycleHooksInput{AutoScalingGroupName: &group})
	}
	if api, ok := errors.AsType[smithy.APIError](err); ok && api.ErrorCode() == "ValidationError" {
		return true, nil
	}
	err = explain(permission, err)
	if _, refused := errors.AsType[refusedError](err); refused {
		return false, nil
	}
	return err == nil, err
}
