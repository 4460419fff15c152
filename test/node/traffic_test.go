package node_test

import (
	"os"
	"testing"

	"github.com/nth-project/nth/test/internal/lab"
	"github.com/nth-project/nth/test/internal/traffic"
)

// With nth no Service loses a request. "make node" loses the node in each way, one after the other and for as long as EC2 takes, and prints
// the table of README.md.
func TestRequests_AreLostWithoutNthOnly(t *testing.T) {
	cases := []struct {
		way  traffic.Way
		lose []string
	}{
		{traffic.Nobody, traffic.Services()},
		{traffic.Kubelet, traffic.Services()},
		{traffic.Handler, []string{traffic.Guarded}},
		{traffic.Nth, nil},
	}
	o := traffic.Full
	if os.Getenv("NTH_NIGHTLY") == "" {
		t.Parallel()
		cases, o = cases[3:], traffic.Short
	}
	var results []traffic.Result
	for _, c := range cases {
		t.Run(c.way.Name, func(t *testing.T) {
			r := traffic.Run(t, lab.Shared(t), c.way, o)
			results = append(results, r)
			t.Logf("%s", r)
			for _, service := range c.lose {
				if r.Count(service).Lost == 0 {
					t.Errorf("%s has lost no request", service)
				}
			}
			for _, count := range r.Counts {
				if count.Sent < 10 || c.lose == nil && count.Lost > 0 {
					t.Errorf("%s has lost %d of %d requests: %v", count.Service, count.Lost, count.Sent, count.Why)
				}
			}
		})
	}
	if len(results) == len(cases) && len(cases) > 1 {
		t.Logf("requests lost\n%s", traffic.Table(results, o))
	}
}
