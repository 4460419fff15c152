package imdstest

import (
	"fmt"
	"time"
)

const (
	spotPath            = "meta-data/spot/instance-action"
	terminationTimePath = "meta-data/spot/termination-time"
	rebalancePath       = "meta-data/events/recommendations/rebalance"
	lifecyclePath       = "meta-data/autoscaling/target-lifecycle-state"
)

// SetSpot announces a spot interruption: action is "terminate", "stop" or "hibernate", at is when EC2 acts.
func (s *Simulator) SetSpot(action string, at time.Time) {
	s.announcing.Lock()
	defer s.announcing.Unlock()
	s.documents.set(spotPath, fmt.Sprintf(`{"action": %q, "time": %q}`, action, timestamp(at)))
	if action == "terminate" {
		s.documents.set(terminationTimePath, timestamp(at))
	} else {
		s.documents.unset(terminationTimePath)
	}
	s.tellChange("spot interruption: %s at %s", action, timestamp(at))
}

// ClearSpot withdraws the spot interruption.
func (s *Simulator) ClearSpot() {
	s.announcing.Lock()
	defer s.announcing.Unlock()
	s.documents.unset(terminationTimePath)
	if s.documents.unset(spotPath) {
		s.tellChange("spot interruption withdrawn")
	}
}

// SetRebalance announces a rebalance recommendation, given at noticeTime.
func (s *Simulator) SetRebalance(noticeTime time.Time) {
	s.documents.set(rebalancePath, fmt.Sprintf(`{"noticeTime": %q}`, timestamp(noticeTime)))
	s.tellChange("rebalance recommendation, noticed at %s", timestamp(noticeTime))
}

// ClearRebalance withdraws the rebalance recommendation.
func (s *Simulator) ClearRebalance() {
	if s.documents.unset(rebalancePath) {
		s.tellChange("rebalance recommendation withdrawn")
	}
}

// SetLifecycleState sets the state into which Auto Scaling is bringing the instance, such as "InService" or
// "Terminated". The document is absent until it is first set.
func (s *Simulator) SetLifecycleState(state string) {
	s.documents.set(lifecyclePath, state)
	s.tellChange("target lifecycle state: %s", state)
}

// ClearLifecycleState makes the instance one without a target lifecycle state, as outside of an Auto Scaling group.
func (s *Simulator) ClearLifecycleState() {
	if s.documents.unset(lifecyclePath) {
		s.tellChange("target lifecycle state withdrawn")
	}
}
