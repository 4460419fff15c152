package bench

import (
	"fmt"
	"sync"
	"time"

	"github.com/nth-project/nth/pkg/systemd"
	"github.com/nth-project/nth/test/lab"
)

// draining measures the time from the cordon to the end of the last pod, for nth and for the bare client in turns, so
// that both meet the machine in the same mood. The pods go as soon as they are told to.
func (b *bench) draining(t lab.TB) []row {
	var byNTH, byFloor sample
	var peak float64
	for range rounds {
		took, most := b.drainByNTH(t)
		byNTH, peak = append(byNTH, took), max(peak, most)
		byFloor = append(byFloor, b.drainByFloor(t))
	}
	return []row{
		{"resident memory, peak during a drain", peak, 36, "MB", 1},
		{fmt.Sprintf("%d pods gone after the cordon, median of %d", podsPerNode, rounds), byNTH.median(), 0.8, "s", 3},
		{"    the same by a bare client without limits", byFloor.median(), 0, "s", 3},
	}
}

// drainByNTH returns how long the drain took, and the most memory that nth ever occupied in it, in MB.
func (b *bench) drainByNTH(t lab.TB) (time.Duration, float64) {
	h := b.host(t, "")
	h.node.AddPods(t, "pod", podsPerNode)
	nth := h.start(t)
	span := watchSpan(t, h.node)
	h.imds.SetSpot("terminate", time.Now().Add(2*time.Minute))
	took := span.wait(t)
	nth.WaitLog(t, systemd.Drained)
	peak := memory(t, nth.PID()).peak
	nth.Stop(t)
	return took, peak
}

func (b *bench) drainByFloor(t lab.TB) time.Duration {
	node := b.cp.AddNode(t)
	node.AddPods(t, "pod", podsPerNode)
	span := watchSpan(t, node)
	if err := floor(t.Context(), node); err != nil {
		t.Fatalf("draining with the bare client: %v", err)
	}
	return span.wait(t)
}

// A span is the time from a node's cordon to the end of its last pod.
type span struct {
	mu       sync.Mutex
	cordoned time.Time
	left     int
	over     chan time.Time
	stop     func()
}

// watchSpan begins to watch a node of podsPerNode pods.
func watchSpan(t lab.TB, node *lab.Node) *span {
	t.Helper()
	s := &span{left: podsPerNode, over: make(chan time.Time, 1)}
	s.stop = node.Observe(t, s.take)
	return s
}

func (s *span) take(m lab.Moment) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch m.What {
	case lab.Cordoned:
		s.cordoned = m.At
	case lab.PodGone:
		if s.left--; s.left == 0 {
			s.over <- m.At
		}
	case lab.Uncordoned, lab.PodTerminating:
	}
}

// wait waits for the end of the last pod.
func (s *span) wait(t lab.TB) time.Duration {
	t.Helper()
	end := receive(t, s.over)
	s.stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	return end.Sub(s.cordoned)
}
