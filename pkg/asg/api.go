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

// AfterDrain says what becomes of an instance whose node was drained for something that does not end it soon.
type AfterDrain string

// What may become of it.
const (
	// Keep: it stays where it is. Terminate: its group terminates it, and Detach: its group lets go of it; both have another in its place.
	Keep      AfterDrain = "keep"
	Terminate AfterDrain = "terminate"
	Detach    AfterDrain = "detach"
)

// replaceLimit is how long it is tried to have an instance replaced.
const replaceLimit = 5 * time.Minute

// Replace has an instance's group put another one in its place, as the settings say: it is drained, and would be paid for until it ends by
// itself. One that is in no group, or leaves it already, is left as it is. It repeats what may pass, for five minutes at most.
func (t *HookClient) Replace(ctx context.Context, instance string) error {
	how := t.settings.Load().AfterDrain
	if how != Terminate && how != Detach {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, replaceLimit)
	defer cancel()
	s := t.service(Action{Instance: instance})
	for failures := 1; ; failures++ {
		group, err := s.replace(ctx, how)
		switch {
		case err == nil && group != "":
			t.tell(Completed, "%s is drained, and the Auto Scaling group %s was asked to %s it and to have another in its place", instance, group, how)
			return nil
		case err == nil:
			return nil
		case unpermitted(err), !role.Sleep(ctx, pause(failures)):
			return fmt.Errorf("having %s replaced, which is drained: %w", instance, err)
		}
	}
}

// replace asks the instance's group once, and returns it; none if there is none to ask.
func (s *service) replace(ctx context.Context, how AfterDrain) (group string, err error) {
	group, state, err := s.place(ctx)
	if err != nil || group == "" || !strings.HasPrefix(state, "InService") && !strings.HasPrefix(state, "Standby") {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	if how == Detach {
		_, err = s.sdk.DetachInstances(ctx, &autoscaling.DetachInstancesInput{
			AutoScalingGroupName: &group, InstanceIds: []string{s.instance}, ShouldDecrementDesiredCapacity: aws.Bool(false),
		})
		return group, explain(detachInstances, err)
	}
	_, err = s.sdk.TerminateInstanceInAutoScalingGroup(ctx, &autoscaling.TerminateInstanceInAutoScalingGroupInput{
		InstanceId: &s.instance, ShouldDecrementDesiredCapacity: aws.Bool(false),
	})
	return group, explain(terminateInstance, err)
}

// An Auto Scaling group takes an instance whose hook for terminations is abandoned, as it takes one whose hook is completed. Only where
// its instance lifecycle policy says TerminateHookAbandon=retain is the instance kept, in the state Terminating:Retained, until people
// end it. https://docs.aws.amazon.com/autoscaling/ec2/userguide/instance-lifecycle-policy.html

// result is that with which a hook is completed for what has come of a termination, and says why that is not what people ask for. It is
// empty where the hook is not to be completed, and with an error if that could not be found out yet: what people want kept is not given
// away because Auto Scaling did not answer once. An error with a result is a permission that is missing.
func (s *service) result(ctx context.Context, group string, outcome event.Outcome, abandoning bool) (result, why string, err error) {
	switch {
	case outcome != event.Drained && outcome != event.OutOfTime: // It is not ours to say that the machine may go.
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

// result is that with which the hooks of the termination are completed.
func (w *watch) result(ctx context.Context, outcome event.Outcome, settings Settings) (string, error) {
	abandoning := settings.Abandon && !w.opts.DryRun
	if abandoning && outcome == event.OutOfTime && !strings.HasSuffix(w.state, "Terminating:Wait") {
		w.once("the instance is in state %s, in which no machine is kept whose hook is abandoned: the hook is completed with %s", w.state, proceed)
		abandoning = false
	}
	result, why, err := w.service.result(ctx, w.group, outcome, abandoning)
	switch {
	case result == "":
		w.asked++
		return "", err
	case err != nil:
		w.judge(err)
	case why != "":
		w.once("%s", why)
	}
	w.asked = 0
	return result, nil
}

// foresee finds out, where people want the machine kept, whether it is there still when its time is over with pods left: then none has to
// be deleted for that time. What is due next, and err, are so anyway; it returns them with what comes of its own question.
func (w *watch) foresee(ctx context.Context, next time.Time, err error) (time.Time, error) {
	_, settings := w.now()
	switch {
	case w.foreseen || !settings.Abandon || next.IsZero() || ctx.Err() != nil:
		return next, err
	case !ends(w.event.Code):
		w.foreseen = true
		w.lose(true)
		return next, err
	case w.actions == nil: // Of which group it is, or which hooks there are, is not known; without an error it is of none.
		w.lose(err == nil || unpermitted(err))
		return next, err
	}
	keeps, asked := w.service.retains(ctx, w.group)
	switch {
	case unpermitted(asked):
		w.judge(asked)
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
		w.once("%s", willNotKeep(w.group))
	}
	w.asked, w.foreseen = 0, true
	w.lose(asked != nil || !keeps)
	return next, err
}

// willNotKeep and willKeep say what on_incomplete = "abandon" comes to.
func willNotKeep(group string) string {
	return fmt.Sprintf(`the Auto Scaling group %s does not keep a machine whose hook is abandoned, its instance lifecycle policy has no `+
		`TerminateHookAbandon=retain: out of time, hooks are completed with %s in spite of on_incomplete = "abandon"`, group, proceed)
}

func willKeep(group string) string {
	return fmt.Sprintf("out of time with pods left, hooks are abandoned, and the Auto Scaling group %s keeps the machine (Terminating:Retained)", group)
}
