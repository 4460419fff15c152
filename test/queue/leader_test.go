package queue_test

import (
	"syscall"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/systemd"
	"github.com/nth-project/nth/test/internal/daemon"
)

// A leader that is killed, or frozen until long after its Lease has run out, is followed by the standby, which goes on. No pod is evicted twice.
func TestLeader_IsFollowedByTheStandby(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(leader *daemon.Daemon) (after func()){
		"killed": func(leader *daemon.Daemon) func() { leader.Kill(); return func() {} },
		"frozen": func(leader *daemon.Daemon) func() {
			_ = syscall.Kill(leader.PID(), syscall.SIGSTOP) // the process is there
			return func() { _ = syscall.Kill(leader.PID(), syscall.SIGCONT) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			nodes := s.storm(t, 10, 2, 50*time.Second)
			leader, standby := s.pair(t, "")
			seen := nodes.Watch(t)
			s.Send(t, nodes.Messages()...)
			awaitEviction(t, s, []*daemon.Daemon{leader})

			thaw := end(leader)

			standby.WaitLog(t, systemd.DrainStarted)
			thawed := time.Now()
			thaw()
			seen.Wait(t)
			s.WaitEmpty(t)
			s.early.mustHaveJudged(t, 10)
			mustBeEvictedOnce(t, ofTheKilled, standby)
			byStandby := map[string]bool{}
			for _, e := range standby.Logged(systemd.PodEvicted) {
				byStandby[e.Fields[systemd.FieldPod]] = true
			}
			for _, e := range leader.Logged(systemd.PodEvicted) { // Thawed, it may send the requests that it was about to send: those pods are ending already.
				if pod := e.Fields[systemd.FieldPod]; byStandby[pod] && e.Time.Before(thawed) {
					t.Errorf("%s was evicted by both", pod)
				}
			}
			standby.Stop(t)
			if name == "frozen" {
				leader.WaitStatus(t, "reading the queue")
				leader.Stop(t)
			}
		})
	}
}
