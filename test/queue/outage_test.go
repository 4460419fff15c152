package queue_test

import (
	"syscall"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/systemd"
	"github.com/nth-project/nth/test/internal/daemon"
	"github.com/nth-project/nth/test/internal/lab"
	"github.com/nth-project/nth/test/internal/region"
)

// A minute is what it takes until the pauses between two requests for messages are as long as they get.
func TestAMinuteWithoutSQSInTheMidstOfAStormIsOutlived(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	nodes := s.storm(t, 10, 3, 15*time.Second)
	consumer := s.start(t, "")
	seen := nodes.Watch(t)
	s.Send(t, nodes.Messages()...)
	s.Await(t, "all messages are held", func() bool { visible, held := s.Count(t); return visible == 0 && held == 10 })
	awaitEviction(t, s, []*daemon.Daemon{consumer})

	over := time.After(time.Minute)
	s.Down()

	seen.Wait(t) // Nobody needs SQS for what has begun.
	consumer.WaitLog(t, systemd.SourceTrouble)
	<-over
	if others := s.Glance(t); len(others) != 10 {
		t.Errorf("after a minute others see %d messages, want all ten", len(others))
	}
	s.Up()

	consumer.WaitLog(t, systemd.SourceRecovered)
	s.mustBeDrainedOnce(t, nodes, 10, 30, consumer)
	if drains := len(consumer.Logged(systemd.Drained)); drains != 10 {
		t.Errorf("%d drains have ended for ten nodes", drains)
	}
}

func TestAPoisonedMessageIsToldOnceAndEndsInTheDeadLetterQueue(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	letters := s.LeaveToDeadLetters(t, 3)
	node, id := s.add(t)
	node.AddPods(t, "pod", 2)
	consumer := s.start(t, "")

	s.Send(t, "what is this?", region.Spot(id))

	s.Await(t, "the message is a dead letter", func() bool { return letters.Count(t) == 1 })
	node.WaitCordoned(t)
	node.WaitEmpty(t)
	s.WaitEmpty(t)
	consumer.Stop(t)
	if told := consumer.Logged(systemd.MessagePoisoned); len(told) != 1 {
		t.Errorf("it was told %d times, want once", len(told))
	}
	received := 0
	for _, m := range s.Received() {
		if m.Body == "what is this?" {
			received++
		}
	}
	if dead := letters.Read(t); received != 3 || len(dead) != 1 || dead[0].Body != "what is this?" {
		t.Errorf("it was received %d times, want 3, and the dead letters are %+v", received, dead)
	}
}

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
			for _, e := range leader.Logged(systemd.DrainStarted) {
				if e.Time.After(thawed) {
					t.Errorf("the leader of before says %q", e.Message)
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

func TestLeader_LeavesItsWorkToTheStandbyAtOnce(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	node, id := s.add(t)
	node.AddPods(t, "pod", 2, lab.Grace(time.Minute), lab.GoesAtGrace())
	leader, standby := s.pair(t, "")
	s.Send(t, region.Spot(id))
	awaitEviction(t, s, []*daemon.Daemon{leader})

	leader.Stop(t)

	standby.WaitLog(t, systemd.DrainStarted)
	standby.Stop(t)
	// A request for messages that was cut off may have been given it once more, for as long as messages are hidden. fauxqs counts one as
	// visible again when somebody asks for it.
	s.Await(t, "the message can be received", func() bool { return len(s.Glance(t)) == 1 })
}
