package queue

import (
	"flag"
	"sync"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/systemd"
	"github.com/nth-project/nth/test/internal/daemon"
	"github.com/nth-project/nth/test/internal/lab"
)

var (
	stormNodes = flag.Int("storm.nodes", 12, "how many nodes the storm takes")
	stormPods  = flag.Int("storm.pods", 5, "how many pods each of them has")
)

// The times are told, not judged: they are the machine's as much as nth-queue's.
func TestAStormOfInterruptionsDrainsAllNodesAtOnce(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	cp := lab.Shared(t)
	watch := &storm{over: make(chan struct{}), nodes: *stormNodes, pods: *stormNodes * *stormPods}
	var notices []string
	for range *stormNodes {
		node, instance := addInstance(t, cp)
		node.AddPods(t, "pod", *stormPods)
		notices = append(notices, spot(instance))
		t.Cleanup(node.Observe(t, watch.take))
	}
	consumer := q.start(t, "")
	consumer.WaitStatus(t, "reading the queue")

	sent := time.Now()
	q.Send(notices...)

	select {
	case <-watch.over:
	case <-time.After(150 * time.Second):
		t.Fatalf("%d nodes are not cordoned and %d pods not gone", watch.nodes, watch.pods)
	}
	q.waitEmpty(t)
	deleted, usage := time.Since(sent), daemon.UsageOf(t, consumer.PID())
	consumer.Stop(t)
	for name, id := range map[string]string{
		"drain begun": systemd.DrainStarted, "cordon": systemd.Cordoned, "eviction": systemd.PodEvicted, "pod seen gone": systemd.PodGone,
		"drain ended": systemd.Drained,
	} {
		said := consumer.Logged(id)
		t.Logf("%d times %s, the last after %s", len(said), name, said[len(said)-1].Time.Sub(sent))
	}
	t.Logf("%d nodes of %d pods: the last cordon after %s, the last pod gone after %s, the last message after %s; it used %s of processor and %d MB at most",
		*stormNodes, *stormPods, watch.cordon.Sub(sent), watch.gone.Sub(sent), deleted, usage.Processor, usage.Memory>>20)
}

// storm takes the time of the last cordon and of the last pod's end.
type storm struct {
	mu           sync.Mutex
	nodes, pods  int
	cordon, gone time.Time
	over         chan struct{}
}

func (s *storm) take(m lab.Moment) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch m.What {
	case lab.Cordoned:
		s.nodes--
		s.cordon = m.At
	case lab.PodGone:
		s.pods--
		s.gone = m.At
	case lab.Uncordoned, lab.PodTerminating:
		return
	}
	if s.nodes == 0 && s.pods == 0 {
		close(s.over)
	}
}
