package bench

import (
	"time"

	"github.com/nth-project/nth/test/internal/lab"
)

// What aws-node-termination-handler occupies, in MB, while it watches and at most in a drain of a full node. nth is to take three
// quarters and four fifths of that.
const handlerIdle, handlerPeak = 45, 55

// idling measures what nth costs while nothing happens, on a node with as many pods as it takes.
func (b *bench) idling(t lab.TB) []row {
	h := b.host(t, present, "")
	h.node.AddPods(t, "pod", podsPerNode)
	nth := h.start(t)
	used, requests, began := processor(t, nth.PID()), h.imds.Requests().Total, time.Now()
	select {
	case <-time.After(idleFor):
	case <-t.Context().Done():
		t.Fatalf("watching nth idle: %v", t.Context().Err())
	}
	nth.MustRun(t)
	used, requests = processor(t, nth.PID())-used, h.imds.Requests().Total-requests
	took := time.Since(began)
	resident := memory(t, nth.PID())
	nth.Stop(t)
	return []row{
		{"resident memory, idle", resident.now, 0.75 * handlerIdle, "MB", 1},
		{"    of it not pages of the program's file", resident.own, 8, "MB", 1},
		{"processor, idle, of one core", 100 * used.Seconds() / took.Seconds(), 0.25, "%", 2},
		{"requests to IMDS", float64(requests) / took.Minutes(), 270, "/min", 0},
		{"    processor for each", 1000 * used.Seconds() / float64(max(requests, 1)), 0, "ms", 2},
	}
}
