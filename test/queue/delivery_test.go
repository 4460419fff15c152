package queue_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/systemd"
	"github.com/nth-project/nth/test/internal/daemon"
	"github.com/nth-project/nth/test/internal/lab"
	"github.com/nth-project/nth/test/internal/region"
)

// These tests are about what a queue may do to its messages: deliver them twice, in any order, and to several.

// slow pods are there for long enough to do something meanwhile.
func slow() []lab.Option { return []lab.Option{lab.Grace(8 * time.Second), lab.GoesAtGrace()} }

func TestDuplicatesInAnyOrderDrainEachNodeOnce(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	nodes := s.storm(t, 10, 2, 4*time.Second)
	const settings = "[events.rebalance-recommendation]\naction = \"drain\"\n"
	leader, standby := s.pair(t, settings)
	seen := nodes.Watch(t)
	var messages []string
	for _, id := range nodes.Instances {
		notice := region.Spot(id)
		messages = append(messages, notice, notice, region.State(id, "shutting-down"), region.Rebalance(id), region.Spot(id), region.State(id, "stopping"))
	}
	rand.Shuffle(len(messages), func(i, j int) { messages[i], messages[j] = messages[j], messages[i] })

	s.Send(t, messages...)

	seen.Wait(t)
	s.mustBeDrainedOnce(t, nodes, len(messages), 20, leader, standby)
}

func TestAMessageThatIsSeenByOthersTooDrainsItsNodeOnce(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	node, id := s.add(t)
	node.AddPods(t, "pod", 2, slow()...)
	leader, standby := s.pair(t, "")

	s.Send(t, region.Spot(id))
	awaitEviction(t, s, []*daemon.Daemon{leader})
	before := len(s.Received())
	s.Reveal(t, s.Received()...) // The lease is lost.
	s.Await(t, "the message is delivered again", func() bool { return len(s.Received()) > before })

	node.WaitEmpty(t)
	s.WaitEmpty(t)
	mustBeEvictedOnce(t, 2, leader, standby)
	leader.Stop(t)
	standby.Stop(t)
}

// awaitEviction waits until one of the consumers is in the middle of a drain, and returns that one.
func awaitEviction(t *testing.T, s *scene, consumers []*daemon.Daemon) (holder *daemon.Daemon) {
	t.Helper()
	s.Await(t, "a drain has begun", func() bool {
		for _, c := range consumers {
			if len(c.Logged(systemd.PodEvicted)) > 0 {
				holder = c
				return true
			}
		}
		return false
	})
	return holder
}
