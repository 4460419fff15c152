package asg

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"

	"github.com/nth-project/nth/pkg/role"
)

// The permissions, by their names in IAM policies.
const (
	describeInstances = "autoscaling:DescribeAutoScalingInstances"
	describeHooks     = "autoscaling:DescribeLifecycleHooks"
	heartbeat         = "autoscaling:RecordLifecycleActionHeartbeat"
	complete          = "autoscaling:CompleteLifecycleAction"
)

// answerLimit is how long one request may take, including the request for credentials that may come before.
const answerLimit = 10 * time.Second

// firstPause and longestPause bound the pauses after requests that fail.
const firstPause, longestPause = time.Second, time.Minute

// The transitions that a hook can be for, by their names in the API.
const (
	terminating = "autoscaling:EC2_INSTANCE_TERMINATING"
	launching   = "autoscaling:EC2_INSTANCE_LAUNCHING"
)

// errNoAction means that there is no lifecycle action to hold or complete: it has ended.
var errNoAction = errors.New("there is no lifecycle action")

// unpermitted reports whether err says that IAM does not allow a request, or that the instance has no role. It is false for nil.
func unpermitted(err error) bool {
	_, refused := errors.AsType[role.RefusedError](err)
	return refused || errors.Is(err, role.ErrNoRole)
}

// without says what follows, for a message, if nth lacks the permission for an action.
func without(action string) string {
	switch action {
	case heartbeat:
		return "Auto Scaling waits only until the hook times out"
	case complete:
		return "the hook is left to its timeout"
	default: // Without describeInstances or describeHooks, nth does not know the hooks.
		return "drains continue, and lifecycle hooks are left to their timeouts"
	}
}

// noActionText matches the texts by which Auto Scaling says that there is no lifecycle action: it has ended, or the hook or the group is gone. Auto
// Scaling has no error code of its own for that.
var noActionText = regexp.MustCompile(`No active Lifecycle Action|No Lifecycle Hook found|name not found`)

// call makes one request for an action, by a method of the SDK's client. Its error is role.Explain's, in plain words, or wraps errNoAction if there is
// no lifecycle action.
func call[In, Out any](
	ctx context.Context, action string, request func(context.Context, *In, ...func(*autoscaling.Options)) (*Out, error), in *In,
) (*Out, error) {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	out, err := request(ctx, in)
	if role.Code(err) == "ValidationError" && noActionText.MatchString(err.Error()) {
		return nil, fmt.Errorf("%w: %w", errNoAction, err)
	}
	return out, role.Explain(action, answerLimit, err) // Explain returns nil for nil.
}

// groupOf asks for the group that an instance is in, and for the instance's lifecycle state in the group, such as "Terminating:Wait". Both are
// empty if the instance is in no group.
func (c *HookClient) groupOf(ctx context.Context, instance string) (group, state string, err error) {
	out, err := call(ctx, describeInstances, c.sdk.DescribeAutoScalingInstances,
		&autoscaling.DescribeAutoScalingInstancesInput{InstanceIds: []string{instance}})
	if err != nil || len(out.AutoScalingInstances) == 0 {
		return "", "", err
	}
	found := out.AutoScalingInstances[0]
	return aws.ToString(found.AutoScalingGroupName), aws.ToString(found.LifecycleState), nil
}

// describeHooks asks for a group's hooks. A group that does not exist has none.
func (c *HookClient) describeHooks(ctx context.Context, group string) (hooks []hook, err error) {
	out, err := call(ctx, describeHooks, c.sdk.DescribeLifecycleHooks, &autoscaling.DescribeLifecycleHooksInput{AutoScalingGroupName: &group})
	if errors.Is(err, errNoAction) {
		return nil, nil // The group does not exist.
	}
	if err != nil {
		return nil, err
	}
	for _, h := range out.LifecycleHooks {
		hooks = append(hooks, hook{
			name: aws.ToString(h.LifecycleHookName), transition: aws.ToString(h.LifecycleTransition), notifies: aws.ToString(h.NotificationTargetARN),
			timeout: cmp.Or(time.Duration(aws.ToInt32(h.HeartbeatTimeout))*time.Second, leastTimeout),
		})
	}
	return hooks, nil
}

// heartbeat makes Auto Scaling wait for another timeout of the hook. The error wraps errNoAction if Auto Scaling does not wait any more.
func (c *HookClient) heartbeat(ctx context.Context, a Action) error {
	_, err := call(ctx, heartbeat, c.sdk.RecordLifecycleActionHeartbeat, &autoscaling.RecordLifecycleActionHeartbeatInput{
		AutoScalingGroupName: &a.Group, LifecycleHookName: &a.Hook, InstanceId: &a.Instance, LifecycleActionToken: a.token(),
	})
	c.count(ctx, Heartbeat, err)
	return err
}

// end completes a lifecycle action with the result Continue or Abandon: Auto Scaling stops waiting at the hook. The error wraps errNoAction
// if Auto Scaling does not wait any more.
func (c *HookClient) end(ctx context.Context, a Action, result Request) error {
	_, err := call(ctx, complete, c.sdk.CompleteLifecycleAction, &autoscaling.CompleteLifecycleActionInput{
		AutoScalingGroupName: &a.Group, LifecycleHookName: &a.Hook, InstanceId: &a.Instance, LifecycleActionToken: a.token(),
		LifecycleActionResult: aws.String(strings.ToUpper(string(result))),
	})
	c.count(ctx, result, err)
	return err
}

// Request is what is asked of Auto Scaling about a hook that waits. Its text never changes: metrics have it as a label.
type Request string

// The requests.
const (
	// Heartbeat: wait for another timeout. Continue and Abandon: stop waiting, with the result CONTINUE or ABANDON. After ABANDON, Auto Scaling
	// stops waiting at all other hooks, too, and keeps the instance if the group's instance lifecycle policy says TerminateHookAbandon=retain:
	// https://docs.aws.amazon.com/autoscaling/ec2/userguide/instance-lifecycle-policy.html
	Heartbeat Request = "heartbeat"
	Continue  Request = "continue"
	Abandon   Request = "abandon"
)

// Requests lists all requests.
func Requests() []Request { return []Request{Heartbeat, Continue, Abandon} }

// Answer is how a Request ended. Its text never changes, either.
type Answer string

// The answers.
const (
	OK Answer = "ok"
	// Nothing: the hook does not wait any more, or does not exist.
	Nothing Answer = "nothing-waits"
	// NotAllowed: IAM does not allow the request, or the instance has no role.
	NotAllowed Answer = "refused"
	// Failed: Auto Scaling throttles the request, does not answer, or answers with another error.
	Failed Answer = "failed"
)

// Answers lists all answers.
func Answers() []Answer { return []Answer{OK, Nothing, NotAllowed, Failed} }

// count reports to HookClientOptions.Requested how a request ended, for the metrics. It leaves out a request that the end of ctx has canceled.
func (c *HookClient) count(ctx context.Context, what Request, err error) {
	if c.opts.Requested == nil || ctx.Err() != nil {
		return
	}
	answer := Failed // for an error without a case below
	switch {
	case err == nil:
		answer = OK
	case errors.Is(err, errNoAction):
		answer = Nothing
	case unpermitted(err):
		answer = NotAllowed
	}
	c.opts.Requested(what, answer)
}
