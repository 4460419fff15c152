package queue_test

import (
	"strings"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/ec2/ec2test"
	"github.com/nth-project/nth/pkg/systemd"
	"github.com/nth-project/nth/test/internal/daemon"
	"github.com/nth-project/nth/test/internal/lab"
)

// requested are the requests of an action that EC2 has carried out.
func (s *scene) requested(action string) (times int) {
	for _, c := range s.EC2.Calls(action) {
		if c.Code == "" {
			times++
		}
	}
	return times
}

// The leader ends while the machine is down, and EC2 clears the event as it does for one that its user carries out.
func TestFinish_RebootsADrainedNodeOnce(t *testing.T) {
	t.Parallel()
	const pods, kept = 4, 3
	s := newScene(t)
	node, id := s.add(t)
	node.AddDeployment(t, "web", pods, lab.Grace(5*time.Second), lab.GoesAtGrace(), lab.MinAvailable(kept))
	node.AddSpare(t)
	node.Booted(t, "boot-1")
	first := make(chan time.Time, 1)
	node.Observe(t, func(m lab.Moment) {
		if m.What == lab.PodTerminating {
			select {
			case first <- m.At:
			default: // It is not the first.
			}
		}
	})
	s.EC2.Schedule(id, ec2test.Planned{ID: "event-of-" + id, Code: "system-reboot", NotBefore: time.Now().Add(24 * time.Hour)})
	leader, standby := s.pair(t, "[events.scheduled-maintenance]\nfinish = \"reboot\"\ncodes = { system-reboot = \"now\" }\n")

	if said, _ := leader.Ask("check"); !strings.Contains(said, "ok    right       ec2:RebootInstances\n") || strings.Contains(said, "ec2:StopInstances") {
		t.Errorf("nth-queue check says\n%s", said)
	}
	lab.Await(t, "EC2 is asked to reboot the machine", func() bool { return s.requested("RebootInstances") > 0 })
	for _, pod := range node.Pods(t) {
		if lab.Evictable(&pod) {
			t.Errorf("the machine is rebooted with the pod %s on it", pod.Name)
		}
	}
	leader.Stop(t)
	standby.WaitStatus(t, "reading the queue")
	s.EC2.Schedule(id)
	node.Booted(t, "boot-2")
	node.WaitUncordoned(t)
	t.Logf("%.1f s from the first eviction until the node is open", time.Since(<-first).Seconds())
	for _, process := range []*daemon.Daemon{leader, standby} {
		if deleted := process.Logged(systemd.PodDeleted); len(deleted) > 0 { // A deletion asks no budget.
			t.Errorf("pods were deleted: %v", deleted)
		}
	}
	if times := s.requested("RebootInstances"); times != 1 {
		t.Errorf("EC2 was asked %d times to reboot the machine", times)
	}
	standby.Stop(t)
}
