package e2e

import (
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/ec2/ec2test"
	"github.com/nth-project/nth/pkg/imds/imdstest"
	"github.com/nth-project/nth/pkg/systemd"
)

// reserved is a stage on an instance in a Capacity Block whose instances EC2 takes from so long on; nth does not run yet.
func reserved(t *testing.T, left time.Duration) (*stage, *ec2test.Service) {
	t.Helper()
	s, ec2 := prepare(t, ""), &ec2test.Service{}
	server := httptest.NewServer(ec2)
	t.Cleanup(server.Close)
	const block = "cr-0123456789abcdef0"
	ec2.Reserve(ec2test.Reservation{ID: block, Block: true, InstanceType: "p5.48xlarge", End: time.Now().Add(left + 30*time.Minute)})
	ec2.Add(ec2test.Instance{ID: imdstest.InstanceID, State: "running", Reservation: block})
	s.imds.SetLifeCycle("capacity-block")
	s.options.Settings = fmt.Sprintf("[aws]\nec2_endpoint = %q\n", server.URL)
	s.machine.Configure(t, s.options)
	return s, ec2
}

func TestANodeIsDrainedBeforeItsCapacityBlockEnds(t *testing.T) {
	s, _ := reserved(t, 10*time.Minute+8*time.Second)
	s.start(t)
	s.nth.WaitSays(t, "the capacity-block reservation of this instance ends at")
	s.waitDrained(t)
	s.nth.Kill()
	s.start(t)
	s.nth.WaitSays(t, "acting for node")
	s.stopAfterLooks(t)
	s.mustBeCordoned(t)
	if begun := s.nth.Logged(systemd.DrainStarted); len(begun) > 0 {
		t.Errorf("after a restart it is drained again: %v", begun)
	}
}

func TestACapacityBlockThatEndsTomorrowIsOnlyTold(t *testing.T) {
	s, _ := reserved(t, 24*time.Hour)
	s.start(t)
	s.nth.WaitSays(t, "the capacity-block reservation of this instance ends at")
	s.stopAfterLooks(t)
	s.mustBeUntouched(t)
}

func TestWithoutTheRightToAskForTheEndOfAReservationAllElseGoesOn(t *testing.T) {
	s, ec2 := reserved(t, time.Minute)
	ec2.Deny("DescribeCapacityReservations")
	mustSay(t, check(t, s.machine), `warn  capacity    the instance's role does not allow ec2:DescribeCapacityReservations; its end would not be heard of .*`)
	s.start(t)
	s.nth.WaitStatus(t, "watching node "+s.node.Name+"; not known whether there is: reservation-end")
	s.nth.WaitSays(t, "the instance's role does not allow ec2:DescribeCapacityReservations")
	s.imds.SetLifecycleState("Terminated")
	s.waitDrained(t)
	s.nth.Stop(t)
	var told int
	for _, line := range s.nth.Logged(systemd.SourceTrouble) {
		if strings.Contains(fmt.Sprint(line), "ec2:DescribeCapacityReservations") {
			told++
		}
	}
	if told != 1 {
		t.Errorf("the missing right was told %d times", told)
	}
}

func TestCheckTellsWhenTheReservationEnds(t *testing.T) {
	s, ec2 := reserved(t, 24*time.Hour)
	mustSay(t, check(t, s.machine), `ok    capacity    EC2 takes the instance from \S+ on; the node is looked after from \S+ on`)
	s.imds.SetLifeCycle("on-demand")
	before := len(ec2.Calls("DescribeInstances"))
	if said := check(t, s.machine); strings.Contains(said, "  capacity") || len(ec2.Calls("DescribeInstances")) != before {
		t.Errorf("of an instance in none, it says\n%s", said)
	}
}
