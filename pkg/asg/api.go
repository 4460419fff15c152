package asg

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling/types"
	"github.com/aws/smithy-go"

	"github.com/nth-project/nth/pkg/role"
)

// The permissions, by their names in IAM policies.
const (
	describeInstances = "autoscaling:DescribeAutoScalingInstances"
	describeHooks     = "autoscaling:DescribeLifecycleHooks"
	heartbeat         = "autoscaling:RecordLifecycleActionHeartbeat"
	complete          = "autoscaling:CompleteLifecycleAction"
	describeGroups    = "autoscaling:DescribeAutoScalingGroups"
	terminateInstance = "autoscaling:TerminateInstanceInAutoScalingGroup"
	detachInstances   = "autoscaling:DetachInstances"
)

// Permissions lists the IAM actions that a Keeper needs. To abandon hooks it needs RetainPermission, too.
func Permissions() []string {
	return []string{describeInstances, describeHooks, heartbeat, complete}
}

// RetainPermission is the IAM action that tells whether a group keeps an instance whose hook is abandoned.
const RetainPermission = describeGroups

// answerLimit is how long Auto Scaling may take to answer one request, with the look for credentials.
const answerLimit = 10 * time.Second

// The transitions that a hook can be for, by their names in the API.
const (
	terminating = "autoscaling:EC2_INSTANCE_TERMINATING"
	launching   = "autoscaling:EC2_INSTANCE_LAUNCHING"
)

// errNothingWaits: there is no lifecycle action to hold or complete.
var errNothingWaits = errors.New("no lifecycle action waits")

// refusedError is a request that IAM does not allow.
type refusedError = role.RefusedError

// service is Auto Scaling, asked about one instance.
type service struct {
	sdk      *autoscaling.Client
	instance string
	// token names the one action of the instance at a hook that is meant, so that none which came after it is; nil if it is not known.
	token     *string
	requested func(Request, Answer) // nil if nobody wants to know
}

// newService asks the metadata service who and where the instance is. It sends nothing to Auto Scaling.
func newService(ctx context.Context, opts Options, dial dialer) (*service, error) {
	instance, err := opts.Metadata.Line(ctx, "instance-id")
	if err != nil {
		return nil, fmt.Errorf("asking the metadata service who this is: %w", err)
	}
	cfg, err := role.Config(ctx, role.Options{Metadata: opts.Metadata, Region: opts.Region, Endpoint: opts.Endpoint, Dial: dial})
	if err != nil {
		return nil, err
	}
	return &service{sdk: newClient(cfg), instance: instance, requested: opts.Requested}, nil
}

// newClient returns a client that repeats nothing: each request is repeated where it is made, where it is known what it is
// worth.
func newClient(cfg aws.Config) *autoscaling.Client {
	return autoscaling.NewFromConfig(cfg, func(o *autoscaling.Options) { o.Retryer = aws.NopRetryer{} })
}

// place asks for the group that the instance is in, and for its state there. The group is empty if it is in none.
func (s *service) place(ctx context.Context) (group, state string, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	out, err := s.sdk.DescribeAutoScalingInstances(ctx, &autoscaling.DescribeAutoScalingInstancesInput{InstanceIds: []string{s.instance}})
	if err != nil {
		return "", "", explain(describeInstances, err)
	}
	for _, i := range out.AutoScalingInstances {
		if aws.ToString(i.InstanceId) == s.instance {
			return aws.ToString(i.AutoScalingGroupName), aws.ToString(i.LifecycleState), nil
		}
	}
	return "", "", nil
}

// hooks asks for the group's hooks.
func (s *service) hooks(ctx context.Context, group string) ([]hook, error) {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	out, err := s.sdk.DescribeLifecycleHooks(ctx, &autoscaling.DescribeLifecycleHooksInput{AutoScalingGroupName: &group})
	if err != nil {
		return nil, explain(describeHooks, err)
	}
	var hooks []hook
	for _, h := range out.LifecycleHooks {
		hooks = append(hooks, newHook(h))
	}
	return hooks, nil
}

// The limits of a hook where the API does not tell them: an hour without a heartbeat, and a hundred such times but no
// more than two days in all. No hook waits for longer than longestTimeout without a heartbeat.
const (
	defaultTimeout = time.Hour
	longestTimeout = 2 * time.Hour
	longestGlobal  = 48 * time.Hour
)

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

// heartbeat makes Auto Scaling wait for another timeout.
func (s *service) heartbeat(ctx context.Context, group, name string) error {
	asking, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	_, err := s.sdk.RecordLifecycleActionHeartbeat(asking, &autoscaling.RecordLifecycleActionHeartbeatInput{
		AutoScalingGroupName: &group, LifecycleHookName: &name, InstanceId: &s.instance, LifecycleActionToken: s.token,
	})
	return s.came(ctx, Heartbeat, heartbeat, err)
}

// The results of a lifecycle action. ABANDON ends the waiting for all other hooks as well; whether it takes the machine is the group's
// policy.
const (
	proceed = "CONTINUE"
	abandon = "ABANDON"
)

// complete ends the waiting for a hook with a result.
func (s *service) complete(ctx context.Context, group, name, result string) error {
	asking, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	_, err := s.sdk.CompleteLifecycleAction(asking, &autoscaling.CompleteLifecycleActionInput{
		AutoScalingGroupName: &group, LifecycleHookName: &name, InstanceId: &s.instance, LifecycleActionToken: s.token,
		LifecycleActionResult: &result,
	})
	what := Continue
	if result == abandon {
		what = Abandon
	}
	return s.came(ctx, what, complete, err)
}

// retains asks whether the group keeps an instance of which a hook for terminations is abandoned.
func (s *service) retains(ctx context.Context, group string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	out, err := s.sdk.DescribeAutoScalingGroups(ctx, &autoscaling.DescribeAutoScalingGroupsInput{AutoScalingGroupNames: []string{group}})
	if err != nil {
		return false, explain(describeGroups, err)
	}
	for _, g := range out.AutoScalingGroups {
		if p := g.InstanceLifecyclePolicy; aws.ToString(g.AutoScalingGroupName) == group && p != nil && p.RetentionTriggers != nil {
			return p.RetentionTriggers.TerminateHookAbandon == types.RetentionActionRetain, nil
		}
	}
	return false, nil
}

// nothing is how Auto Scaling says that nothing waits: the action has ended, or the hook or the group is not there any more.
var nothing = regexp.MustCompile(`No active Lifecycle Action|No Lifecycle Hook found|name not found`)

// explain says in plain words why a request failed.
func explain(action string, err error) error {
	api, ok := errors.AsType[smithy.APIError](err)
	if ok && api.ErrorCode() == "ValidationError" && nothing.MatchString(api.ErrorMessage()) {
		return errNothingWaits
	}
	return role.Explain(action, answerLimit, err)
}
