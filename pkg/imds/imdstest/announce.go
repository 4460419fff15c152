package imdstest

import (
	"fmt"
	"time"

	"github.com/nth-project/nth/pkg/imds/standin"
)

const (
	spotPath      = "meta-data/spot/instance-action"
	rebalancePath = "meta-data/events/recommendations/rebalance"
	lifecyclePath = "meta-data/autoscaling/target-lifecycle-state"
)

// SetSpot announces a spot interruption: action is "terminate", "stop" or "hibernate", at is when EC2 acts.
func (s *Simulator) SetSpot(action string, at time.Time) {
	s.announcing.Lock()
	defer s.announcing.Unlock()
	s.service.SetSpot(action, at)
	s.tellChange("spot interruption: %s at %s", action, standin.Timestamp(at))
}

// ClearSpot withdraws the spot interruption.
func (s *Simulator) ClearSpot() {
	s.announcing.Lock()
	defer s.announcing.Unlock()
	if s.service.ClearSpot() {
		s.tellChange("spot interruption withdrawn")
	}
}

// SetRebalance announces a rebalance recommendation, given at noticeTime.
func (s *Simulator) SetRebalance(noticeTime time.Time) {
	s.service.Set(rebalancePath, fmt.Sprintf(`{"noticeTime": %q}`, standin.Timestamp(noticeTime)))
	s.tellChange("rebalance recommendation, noticed at %s", standin.Timestamp(noticeTime))
}

// ClearRebalance withdraws the rebalance recommendation.
func (s *Simulator) ClearRebalance() {
	if s.service.Unset(rebalancePath) {
		s.tellChange("rebalance recommendation withdrawn")
	}
}

// SetLifecycleState sets the state into which Auto Scaling is bringing the instance, such as "InService" or
// "Terminated". The document is absent until it is first set.
func (s *Simulator) SetLifecycleState(state string) {
	s.service.Set(lifecyclePath, state)
	s.tellChange("target lifecycle state: %s", state)
}

// ClearLifecycleState makes the instance one without a target lifecycle state, as outside of an Auto Scaling group.
func (s *Simulator) ClearLifecycleState() {
	if s.service.Unset(lifecyclePath) {
		s.tellChange("target lifecycle state withdrawn")
	}
}
