package asg

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
)

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
func (t *Told) Replace(ctx context.Context, instance string) error {
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
		case unpermitted(err), !wait(ctx, time.Now().Add(pause(failures))):
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
