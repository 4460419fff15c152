package e2e

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// EC2 announces a retirement weeks ahead, and the node is of use until it is near.
func TestARetirementWeeksAwayIsToldAtOnceAndDrainedNearItsDate(t *testing.T) {
	s := play(t, "")
	retirement := reboot(14 * 24 * time.Hour)
	retirement.Code = "instance-retirement"
	s.imds.AddMaintenance(retirement)
	const plan = " (spread over 20m, sooner with kubectl drain)"
	begins := retirement.NotBefore.Truncate(time.Second).UTC().Add(-24*time.Hour + shareOfTheStage).Format("15:04:05 UTC on 2 Jan 2006")
	s.nth.WaitSays(t, "scheduled-maintenance: EC2 has scheduled instance-retirement at ")
	s.nth.WaitSays(t, "drain begins at "+begins+plan)
	if condition := s.waitCondition(t, corev1.ConditionTrue); !strings.Contains(condition.Message, begins) {
		t.Errorf("the node's condition is %q, want one with %q", condition.Message, begins)
	}
	s.waitShown(t, "what is announced", func(found told) bool { return len(found.Events) == 1 && strings.Contains(found.Events[0].Plan, begins) })
	s.looks(t, maintenanceDocument, 4)
	s.mustBeUntouched(t)

	// Another start is no other moment.
	s.nth.Stop(t)
	s.start(t)
	s.nth.WaitSays(t, "acting for node "+s.node.Name)
	s.looks(t, maintenanceDocument, 4)
	s.waitShown(t, "the same", func(found told) bool { return len(found.Events) == 1 && strings.Contains(found.Events[0].Plan, begins) })
	s.mustBeUntouched(t)

	retirement.NotBefore = time.Now().Add(24*time.Hour - shareOfTheStage + 3*time.Second)
	s.imds.AddMaintenance(retirement)
	s.waitDrained(t)
}

// shareOfTheStage is how much later than the first of its fleet the instance that imdstest plays begins, by its ID.
const shareOfTheStage = 10*time.Minute + 59*time.Second
