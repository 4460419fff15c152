package e2e

import (
	"maps"
	"net/http"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/systemd"
	"github.com/nth-project/nth/test/internal/faultproxy"
	"github.com/nth-project/nth/test/internal/lab"
)

// The tests in this file let nth drain a node that another program drains, too.

const systemCritical = "system-cluster-critical"

// behind is how long after a pod began to end nth's watch may tell it so, on a machine that is busy with other tests.
const behind = 3 * time.Second

// A contest is a stage on which somebody else empties the node as well.
type contest struct {
	*stage
	rival *rival
	proxy *faultproxy.Proxy

	mu    sync.Mutex
	ended map[string]time.Time // when each pod was first seen to end, whoever had asked for it
}

// contend sets a stage with one of everything, on which nth watches.
func contend(t *testing.T, with, settings string) *contest {
	t.Helper()
	c := &contest{stage: prepare(t, settings), ended: map[string]time.Time{}}
	c.proxy = faultproxy.New(t, c.node)
	c.options.Kubeconfig = c.proxy.Kubeconfig
	c.machine.Configure(t, c.options)
	c.rival = newRival(t, c.node, with)
	c.node.AddDaemonSet(t, "stays")
	c.node.AddStatefulSet(t, "store", 2)
	c.node.AddPods(t, "slow", 3, lab.Grace(8*time.Second), lab.GoesAtGrace())
	c.node.AddDeployment(t, "web", 3, lab.MinAvailable(2), lab.Grace(2*time.Second), lab.GoesAtGrace())
	c.node.AddDeployment(t, "dns", 1, lab.Grace(14*time.Second), lab.GoesAtGrace(), lab.Edit(func(pod *corev1.PodTemplateSpec) {
		pod.Spec.PriorityClassName = systemCritical
	}))
	c.node.Observe(t, func(m lab.Moment) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if _, before := c.ended[m.Pod]; m.What == lab.PodTerminating && !before {
			c.ended[m.Pod] = m.At
		}
	})
	return c
}

// watch starts nth and waits until it watches.
func (c *contest) watch(t *testing.T) {
	t.Helper()
	c.start(t)
	c.nth.WaitWatching(t, c.node.Name)
}

// mustEvictOnce fails the test if nth has evicted a pod that it, or the other, had evicted before.
func (c *contest) mustEvictOnce(t *testing.T) {
	t.Helper()
	c.mu.Lock()
	ended := maps.Clone(c.ended)
	c.mu.Unlock()
	ours, asked, refused := map[string]int{}, 0, 0
	for _, r := range c.proxy.Requests() {
		if r.Call != faultproxy.EvictPod && r.Call != faultproxy.DeletePod {
			continue
		}
		asked++
		if r.Status == http.StatusTooManyRequests {
			refused++
		}
		if r.Status < http.StatusMultipleChoices {
			ours[r.Pod()]++
		}
		if at, ends := ended[r.Pod()]; ends && r.Began.After(at.Add(behind)) {
			t.Errorf("nth asked to %s %s, which had been ending for %s", r.Call, r.Pod(), r.Began.Sub(at))
		}
	}
	theirs, both := c.rival.accepted(), 0
	for pod, n := range ours {
		if n > 1 {
			t.Errorf("%d evictions of %s by nth were accepted", n, pod)
		}
		if theirs[pod] > 0 {
			both++ // the other was first, and nth could not know it yet
		}
	}
	for pod, n := range theirs {
		if n > 1 {
			t.Errorf("%d evictions of %s by the other drainer were accepted, which is no faithful stand-in", n, pod)
		}
	}
	t.Logf("%d pods; nth asked %d times and was refused %d times; accepted from nth: %d, from the other: %d, from both: %d",
		len(ended), asked, refused, len(ours), len(theirs), both)
}

func TestDrain_BesideAnotherDrainer(t *testing.T) {
	t.Parallel()
	for _, with := range []string{"Karpenter", "a managed node group", "Cluster Autoscaler"} {
		for order, begin := range map[string]func(*contest, *testing.T){
			"after nth":  (*contest).beginOurs,
			"before nth": (*contest).beginTheirs,
			"together with nth": func(c *contest, t *testing.T) {
				c.rival.start(t)
				c.imds.SetSpot("terminate", twoMinutes())
			},
		} {
			t.Run(with+" "+order, func(t *testing.T) {
				c := contend(t, with, "")
				c.node.AddSpare(t)
				c.watch(t)
				begin(c, t)
				c.nth.WaitLog(t, systemd.Drained)
				c.rival.mustFinish(t)
				c.nth.Stop(t)
				c.mustEvictOnce(t)
				c.mustSayNothingOf(t, systemd.DrainIncomplete, systemd.Uncordoned)
				if e := c.machine.RecordOf(t, event.SpotInterruption); e.Phase != state.Drained || len(e.Result.Left) > 0 {
					t.Errorf("nth remembers the node as %s, with %+v", e.Phase, e.Result)
				}
			})
		}
	}
}

// beginOurs lets nth evict before the other begins.
func (c *contest) beginOurs(t *testing.T) {
	t.Helper()
	c.imds.SetSpot("terminate", twoMinutes())
	c.nth.WaitLog(t, systemd.PodEvicted)
	c.rival.start(t)
}

// beginTheirs lets the other evict before nth begins.
func (c *contest) beginTheirs(t *testing.T) {
	t.Helper()
	c.rival.start(t)
	c.rival.await(t)
	c.imds.SetSpot("terminate", twoMinutes())
}

func TestANoticeThatIsWithdrawnLeavesTheCordonToTheOtherDrainer(t *testing.T) {
	t.Parallel()
	for with, name := range map[string]string{
		"Karpenter":                          "Karpenter",
		"Cluster Autoscaler":                 "Cluster Autoscaler",
		"the update of a managed node group": "the update of the managed node group",
	} {
		t.Run(with, func(t *testing.T) {
			c := contend(t, with, withdrawnSoon)
			c.node.AddDeployment(t, "db", 1, lab.MinAvailable(1))
			c.watch(t)
			c.imds.SetSpot("terminate", twoMinutes())
			c.nth.WaitSays(t, "disruption budget db blocks the eviction of ")
			c.rival.start(t)
			c.node.WaitFor(t, "closed by the other drainer, too", func(node *corev1.Node) bool {
				return len(node.Spec.Taints) > 1 // beside the one that the cordon brings
			})

			c.imds.ClearSpot()
			c.nth.WaitSays(t, "the cordon is left to "+name)
			c.stopAfterLooks(t)
			c.mustBeCordoned(t)
			if claim, ok := c.claim(t); ok {
				t.Errorf("the node still bears %+v", claim)
			}
			c.mustBeClosed(t, event.SpotInterruption, state.Withdrawn)
			c.mustSayNothingOf(t, systemd.Uncordoned)

			for _, held := range []string{"db", "web"} {
				c.node.Scale(t, held, 0)
			}
			c.rival.mustFinish(t)
			c.mustEvictOnce(t)
		})
	}
}
