package queue_test

import (
	"testing"
	"time"

	"github.com/nth-project/nth/test/internal/daemon"
	"github.com/nth-project/nth/test/internal/faultproxy"
	"github.com/nth-project/nth/test/internal/region"
)

// These tests are about the API server. What SQS, EC2 and Auto Scaling do is judged in their packages.

func TestOutage_InMidDrainsIsWaitedFor(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]faultproxy.Fault{
		"refusing": {Kind: faultproxy.Refuse},
		"silent":   {Kind: faultproxy.BlackHole},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			way := s.brokenWay(t)
			nodes := s.storm(t, 5, 2, 5*time.Second)
			consumer := s.start(t, "")
			seen := nodes.Watch(t)
			s.Send(t, nodes.Messages()...)
			awaitEviction(t, s, []*daemon.Daemon{consumer})

			way.Fault(fault)
			second, id := s.add(t) // Its message has to wait, and does not get lost.
			second.AddPods(t, "pod", 2)
			s.Send(t, region.Spot(id))
			consumer.WaitSays(t, "lost the leader-election Lease")
			way.Lift()

			seen.Wait(t)
			second.WaitCordoned(t)
			second.WaitEmpty(t)
			s.WaitEmpty(t)
			s.early.mustHaveJudged(t, 6)
			s.mustBeSettled(t, nodes)
			consumer.Stop(t)
		})
	}
}

// brokenWay leads what is started from now on through a proxy that can break.
func (s *scene) brokenWay(t *testing.T) *faultproxy.Proxy {
	t.Helper()
	way := faultproxy.New(t, s.kubeconfig)
	s.kubeconfig = way.Kubeconfig
	return way
}
