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

// ReservationEnd is what it delivers when the owner of a capacity reservation takes back what an instance runs in.
func ReservationEnd(instance string) string {
	return bridged("aws.ec2", "EC2 Capacity Reservation Instance Interruption Warning",
		map[string]any{"instance-id": instance, "instance-action": "terminate"})
}

// Terminating is what EventBridge delivers when an instance waits at a terminate hook.
func Terminating(group, hook, instance string) string {
	return lifecycle("EC2 Instance-terminate Lifecycle Action", "autoscaling:EC2_INSTANCE_TERMINATING", group, hook, instance)
}

// Launching is what it delivers when an instance waits at a launch hook.
func Launching(group, hook, instance string) string {
	return lifecycle("EC2 Instance-launch Lifecycle Action", "autoscaling:EC2_INSTANCE_LAUNCHING", group, hook, instance)
}

// Direct is a message about a lifecycle action as Auto Scaling itself sends it to a queue, without EventBridge.
func Direct(message string) string {
	e := opened(message)
	e.Detail["Time"], e.Detail["RequestId"] = e.Time, e.ID
	return encode(e.Detail)
}

func lifecycle(kind, transition, group, hook, instance string) string {
	return bridged("aws.autoscaling", kind, map[string]any{
		"LifecycleActionToken": "token-" + instance, "AutoScalingGroupName": group, "LifecycleHookName": hook,
		"EC2InstanceId": instance, "LifecycleTransition": transition,
	})
}

// account is the one that fauxqs has its queues in. nth-queue reads no events of another.
const account = "000000000000"

var events atomic.Int64

// event is one as EventBridge delivers it.
type event struct {
	Version string         `json:"version"`
	ID      string         `json:"id"`
	Source  string         `json:"source"`
	Kind    string         `json:"detail-type"`
	Account string         `json:"account"`
	Region  string         `json:"region"`
	Time    string         `json:"time"`
	Detail  map[string]any `json:"detail"`
}

// bridged is an event of this moment.
func bridged(source, kind string, detail map[string]any) string {
	return encode(event{
		Version: "0", ID: fmt.Sprintf("00000000-0000-4000-8000-%012d", events.Add(1)), Source: source, Kind: kind,
		Account: account, Region: Name, Time: time.Now().UTC().Format(time.RFC3339), Detail: detail,
	})
}

func opened(message string) (e event) {
	if err := json.Unmarshal([]byte(message), &e); err != nil {
		panic(fmt.Sprintf("a message that is none of this package: %v", err)) // a mistake in a test
	}
	return e
}

func encode(message any) string {
	text, err := json.Marshal(message)
	if err != nil {
		panic(err) // strings and maps of them always encode
	}
	return string(text)
}
