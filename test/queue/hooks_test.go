package queue_test

import (
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/asg/asgtest"
	"github.com/nth-project/nth/test/internal/lab"
	"github.com/nth-project/nth/test/internal/region"
)

// These tests are about Auto Scaling, which waits at a hook.

// hooked adds a node of a group that waits at the hook "drain" when it terminates the instance.
func (s *scene) hooked(t *testing.T, hook asgtest.Hook, pods ...lab.Option) (*lab.Node, string) {
	t.Helper()
	node, id := s.add(t)
	node.AddDeployment(t, "regular", 1, pods...)
	hook.Name = "drain"
	s.Groups.AddGroup("group-"+id, hook)
	s.Groups.AddInstance("group-"+id, id)
	return node, id
}

// mustBeCompleted fails the test unless an instance's one lifecycle action has been completed with CONTINUE.
func mustBeCompleted(t *testing.T, s *scene, id string) asgtest.Action {
	t.Helper()
	actions := s.Groups.Actions(id)
	if len(actions) != 1 || actions[0].Result != "CONTINUE" || actions[0].TimedOut {
		t.Fatalf("the lifecycle action came to %+v, want CONTINUE", actions)
	}
	return actions[0]
}

// The message comes through EventBridge, and from Auto Scaling itself. The hook would not wait longer than 15 s by itself.
func TestHook_IsHeldUntilTheNodeIsDrained(t *testing.T) {
	t.Parallel()
	for name, by := range map[string]func(message string) string{
		"through EventBridge": func(message string) string { return message }, "from Auto Scaling itself": region.Direct,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			node, id := s.hooked(t, asgtest.Hook{HeartbeatTimeout: 15 * time.Second}, lab.Grace(20*time.Second), lab.GoesAtGrace())
			s.Deleting(func(m region.Message) {
				s.early.judge(t, m)
				if action := s.Groups.Actions(id)[0]; action.Result == "" {
					t.Error("the message was deleted before the lifecycle action was completed")
				}
			})
			consumer := s.start(t, taints)

			s.Groups.Terminate(id)
			s.Send(t, by(region.Terminating("group-"+id, "drain", id)))

			node.WaitCordoned(t)
			waitTainted(t, node, prefix+"asg-lifecycle-termination")
			node.WaitEmpty(t)
			s.WaitEmpty(t)
			if action := mustBeCompleted(t, s, id); len(action.Heartbeats) < 2 {
				t.Errorf("%d heartbeats were sent, want some", len(action.Heartbeats))
			}
			consumer.Stop(t)
		})
	}
}

func TestLaunch_IsCompletedOnceTheNodeIsReady(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.Groups.AddGroup("group-28", asgtest.Hook{Name: "join", Transition: asgtest.Launching, HeartbeatTimeout: time.Minute})
	consumer := s.start(t, "")
	id := s.NewInstance("192.168.0.28", nil)
	s.Groups.AddInstance("group-28", id)
	s.Groups.SetState(id, "Pending:Wait")

	s.Send(t, region.Launching("group-28", "join", id))

	lab.Await(t, "the message is being worked on", func() bool { _, held := s.Count(t); return held == 1 })
	if calls := s.Groups.Calls("CompleteLifecycleAction"); len(calls) > 0 {
		t.Errorf("the launch was completed before there was a node: %v", calls)
	}
	node := s.cp.AddNode(t)
	region.Bind(t, s.cp, node, id)
	lab.Await(t, "the launch is completed", func() bool { return s.Groups.State(id) == "Pending:Proceed" })
	s.WaitEmpty(t)
	mustBeCompleted(t, s, id)
	if node.Object(t).Spec.Unschedulable {
		t.Error("the new node was cordoned")
	}
	consumer.Stop(t)
}
