package queue

import (
	"time"

	"github.com/nth-project/nth/pkg/event"
)

// lifecycleAction is how Auto Scaling describes what it waits at a hook for, by itself and in EventBridge's detail.
type lifecycleAction struct {
	Token      string `json:"LifecycleActionToken"`
	Group      string `json:"AutoScalingGroupName"`
	Hook       string `json:"LifecycleHookName"`
	Instance   string `json:"EC2InstanceId"`
	Transition string `json:"LifecycleTransition"`
	// Destination is EC2 or WarmPool where the group has a warm pool.
	Destination string `json:"Destination"`
}

// The transitions of an instance that a hook can be made for.
const (
	launching   = "autoscaling:EC2_INSTANCE_LAUNCHING"
	terminating = "autoscaling:EC2_INSTANCE_TERMINATING"
	testing     = "autoscaling:TEST_NOTIFICATION"
)

// direct reads what Auto Scaling itself sends to a queue.
func (e envelope) direct() ([]Notice, error) {
	switch {
	case e.Event == testing || e.Transition == testing:
		return nil, notOurs("Auto Scaling tries whether the queue can be written to")
	case e.Transition == "" && e.Group == "":
		return nil, poison("it is neither an event of EventBridge nor a lifecycle action of Auto Scaling")
	}
	return e.notices(e.time())
}

func (a lifecycleAction) notices(at time.Time) ([]Notice, error) {
	switch {
	case !instanceID.MatchString(a.Instance):
		return nil, poison("the lifecycle action is for no instance: %q", a.Instance)
	case a.Group == "" || a.Hook == "":
		return nil, poison("the lifecycle action for %s names no group or no hook", a.Instance)
	}
	n := Notice{Instance: a.Instance, Hook: &Hook{Group: a.Group, Name: a.Hook, Token: a.Token}}
	switch a.Transition {
	case launching:
		n.About, n.Hook.Launch = Launch, true
	case terminating:
		n.About, n.Hook.Back = Interruption, a.Destination == "WarmPool"
		n.Event = event.Event{
			ID:   nameOf(event.ASGTermination, a.Group, a.Hook, a.Token, a.Instance),
			Kind: event.ASGTermination, Code: "Terminated", State: event.Pending, Noticed: at,
		}
	default:
		return nil, poison("the lifecycle action for %s is of an unknown kind: %q", a.Instance, a.Transition)
	}
	return []Notice{n}, nil
}
