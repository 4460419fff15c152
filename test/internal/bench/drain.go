package bench

import (
	"fmt"
	"sync"
	"time"

	"github.com/nth-project/nth/pkg/systemd"
	"github.com/nth-project/nth/test/internal/lab"
)

// A load is how many pods are drained, and how many times.
type load struct {
	pods, rounds int
	// most is what is wanted, in seconds; factor is that instead, as a multiple of the bare client's time.
	most, factor float64
	// memory is the most that nth should occupy, in MB.
	memory float64
}

var (
	// usual is a node with as many pods as a kubelet takes unless told otherwise.
	usual = load{pods: podsPerNode, rounds: 5, most: 0.8, memory: 0.8 * handlerPeak}
	// crowded is a node with many more. Its kubelets, which the lab simulates, take whatever names them; what is measured
	// is nth beside the least that a client can do. The unit guarantees so much memory.
	crowded = load{pods: 1000, rounds: 3, factor: 1.25, memory: 64}
)

// draining measures the time from the cordon to the end of the last pod, for each edition of nth and for the bare client in
// turns, so that all meet the machine in the same mood. The pods go as soon as they are told to.
func (b *bench) draining(t lab.TB, l load) []row {
	took, floor := make([]sample, len(b.editions)), sample{}
	var peak float64
	for range l.rounds {
		for i, e := range b.editions {
			once, most := b.drainByNTH(t, e, l.pods)
			if took[i] = append(took[i], once); e == present {
				peak = max(peak, most)
			}
		}
		floor = append(floor, b.drainByFloor(t, l.pods))
	}
	most := l.most
	if l.factor > 0 {
		most = l.factor * floor.median()
	}
	rows := []row{
		{fmt.Sprintf("%d pods gone after the cordon, median of %d", l.pods, l.rounds), took[0].median(), most, "s", 3},
		{"    the same by a bare client without limits", floor.median(), 0, "s", 3},
	}
	rows = append(rows, b.against(took)...)
	return append(rows, row{fmt.Sprintf("resident memory, peak of a drain of %d", l.pods), peak, l.memory, "MB", 1})
}

// against compares the present edition with the older one, if there is one.
func (b *bench) against(took []sample) []row {
	var rows []row
	for i, e := range b.editions {
		if e != present {
			rows = append(rows,
				row{"    the same by nth at " + e.name, took[i].median(), 0, "s", 3},
				row{"    the present one, as a multiple of that", took[0].median() / took[i].median(), 0, "×", 2})
		}
	}
	return rows
}

// drainByNTH returns how long the drain took, and the most memory that nth ever occupied in it, in MB.
func (b *bench) drainByNTH(t lab.TB, e edition, pods int) (time.Duration, float64) {
	h := b.host(t, e, "")
	h.node.AddPods(t, "pod", pods)
	nth := h.start(t)
	span := watchSpan(t, h.node, pods)
	h.imds.SetSpot("terminate", time.Now().Add(2*time.Minute))
	took := span.wait(t)
	nth.WaitLog(t, systemd.Drained)
	peak := memory(t, nth.PID()).peak
	nth.Stop(t)
	return took, peak
}

func (b *bench) drainByFloor(t lab.TB, pods int) time.Duration {
	node := b.cp.AddNode(t)
	node.AddPods(t, "pod", pods)
	span := watchSpan(t, node, pods)
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

// watchSpan begins to watch a node of so many pods.
func watchSpan(t lab.TB, node *lab.Node, pods int) *span {
	t.Helper()
	s := &span{left: pods, over: make(chan time.Time, 1)}
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
