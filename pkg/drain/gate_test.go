package drain_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/drain/apitest"
	"github.com/nth-project/nth/pkg/kube"
)

// All nodes of nth-queue share one gate for these, too. That no pod comes to a node that is lost cannot wait, once it has been begun.
func TestCordon_PassesAtTheGate(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		before, what string // what has the place that is waited for then
		opts         drain.Options
		passes       bool
	}{
		"the first look at it":        {"", "get node", drain.Options{}, true},
		"its cordon":                  {"get node", "patch node", drain.Options{}, true},
		"not its load balancer label": {"patch node", "patch node", drain.Options{ExcludeFromLoadBalancers: true}, false},
	} {
		run(t, name, func(t *testing.T, s *apitest.Server) {
			gate := kube.NewGate(1)
			c.opts.Requests = gate
			for _, what := range []string{"get", "patch"} {
				s.Always(what, slowly(time.Second))
			}
			var holder, waiting <-chan func()
			if c.before == "" {
				holder, waiting = apitest.Enter(t, gate, kube.First), apitest.Enter(t, gate, kube.InTurn)
				begin(t, s, c.opts)
			} else {
				begin(t, s, c.opts)
				await(t, "what has the place before", func() bool { return count(s, c.before) == 1 })
				holder, waiting = apitest.Enter(t, gate, kube.First), apitest.Enter(t, gate, kube.InTurn)
			}
			leave := <-holder
			asked := count(s, c.what)
			time.Sleep(500 * time.Millisecond) // Now it waits behind the other one, which has come before it.
			leave()
			synctest.Wait()
			if passed := count(s, c.what) > asked; passed != c.passes || passed == (len(waiting) > 0) {
				t.Errorf("it has passed the one that has waited longer: %t, and that one has entered: %t", passed, len(waiting) > 0)
			}
		})
	}
}
