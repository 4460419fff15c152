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
	"github.com/aws/smithy-go"

	"github.com/nth-project/nth/pkg/event"
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

// answerLimit is how long one request may take, including the one for credentials.
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
	// token identifies one lifecycle action, so that no later one of the same instance is meant; nil if it is not known.
	token     *string
	requested func(Request, Answer) // nil if nobody wants to know
}

// newService asks the metadata service for the instance's ID and region. It sends nothing to Auto Scaling.
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

// newClient returns a client that retries nothing: each caller knows how long its request is worth retrying.
func newClient(cfg aws.Config) *autoscaling.Client {
	return autoscaling.NewFromConfig(cfg, func(o *autoscaling.Options) { o.Retryer = aws.NopRetryer{} })
}

// call makes one request, and explains its error.
func call[In, Out any](
	ctx context.Context, action string, request func(context.Context, *In, ...func(*autoscaling.Options)) (*Out, error), in *In,
) (*Out, error) {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	out, err := request(ctx, in)
	if err != nil {
		return nil, explainedError{explain(action, err), err}
	}
	return out, nil
}

// explainedError has the words of one error, and is also the other one.
type explainedError struct {
	error
	cause error
}

func (e explainedError) Unwrap() []error { return []error{e.error, e.cause} }

// nothingWaits is how Auto Scaling says that nothing waits: the action has ended, or the hook or the group is not there any more.
var nothingWaits = regexp.MustCompile(`No active Lifecycle Action|No Lifecycle Hook found|name not found`)

// explain says in plain words why a request failed.
func explain(action string, err error) error {
	if isInvalid(err) && nothingWaits.MatchString(err.Error()) {
		return errNothingWaits
	}
	return role.Explain(action, answerLimit, err)
}

// isInvalid reports whether Auto Scaling has found a request wrong for a reason of its own: IAM allows such a request.
func isInvalid(err error) bool {
	api, ok := errors.AsType[smithy.APIError](err)
	return ok && api.ErrorCode() == "ValidationError"
}

// place asks for the group that the instance is in, and for its state there. The group is empty if it is in none.
func (s *service) place(ctx context.Context) (group, state string, err error) {
	out, err := call(ctx, describeInstances, s.sdk.DescribeAutoScalingInstances,
		&autoscaling.DescribeAutoScalingInstancesInput{InstanceIds: []string{s.instance}})
	if err != nil {
		return "", "", err
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
	out, err := call(ctx, describeHooks, s.sdk.DescribeLifecycleHooks, &autoscaling.DescribeLifecycleHooksInput{AutoScalingGroupName: &group})
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

// heartbeat makes Auto Scaling wait for another timeout of the hook.
func (s *service) heartbeat(ctx context.Context, group, name string) error {
	_, err := call(ctx, heartbeat, s.sdk.RecordLifecycleActionHeartbeat, &autoscaling.RecordLifecycleActionHeartbeatInput{
		AutoScalingGroupName: &group, LifecycleHookName: &name, InstanceId: &s.instance, LifecycleActionToken: s.token,
	})
	s.count(ctx, Heartbeat, err)
	return err
}

// The results of a lifecycle action. ABANDON ends the waiting for all other hooks as well; whether it takes the machine is the group's
// policy.
const (
	proceed = "CONTINUE"
	abandon = "ABANDON"
)

// complete ends the waiting for a hook with a result.
func (s *service) complete(ctx context.Context, group, name, result string) error {
	_, err := call(ctx, complete, s.sdk.CompleteLifecycleAction, &autoscaling.CompleteLifecycleActionInput{
		AutoScalingGroupName: &group, LifecycleHookName: &name, InstanceId: &s.instance, LifecycleActionToken: s.token,
		LifecycleActionResult: &result,
	})
	what := Continue
	if result == abandon {
		what = Abandon
	}
	s.count(ctx, what, err)
	return err
}

// retains asks whether the group keeps an instance of which a hook for terminations is abandoned.
func (s *service) retains(ctx context.Context, group string) (bool, error) {
	out, err := call(ctx, describeGroups, s.sdk.DescribeAutoScalingGroups,
		&autoscaling.DescribeAutoScalingGroupsInput{AutoScalingGroupNames: []string{group}})
	if err != nil {
		return false, err
	}
	for _, g := range out.AutoScalingGroups {
		if p := g.InstanceLifecyclePolicy; aws.ToString(g.AutoScalingGroupName) == group && p != nil && p.RetentionTriggers != nil {
			return p.RetentionTriggers.TerminateHookAbandon == types.RetentionActionRetain, nil
		}
	}
	return false, nil
}

// AfterDrain says what becomes of an instance whose node was drained for something that does not end it soon.
type AfterDrain string

// What may become of it.
const (
	// Keep: it stays where it is. Terminate: its group terminates it, and Detach: its group lets go of it; both have another in its place.
	Keep      AfterDrain = "keep"
	Terminate AfterDrain = "terminate"
	Detach    AfterDrain = "detach"
)

// replaceLimit is how long Replace tries.
const replaceLimit = 5 * time.Minute

// Replace has an instance's group put another one in its place, as the settings say: a drained instance would be paid for until it ends
// by itself. One that is in no group, or leaves it already, is left as it is. It retries for five minutes at most, unless a permission is
// missing.
func (c *HookClient) Replace(ctx context.Context, instance string) error {
	how := c.settings.Load().AfterDrain
	if how != Terminate && how != Detach {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, replaceLimit)
	defer cancel()
	s := c.service(Action{Instance: instance})
	for failures := 1; ; failures++ {
		group, err := s.replace(ctx, how)
		switch {
		case err == nil && group != "":
			c.tell(Completed, "%s is drained, and the Auto Scaling group %s was asked to %s it and to have another in its place", instance, group, how)
			return nil
		case err == nil:
			return nil
		case unpermitted(err), !role.Sleep(ctx, pause(failures)):
			return fmt.Errorf("having %s replaced, which is drained: %w", instance, err)
		}
	}
}

// replace asks the instance's group once, and returns the group's name; empty if there is none to ask.
func (s *service) replace(ctx context.Context, how AfterDrain) (group string, err error) {
	group, state, err := s.place(ctx)
	if err != nil || group == "" || !strings.HasPrefix(state, "InService") && !strings.HasPrefix(state, "Standby") {
		return "", err
	}
	return group, s.remove(ctx, group, how)
}

// remove has the group terminate or detach the instance, and put another one in its place.
func (s *service) remove(ctx context.Context, group string, how AfterDrain) (err error) {
	if how == Detach {
		_, err = call(ctx, detachInstances, s.sdk.DetachInstances, &autoscaling.DetachInstancesInput{
			AutoScalingGroupName: &group, InstanceIds: []string{s.instance}, ShouldDecrementDesiredCapacity: aws.Bool(false),
		})
		return err
	}
	_, err = call(ctx, terminateInstance, s.sdk.TerminateInstanceInAutoScalingGroup, &autoscaling.TerminateInstanceInAutoScalingGroupInput{
		InstanceId: &s.instance, ShouldDecrementDesiredCapacity: aws.Bool(false),
	})
	return err
}

// An Auto Scaling group takes an instance whose hook for terminations is abandoned, as it takes one whose hook is completed. Only where
// its instance lifecycle policy says TerminateHookAbandon=retain is the instance kept, in the state Terminating:Retained, until people
// end it. https://docs.aws.amazon.com/autoscaling/ec2/userguide/instance-lifecycle-policy.html

// result returns what a hook is completed with after an outcome, and why that is not what people ask for. The result is
// empty where the hook is not to be completed, and also, with an error, where it is not known yet whether the group keeps the machine: a
// single request that fails does not give it away. An error with a result is a missing permission.
func (s *service) result(ctx context.Context, group string, outcome event.Outcome, abandoning bool) (result, why string, err error) {
	switch {
	case outcome != event.Drained && outcome != event.OutOfTime: // The work that the hook waits for is not done.
		return "", "", nil
	case outcome == event.Drained || !abandoning:
		return proceed, "", nil
	}
	keeps, err := s.retains(ctx, group)
	switch {
	case unpermitted(err):
		return proceed, "", err
	case err != nil:
		return "", "", fmt.Errorf("finding out whether the group keeps the machine: %w", err)
	case !keeps:
		return proceed, willNotKeep(group), nil
	}
	return abandon, "", nil
}

// result returns what the hooks of the termination are completed with; empty if that is not known yet.
func (w *watch) result(ctx context.Context, outcome event.Outcome, settings Settings) (string, error) {
	abandoning := settings.Abandon && !w.opts.DryRun
	if abandoning && outcome == event.OutOfTime && !strings.HasSuffix(w.state, "Terminating:Wait") {
		w.once(Found, "the instance is in state %s, in which no machine is kept whose hook is abandoned: the hook is completed with %s", w.state, proceed)
		abandoning = false
	}
	result, why, err := w.service.result(ctx, w.group, outcome, abandoning)
	switch {
	case result == "":
		w.asked++
		return "", err
	case err != nil:
		w.reportError(err)
	case why != "":
		w.once(Found, "%s", why)
	}
	w.asked = 0
	return result, nil
}

// foresee finds out, where people want the machine kept, whether the group would keep it when time is over with pods left: then no pod
// has to be deleted before that. next and err are those of the step so far; it returns them with the time and the error of its own
// request.
func (w *watch) foresee(ctx context.Context, next time.Time, err error) (time.Time, error) {
	_, settings := w.now()
	switch {
	case w.foreseen || !settings.Abandon || next.IsZero() || ctx.Err() != nil:
		return next, err
	case !ends(w.event.Code):
		w.foreseen = true
		w.setLost(true)
		return next, err
	case w.actions == nil: // The group or its hooks are not known; without an error the instance is in no group.
		w.setLost(err == nil || unpermitted(err))
		return next, err
	}
	keeps, asked := w.service.retains(ctx, w.group)
	switch {
	case unpermitted(asked):
		w.reportError(asked)
	case asked != nil:
		w.asked++
		if again := time.Now().Add(pause(w.asked)); again.Before(next) {
			next = again
		}
		if err == nil {
			err = fmt.Errorf("finding out whether the group would keep the machine: %w", asked)
		}
		return next, err
	case !keeps:
		w.once(Found, "%s", willNotKeep(w.group))
	}
	w.asked, w.foreseen = 0, true
	w.setLost(asked != nil || !keeps)
	return next, err
}

// willNotKeep and willKeep say what on_incomplete = "abandon" means for a group.
func willNotKeep(group string) string {
	return fmt.Sprintf(`the Auto Scaling group %s does not keep a machine whose hook is abandoned, its instance lifecycle policy has no `+
		`TerminateHookAbandon=retain: out of time, hooks are completed with %s in spite of on_incomplete = "abandon"`, group, proceed)
}

func willKeep(group string) string {
	return fmt.Sprintf("out of time with pods left, hooks are abandoned, and the Auto Scaling group %s keeps the machine (Terminating:Retained)", group)
}
