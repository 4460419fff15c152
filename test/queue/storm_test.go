package queue_test

import (
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nth-project/nth/pkg/systemd"
	"github.com/nth-project/nth/test/internal/daemon"
	"github.com/nth-project/nth/test/internal/lab"
	"github.com/nth-project/nth/test/internal/region"
	"github.com/nth-project/nth/test/internal/storm"
	"github.com/nth-project/nth/test/internal/trace"
)

// How long a storm takes is logged, not judged: it is the machine's as much as nth-queue's. "make bench-queue" measures it.
func TestStorm_OfThirtyNodesIsDrained(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	nodes := s.storm(t, 30, 10, 0)
	consumer := s.start(t, "")
	seen := nodes.Watch(t)

	sent := time.Now()
	s.Send(t, nodes.Messages()...)

	last := seen.Wait(t)
	s.mustBeDrainedOnce(t, nodes, 30, 300, consumer)
	t.Logf("the last cordon after %s, the last pod gone after %s", last.Cordoned.Sub(sent), last.Gone.Sub(sent))
}

func TestMessages_ManyInAnyOrderDrainEachNodeOnce(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	nodes := s.storm(t, 10, 2, 4*time.Second)
	const settings = "[events.rebalance-recommendation]\naction = \"drain\"\n"
	leader, standby := s.pair(t, settings)
	seen := nodes.Watch(t)
	var messages []string
	for _, id := range nodes.Instances {
		s.EC2.Enter(id, "shutting-down") // as its messages say: EC2 is asked whether a stop is over
		notice := region.Spot(id)
		messages = append(messages, notice, notice, region.State(id, "shutting-down"), region.Rebalance(id), region.Spot(id), region.State(id, "stopping"))
	}
	rand.Shuffle(len(messages), func(i, j int) { messages[i], messages[j] = messages[j], messages[i] })

	s.Send(t, messages...)

	seen.Wait(t)
	s.mustBeDrainedOnce(t, nodes, len(messages), 20, leader, standby)
}

func TestTrace_EachPreemptedNodeIsDrainedInTime(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	traces, err := trace.Read("../internal/trace/testdata/small")
	if err != nil {
		t.Fatal(err)
	}
	preemptions := trace.Preemptions(trace.Busiest(traces))
	nodes := s.storm(t, len(preemptions), 2, 2*time.Second)
	consumer := s.start(t, "")

	emptied := nodes.Replay(t, s.Region, preemptions, io.Discard).Emptied

	if len(emptied) != len(preemptions) || slices.Max(emptied) > trace.Notice {
		t.Errorf("%d nodes were preempted, and empty after %v", len(preemptions), emptied)
	}
	s.mustBeDrainedOnce(t, nodes, len(preemptions), 2*len(preemptions), consumer)
}

// storm makes a storm whose messages may not be deleted before their nodes are drained.
func (s *scene) storm(t *testing.T, nodes, pods int, grace time.Duration) *storm.Storm {
	t.Helper()
	made := storm.New(t, s.cp, s.Region, nodes, pods, grace)
	for i, instance := range made.Instances {
		s.early.expect(instance, made.Nodes[i])
	}
	return made
}

// mustBeDrainedOnce waits until the queue is empty, and stops the consumers. It fails the test unless that was for so many
// messages at least, none of them early, and each of so many pods was evicted once.
func (s *scene) mustBeDrainedOnce(t *testing.T, nodes *storm.Storm, messages, pods int, consumers ...*daemon.Daemon) {
	t.Helper()
	s.WaitEmpty(t)
	s.early.mustHaveJudged(t, messages)
	mustBeEvictedOnce(t, pods, consumers...)
	s.mustBeSettled(t, nodes)
	for _, c := range consumers {
		c.Stop(t)
	}
}

// mustBeSettled fails the test unless all nodes are cordoned.
func (s *scene) mustBeSettled(t *testing.T, nodes *storm.Storm) {
	t.Helper()
	for _, name := range nodes.Nodes {
		node, err := s.cp.Admin.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil || !node.Spec.Unschedulable {
			t.Errorf("%s is not cordoned (%v)", name, err)
		}
	}
}

// ofTheKilled stands for a number of pods that nobody knows: a process that is killed does not log the answers that it waits for.
const ofTheKilled = -1

// mustBeEvictedOnce fails the test unless so many pods were evicted, each once, by all consumers together. A pod whose
// eviction got no answer in time, from a control plane that has too much to do, may have gone without a word of that.
func mustBeEvictedOnce(t *testing.T, pods int, consumers ...*daemon.Daemon) {
	t.Helper()
	times, unanswered := map[string]int{}, map[string]bool{}
	for _, c := range consumers {
		for _, e := range c.Logged(systemd.PodEvicted) {
			times[e.Fields[systemd.FieldPod]]++
		}
		for _, e := range c.Logged(systemd.PodHeld) {
			if strings.Contains(e.Message, "no answer from the API server") {
				unanswered[e.Fields[systemd.FieldPod]] = true
			}
		}
	}
	for pod, n := range times {
		if n != 1 {
			t.Errorf("%s was evicted %d times", pod, n)
		}
		delete(unanswered, pod)
	}
	if pods != ofTheKilled && len(times)+len(unanswered) != pods {
		t.Errorf("%d pods were evicted, and %d asked for without an answer, want %d in all", len(times), len(unanswered), pods)
	}
}

// awaitEviction waits until one of the consumers is in the middle of a drain, and returns that one.
func awaitEviction(t *testing.T, s *scene, consumers []*daemon.Daemon) (holder *daemon.Daemon) {
	t.Helper()
	lab.Await(t, "a drain has begun", func() bool {
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
