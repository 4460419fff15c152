package region

import (
	"encoding/json"
	"fmt"
	"sync/atomic"
	"time"
)

// Spot is what EventBridge delivers two minutes before a spot instance is taken.
func Spot(instance string) string {
	return bridged("aws.ec2", "EC2 Spot Instance Interruption Warning", map[string]any{"instance-id": instance, "instance-action": "terminate"})
}

// Rebalance is what it delivers when an interruption has become more likely.
func Rebalance(instance string) string {
	return bridged("aws.ec2", "EC2 Instance Rebalance Recommendation", map[string]any{"instance-id": instance})
}

// State is what it delivers when an instance is in another state.
func State(instance, state string) string {
	return bridged("aws.ec2", "EC2 Instance State-change Notification", map[string]any{"instance-id": instance, "state": state})
}

// Scheduled is what AWS Health tells of a retirement that is so near that it is drained for at once, for instances.
func Scheduled(instances ...string) string {
	var entities []map[string]any
	for _, i := range instances {
		entities = append(entities, map[string]any{"entityValue": i})
	}
	return bridged("aws.health", "AWS Health Event", map[string]any{
		"eventArn": fmt.Sprintf("arn:aws:health:%s::event/EC2/%d", Name, events.Add(1)), "service": "EC2",
		"eventTypeCategory": "scheduledChange", "eventTypeCode": "AWS_EC2_PERSISTENT_INSTANCE_RETIREMENT_SCHEDULED",
		"startTime":        time.Now().Add(10 * time.Minute).UTC().Format(time.RFC1123),
		"affectedEntities": entities,
	})
}

// Terminating is what EventBridge delivers when an instance waits at a terminate hook.
func Terminating(group, hook, instance string) string {
	return lifecycle("EC2 Instance-terminate Lifecycle Action", "autoscaling:EC2_INSTANCE_TERMINATING", group, hook, instance)
}

// Launching is what it delivers when an instance waits at a launch hook.
func Launching(group, hook, instance string) string {
	return lifecycle("EC2 Instance-launch Lifecycle Action", "autoscaling:EC2_INSTANCE_LAUNCHING", group, hook, instance)
}

func lifecycle(kind, transition, group, hook, instance string) string {
	return bridged("aws.autoscaling", kind, map[string]any{
		"LifecycleActionToken": "token-" + instance, "AutoScalingGroupName": group, "LifecycleHookName": hook,
		"EC2InstanceId": instance, "LifecycleTransition": transition,
	})
}

var events atomic.Int64

// bridged is an event of this moment as EventBridge delivers it.
func bridged(source, kind string, detail any) string {
	text, err := json.Marshal(map[string]any{
		"version": "0", "id": fmt.Sprintf("00000000-0000-4000-8000-%012d", events.Add(1)), "source": source, "detail-type": kind,
		"account": "123456789012", "region": Name, "time": time.Now().UTC().Format(time.RFC3339), "detail": detail,
	})
	if err != nil {
		panic(err) // strings and maps of them always encode
	}
	return string(text)
}
