package node_test

import (
	"os"
	"testing"

	"github.com/nth-project/nth/test/internal/lab"
	"github.com/nth-project/nth/test/internal/traffic"
)

// Each way to lose a node, and the Services that lose requests with it: those of nth lose none. "make node" gives each as long as
// EC2 does, one after the other, and prints the table of README.md.
func TestRequests_AreLostWithoutNthOnly(t *testing.T) {
	handler := traffic.Short
	handler.Notice /= 2 // is enough to see what a budget holds
	cases := []struct {
		way  traffic.Way
		o    traffic.Options
		lose []string
	}{
		{traffic.Nobody, traffic.Short, traffic.Services()},
		{traffic.Kubelet, traffic.Short, traffic.Services()},
		{traffic.Handler, handler, []string{traffic.Guarded, traffic.Balanced}},
		{traffic.Nth, traffic.Short, nil},
	}
	full := os.Getenv("NTH_NIGHTLY") != ""
	results := make([]traffic.Result, len(cases))
	for i, c := range cases {
		t.Run(c.way.Name, func(t *testing.T) {
			if full {
				c.o = traffic.Full
			} else {
				t.Parallel()
			}
			r := traffic.Run(t, lab.Shared(t), c.way, c.o)
			results[i] = r
			t.Logf("%s", r)
			for _, service := range c.lose {
				if r.Count(service).Lost == 0 {
					t.Errorf("%s has lost no request", service)
				}
			}
			for _, count := range r.Counts {
				if count.Sent < 10 || c.lose == nil && count.Lost > 0 {
					t.Errorf("%s has lost %d of %d requests: %v", count.Service, count.Lost, count.Sent, count.Reasons)
				}
			}
		})
	}
	if !full || t.Failed() {
		return
	}
	t.Logf("requests lost\n%s", traffic.Table(results, traffic.Full))
}
