package asg

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling/types"

	"github.com/nth-project/nth/pkg/role"
)

// The permissions, by their names in IAM policies.
const (
	describeInstances = "autoscaling:DescribeAutoScalingInstances"
	describeHooks     = "autoscaling:DescribeLifecycleHooks"
	heartbeat         = "autoscaling:RecordLifecycleActionHeartbeat"
	complete          = "autoscaling:CompleteLifecycleAction"
)

// answerLimit is how long one request may take, including the one for credentials.
const answerLimit = 10 * time.Second

// The transitions that a hook can be for, by their names in the API.
const (
	terminating = "autoscaling:EC2_INSTANCE_TERMINATING"
	launching   = "autoscaling:EC2_INSTANCE_LAUNCHING"
)

// errNothingWaits means that there is no lifecycle action to hold or complete: it has ended.
var errNothingWaits = errors.New("no lifecycle action waits")

// refusedError is a request that IAM does not allow.
type refusedError = role.RefusedError

// unpermitted reports whether a request failed because IAM does not allow it, or because the instance has no role.
func unpermitted(err error) bool {
	_, refused := errors.AsType[refusedError](err)
	return refused || errors.Is(err, role.ErrNoRole)
}

// without says in words what nth does if it lacks the permission for an action.
func without(action string) string {
	switch action {
	case heartbeat:
		return "the machine is held for one timeout of the hook only"
	case complete:
		return "the hook is left to its timeout"
	default: // Without describeInstances or describeHooks, nth does not know the hooks.
		return "the node is drained within its budget, and lifecycle hooks are left to their timeouts"
	}
}

// firstPause and longestPause bound the pauses after requests that fail.
const firstPause, longestPause = time.Second, time.Minute

// newClient returns a client that retries nothing: each caller knows how long its request is worth retrying.
func newClient(cfg aws.Config) *autoscaling.Client {
	return autoscaling.NewFromConfig(cfg, func(o *autoscaling.Options) { o.Retryer = aws.NopRetryer{} })
}

// nothingWaits matches the texts by which Auto Scaling says that nothing waits: the action has ended, or the hook or the group is gone. The
// API has no error code for that.
var nothingWaits = regexp.MustCompile(`No active Lifecycle Action|No Lifecycle Hook found|name not found`)

// call makes one request. Its error is in plain words, and is errNothingWaits if Auto Scaling says so.
func call[In, Out any](
	ctx context.Context, action string, request func(context.Context, *In, ...func(*autoscaling.Options)) (*Out, error), in *In,
) (*Out, error) {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	out, err := request(ctx, in)
	if isInvalid(err) && nothingWaits.MatchString(err.Error()) {
		return nil, fmt.Errorf("%w: %w", errNothingWaits, err)
	}
	return out, role.Explain(action, answerLimit, err)
}

// isInvalid reports whether Auto Scaling has found a request wrong. It looks at a request only after IAM has allowed it.
func isInvalid(err error) bool { return role.Code(err) == "ValidationError" }

// groupOf asks for the group that an instance is in, and the instance's state in it, such as "Terminating:Wait". Both are empty if the
// instance is in no group.
func (c *HookClient) groupOf(ctx context.Context, instance string) (group, state string, err error) {
	out, err := call(ctx, describeInstances, c.sdk.DescribeAutoScalingInstances,
		&autoscaling.DescribeAutoScalingInstancesInput{InstanceIds: []string{instance}})
	if err != nil {
		return "", "", err
	}
	for _, i := range out.AutoScalingInstances {
		if aws.ToString(i.InstanceId) == instance {
			return aws.ToString(i.AutoScalingGroupName), aws.ToString(i.LifecycleState), nil
		}
	}
	return "", "", nil
}

// describeHooks asks for a group's hooks. A group that does not exist has none.
func (c *HookClient) describeHooks(ctx context.Context, group string) ([]hook, error) {
	out, err := call(ctx, describeHooks, c.sdk.DescribeLifecycleHooks, &autoscaling.DescribeLifecycleHooksInput{AutoScalingGroupName: &group})
	if errors.Is(err, errNothingWaits) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var hooks []hook
	for _, h := range out.LifecycleHooks {
		hooks = append(hooks, newHook(h))
	}
	return hooks, nil
}

// The limits of a hook where the API does not tell them: an hour without a heartbeat, and a hundred times that but no
// more than two days in all.
// https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_PutLifecycleHook.html
const (
	defaultTimeout = time.Hour
	longestGlobal  = 48 * time.Hour
)

// newHook returns what this package needs of a hook, with limits also where the API names none.
func newHook(of types.LifecycleHook) hook {
	h := hook{
		name: aws.ToString(of.LifecycleHookName), transition: aws.ToString(of.LifecycleTransition), notifies: aws.ToString(of.NotificationTargetARN),
		timeout: time.Duration(aws.ToInt32(of.HeartbeatTimeout)) * time.Second, global: time.Duration(aws.ToInt32(of.GlobalTimeout)) * time.Second,
	}
	if h.timeout <= 0 {
		h.timeout = defaultTimeout
	}
	if h.global <= 0 {
		h.global = min(100*h.timeout, longestGlobal)
	}
	return h
}

// heartbeat makes Auto Scaling wait for another timeout of the hook.
func (c *HookClient) heartbeat(ctx context.Context, a Action) error {
	_, err := call(ctx, heartbeat, c.sdk.RecordLifecycleActionHeartbeat, &autoscaling.RecordLifecycleActionHeartbeatInput{
		AutoScalingGroupName: &a.Group, LifecycleHookName: &a.Hook, InstanceId: &a.Instance, LifecycleActionToken: a.token(),
	})
	c.count(ctx, Heartbeat, err)
	return err
}

// end completes a lifecycle action, so that Auto Scaling waits for its hook no longer. The error is errNothingWaits if it does not wait.
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
	// Heartbeat: wait for another timeout. Continue and Abandon end the waiting, each with its result. ABANDON ends that for all other hooks,
	// too. Auto Scaling keeps the instance then if the group's instance lifecycle policy says TerminateHookAbandon=retain:
	// https://docs.aws.amazon.com/autoscaling/ec2/userguide/instance-lifecycle-policy.html
	Heartbeat Request = "heartbeat"
	Continue  Request = "continue"
	Abandon   Request = "abandon"
)

// Requests lists all requests.
func Requests() []Request { return []Request{Heartbeat, Continue, Abandon} }

// Answer is what came of a Request. Its text never changes, either.
type Answer string

// The answers.
const (
	OK Answer = "ok"
	// Nothing: the hook is over already, or does not exist.
	Nothing Answer = "nothing-waits"
	// NotAllowed: the role does not allow it, or there is none.
	NotAllowed Answer = "refused"
	Throttled  Answer = "throttled"
	// Failed: Auto Scaling does not answer, or not as it should.
	Failed Answer = "failed"
)

// Answers lists all answers.
func Answers() []Answer { return []Answer{OK, Nothing, NotAllowed, Throttled, Failed} }

// count passes what came of a request to HookClientOptions.Requested, which counts it for the metrics. It leaves out canceled requests.
func (c *HookClient) count(ctx context.Context, what Request, err error) {
	if c.opts.Requested == nil || ctx.Err() != nil {
		return
	}
	answer := Failed
	switch {
	case err == nil:
		answer = OK
	case errors.Is(err, errNothingWaits):
		answer = Nothing
	case unpermitted(err):
		answer = NotAllowed
	case role.Throttled(err):
		answer = Throttled
	}
	c.opts.Requested(what, answer)
}
