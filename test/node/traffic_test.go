package node_test

import (
	"testing"

	"github.com/nth-project/nth/test/internal/lab"
	"github.com/nth-project/nth/test/internal/traffic"
)

// lose has a node taken in that way, and tells what became of the requests.
func lose(t *testing.T, way traffic.Way, o traffic.Options) traffic.Result {
	t.Helper()
	r := traffic.Run(t, lab.Shared(t), way, o, func(traffic.Fact) {})
	t.Logf("%s", r)
	for _, c := range r.Counts {
		if c.Sent < 10 {
			t.Errorf("%s was sent %d requests only", c.Service, c.Sent)
		}
	}
	return r
}

// mustLose fails the test unless each of the Services has lost requests: else the clients would not notice anything.
func mustLose(t *testing.T, r traffic.Result, services ...string) {
	t.Helper()
	for _, service := range services {
		if r.Count(service).Lost == 0 {
			t.Errorf("%s has lost no request", service)
		}
	}
}

// mustKeep fails the test if one of the Services has lost a request.
func mustKeep(t *testing.T, r traffic.Result, services ...string) {
	t.Helper()
	for _, service := range services {
		if c := r.Count(service); c.Lost > 0 {
			t.Errorf("%s has lost %d of %d requests: %v", service, c.Lost, c.Sent, c.Reasons)
		}
	}
}

func TestNoRequestIsLostWithNth(t *testing.T) {
	t.Parallel()
	mustKeep(t, lose(t, traffic.Nth, traffic.Short), traffic.Services()...)
}

func TestRequestsAreLostWithANodeThatNobodyDrains(t *testing.T) {
	t.Parallel()
	mustLose(t, lose(t, traffic.Nobody, traffic.Short), traffic.Services()...)
}

func TestRequestsAreLostInTheGracefulShutdownOfTheKubeletAlone(t *testing.T) {
	t.Parallel()
	mustLose(t, lose(t, traffic.Kubelet, traffic.Short), traffic.Services()...)
}

// A handler that drains as kubectl does keeps budgets, but does not go past them when time is short, and waits for no
// load balancer. Half of the time is enough to see that.
func TestAHandlerThatDrainsAsKubectlDoesLosesWhatABudgetHoldsAndWhatComesThroughALoadBalancer(t *testing.T) {
	t.Parallel()
	o := traffic.Short
	o.Notice /= 2
	mustLose(t, lose(t, traffic.Handler, o), traffic.Guarded, traffic.Balanced)
}
