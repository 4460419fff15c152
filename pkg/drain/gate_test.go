package drain_test

import (
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/drain/apitest"
)

func TestAGateBoundsTheEvictionsThatWaitForAnAnswer(t *testing.T) {
	t.Parallel()
	const places, pods = 2, 7
	s := apitest.New(t)
	for i := range pods {
		s.AddPod(pod(fmt.Sprint("pod-", i)), 0)
	}
	var waiting, most atomic.Int32
	full := make(chan struct{})
	fill := sync.OnceFunc(func() { close(full) })
	s.Always("evict", func(http.ResponseWriter, *http.Request) bool {
		now := waiting.Add(1)
		defer waiting.Add(-1)
		for before := most.Load(); now > before && !most.CompareAndSwap(before, now); before = most.Load() {
		}
		if now >= places {
			fill()
		}
		<-full // nobody is answered before all places are taken
		return false
	})
	r := begin(t, s, drain.Options{Gate: drain.NewGate(places)})
	if result := r.succeed(); result.Evicted != pods {
		t.Errorf("the result is %+v", result)
	}
	if most.Load() != places {
		t.Errorf("%d evictions waited at once, want %d", most.Load(), places)
	}
}

func TestAGateIsQuietWhileNobodyAsks(t *testing.T) {
	t.Parallel()
	s := apitest.New(t)
	s.AddPod(pod("a"), 0)
	gate := drain.NewGate(1)
	<-gate.Quiet()
	asked, answer := make(chan struct{}), make(chan struct{})
	ask := sync.OnceFunc(func() { close(asked) })
	s.Always("evict", func(http.ResponseWriter, *http.Request) bool {
		ask()
		<-answer
		return false
	})
	r := begin(t, s, drain.Options{Gate: gate})
	<-asked
	select {
	case <-gate.Quiet():
		t.Error("the gate is quiet while an eviction waits for its answer")
	default:
	}
	close(answer)
	r.succeed()
	<-gate.Quiet()
}
