package fleet_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/fleet"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
)

func TestDispatch_BeginsDrainsInTurn(t *testing.T) {
	each(t, map[string]bool{"and they end": false, "and the term ends": true}, func(t *testing.T, c *cluster, termEnds bool) {
		for _, id := range []string{"i-1", "i-2", "i-3", "i-4"} {
			n := nodeOf("n-"+id, id)
			n.Labels = map[string]string{"zone": map[bool]string{true: "a", false: "b"}[id < "i-3"]}
			c.add(n, podOn("n-"+id, "p-"+id))
		}
		c.before("evict", held)
		r := c.run(func(o *fleet.Options) { o.GroupLabel, o.Limits = "zone", fleet.Limits{Draining: 2, Group: 1} })
		for _, id := range []string{"i-1", "i-2", "i-3"} {
			r.take(termination(id))
			time.Sleep(time.Second)
		}
		if now := r.Status(); now.Draining != 2 || now.Waiting != 1 || !c.node("n-i-3").Spec.Unschedulable || r.hooks.holds() != 3 {
			t.Errorf("it stands as %+v, and %d hooks are held", now, r.hooks.holds())
		}
		r.take(spot("i-4"))
		time.Sleep(time.Second)
		if now := r.Status(); now.Draining != 3 || now.Waiting != 1 || !c.node("n-i-4").Spec.Unschedulable {
			t.Errorf("with what leaves no time, it stands as %+v", now)
		}
		if slices.ContainsFunc(r.Status().Events, func(ev state.EventStatus) bool { return time.Since(ev.FirstSeen) > time.Minute }) {
			t.Errorf("some events were not seen just now: %v", r.Status().Events)
		}
		if termEnds {
			if r.stop(); r.begun.Load() != 3 {
				t.Errorf("%d drains were begun, want none at the end of the term", r.begun.Load()-3)
			}
			return
		}
		c.before("change", func(int) error { time.Sleep(7 * time.Second); return nil }) // such as the claim of an event that joins
		r.take(notice("i-1", event.StateChange, "stopping", 0))
		c.before("evict", nil)
		for range 100 {
			if time.Sleep(100 * time.Millisecond); r.Status().LeftAlone > 0 {
				t.Error("a drain that ends counts as left alone")
				break
			}
		}
		c.before("change", nil)
		time.Sleep(time.Minute)
	})
}

// All nodes are cordoned before the second is drained, each with one request, and what is urgent goes before what is not.
func TestDispatch_CordonsAllAtOnce(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		const nodes = 40
		var writes, want []string
		for i := range nodes {
			name := fmt.Sprintf("n%d", i)
			c.add(nodeOf(name, "i-"+name), podOn(name, "p-"+name))
			want = append(want, "PATCH /api/v1/nodes/"+name)
		}
		c.before("evict", held)
		r := c.run(func(o *fleet.Options) { o.Limits.Draining = 1 })
		r.way.mu.Lock()
		r.way.wrote = func(what string) {
			c.mu.Lock()
			defer c.mu.Unlock()
			writes = append(writes, what)
		}
		r.way.mu.Unlock()
		var messages []parcel
		for i := range nodes - 1 {
			messages = append(messages, r.take(notice(fmt.Sprintf("i-n%d", i), event.RebalanceRecommendation, "", 0)))
			if i == 0 {
				time.Sleep(2 * time.Second)
			}
		}
		messages = append(messages, r.take(spot(fmt.Sprintf("i-n%d", nodes-1))))
		time.Sleep(30 * time.Second)
		if now := r.Status(); now.Draining != 2 || now.Waiting != nodes-2 {
			t.Errorf("%d are drained, want the first and the urgent one, and %d wait", now.Draining, now.Waiting)
		}
		c.before("evict", nil)
		for _, m := range messages {
			m.want(t, "done")
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		cordons := slices.DeleteFunc(slices.Clone(writes), func(w string) bool { return !strings.HasPrefix(w, "PATCH") })
		if slices.Sort(cordons); !slices.Equal(cordons, slices.Sorted(slices.Values(want))) {
			t.Errorf("the Nodes were written to by %q, want one patch for each", cordons)
		}
		evicted := map[string]bool{}
		for _, w := range writes {
			if pod, is := strings.CutPrefix(w, "POST /api/v1/namespaces/shop/pods/"); is {
				evicted[pod] = true
			} else if len(evicted) > 2 {
				t.Errorf("%s came after pods of %d nodes were evicted", w, len(evicted))
			}
		}
	})
}

func TestDispatch_CordonsWhatWaitsIfItIsToBeCordoned(t *testing.T) {
	const key = "aws-node-termination-handler/rebalance-recommendation"
	type row struct {
		action  policy.Action
		people  string // what people want done to the node at most
		closed  bool   // while it waits
		drained bool   // in the end
	}
	each(t, map[string]row{
		"its turn comes":         {action: policy.Drain, closed: true, drained: true},
		"to be cordoned":         {action: policy.Cordon, closed: true},
		"only told":              {action: policy.Notify},
		"left alone by people":   {action: policy.Drain, people: drain.LeaveNode},
		"cordoned as people say": {action: policy.Drain, people: drain.OnlyCordon, closed: true},
	}, func(t *testing.T, c *cluster, row row) {
		n := nodeOf("a", instance)
		if row.people != "" {
			n.Annotations[drain.ActionAnnotation] = row.people
		}
		c.add(n, podOn("a", "one"), nodeOf("b", other), podOn("b", "two"))
		c.before("evict", held)
		r := c.run(func(o *fleet.Options) {
			o.Limits.Draining, o.Taints = 1, fleet.Taints{Kinds: true, Effect: "NoSchedule"}
			o.Policy[event.RebalanceRecommendation] = policy.Rule{Action: row.action}
		})
		r.take(spot(other))
		time.Sleep(2 * time.Second)
		m := r.take(notice(instance, event.RebalanceRecommendation, "", 0))
		time.Sleep(2 * time.Second)
		tainted := func(n *corev1.Node) bool {
			return slices.ContainsFunc(n.Spec.Taints, func(taint corev1.Taint) bool { return taint.Key == key })
		}
		if n := c.node("a"); n.Spec.Unschedulable != row.closed || tainted(n) != row.closed {
			t.Errorf("while it waits, the node is unschedulable: %t, with the taints %v", n.Spec.Unschedulable, n.Spec.Taints)
		}
		synctest.Wait()
		c.before("evict", nil)
		m.want(t, "done")
		time.Sleep(5 * time.Second)
		if row.drained {
			c.wantDrained("a")
		} else if !row.closed {
			c.wantUntouched("a")
		}
	})
}

func TestDispatch_BeginsWhatGetsUrgentWithTime(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		n := nodeOf("a", instance)
		n.Spec.Unschedulable = true // There is nothing to do while it waits.
		c.add(n, podOn("a", "one"), nodeOf("b", other), podOn("b", "two"))
		c.before("evict two", held)
		r := c.run(func(o *fleet.Options) { o.Limits.Draining = 1 })
		r.take(termination(other))
		time.Sleep(2 * time.Second)
		end := notice(instance, event.ReservationEnd, "", 0)
		end.Event.Deadline = time.Now().Add(10 * time.Minute)
		r.take(end)
		time.Sleep(8*time.Minute + 30*time.Second)
		c.wantDrained("a")
	})
}

// People open a node that waits: it is not cordoned again, and only the pods that were on it before are evicted.
func TestDispatch_HearsPeopleWhoOpenANodeThatWaits(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		c.add(nodeOf("a", instance), podOn("a", "one"), nodeOf("b", other), podOn("b", "two"))
		c.before("evict", held)
		r := c.run(func(o *fleet.Options) { o.Limits.Draining = 1 })
		r.take(spot(other))
		time.Sleep(2 * time.Second)
		m := r.take(notice(instance, event.RebalanceRecommendation, "", 0))
		time.Sleep(2 * time.Second)
		c.change("a", func(n *corev1.Node) { n.Spec.Unschedulable = false })
		time.Sleep(2 * time.Second)
		late := podOn("a", "late")
		late.CreationTimestamp.Time = time.Now()
		c.add(late)
		c.before("evict", nil)
		m.want(t, "done")
		if pods := c.podsOn("a"); c.node("a").Spec.Unschedulable || !slices.Equal(pods, []string{"late"}) {
			t.Errorf("the node is unschedulable: %t, with the pods %q", c.node("a").Spec.Unschedulable, pods)
		}
	})
}

// The list of its pods comes before the Node does, and each pod asks for a look at that. Another Node of the instance is not Ready.
func TestTake_DrainsTheNodeOfTheInstanceAlone(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		old := nodeOf("old", instance)
		old.Status.Conditions[0].Status = corev1.ConditionUnknown
		c.add(old, nodeOf("a", instance), nodeOf("b", other), podOn("b", "three"))
		for _, name := range strings.Split("0123456789", "") {
			c.add(podOn("a", name))
		}
		r := c.run(nil)
		c.before("get", func(int) error {
			time.Sleep(100 * time.Millisecond)
			return nil
		})
		lists, gets := c.times("list"), c.times("get")
		r.take(spot(instance)).want(t, "done")
		c.wantDrained("a")
		c.wantUntouched("b")
		if r.ear.times(state.Done) != 1 {
			t.Errorf("drains were done %d times, want once", r.ear.times(state.Done))
		}
		writes := c.times("evict") + c.times("change") + c.times("taint")
		lists, gets = c.times("list")-lists, c.times("get")-gets
		if writes > 11 || lists > 1 || gets > 0 { // How new the last list of pods has to be is asked once.
			t.Errorf("there were %d writes, %d more lists of Nodes, and %d reads of the Node", writes, lists, gets)
		}
	})
}
