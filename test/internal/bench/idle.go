package bench

import (
	"time"

	"github.com/nth-project/nth/pkg/imds/imdstest"
	"github.com/nth-project/nth/test/internal/lab"
)

// What aws-node-termination-handler occupies, in MB, while it watches and at most in a drain of a full node. nth is to take three
// quarters and four fifths of that.
const handlerIdle, handlerPeak = 45, 55

// idling measures what nth costs while nothing happens, on a node with as many pods as it takes, beside processes
// that poll and do nothing else.
func (b *bench) idling(t lab.TB) []row {
	h := b.host(t, present, "")
	h.node.AddPods(t, "pod", podsPerNode)
	nth := h.start(t)

	ours, source, bare := perRequest{pid: nth.PID(), imds: h.imds}, polling(t, SourcePoller), polling(t, BarePoller)
	for _, p := range []*perRequest{&bare, &source, &ours} {
		if err := p.imds.Await(t.Context(), func(c imdstest.Counts) bool { return c.Total >= len(pollers) }); err != nil {
			t.Fatalf("waiting for the first requests: %v", err)
		}
		p.begin(t)
	}
	began := time.Now()
	select {
	case <-time.After(idleFor):
	case <-t.Context().Done():
		t.Fatalf("watching nth idle: %v", t.Context().Err())
	}
	nth.MustRun(t)
	took := time.Since(began)
	for _, p := range []*perRequest{&bare, &source, &ours} {
		p.end(t)
	}
	resident := memory(t, nth.PID())
	nth.Stop(t)
	return []row{
		{"resident memory, idle", resident.now, 0.75 * handlerIdle, "MB", 1},
		{"    of it not pages of the program's file", resident.own, 8, "MB", 1},
		{"processor, idle, of one core", 100 * ours.used.Seconds() / took.Seconds(), 0.25, "%", 2},
		{"requests to IMDS", float64(ours.requests) / took.Minutes(), 270, "/min", 0},
		{"    processor for each, all of nth", ours.each(), 0, "ms", 2},
		{"    nth's metadata client alone", source.each(), 1.3 * bare.each(), "ms", 2},
		{"    a bare net/http client", bare.each(), 0, "ms", 2},
	}
}

// perRequest is what a process uses while it polls a metadata service, whatever else it does.
type perRequest struct {
	pid      int
	imds     *imdstest.Server
	used     time.Duration
	requests int
}

// polling starts a poller of that name, with a metadata service of its own.
func polling(t lab.TB, name string) perRequest {
	t.Helper()
	ec2 := imdstest.NewServer()
	t.Cleanup(ec2.Close)
	return perRequest{pid: startPoller(t, name, ec2.URL), imds: ec2}
}

func (p *perRequest) begin(t lab.TB) {
	p.used, p.requests = processor(t, p.pid), p.imds.Requests().Total
}

func (p *perRequest) end(t lab.TB) {
	p.used, p.requests = processor(t, p.pid)-p.used, p.imds.Requests().Total-p.requests
}

// each is the processor time for one request, in milliseconds.
func (p *perRequest) each() float64 { return 1000 * p.used.Seconds() / float64(max(p.requests, 1)) }
