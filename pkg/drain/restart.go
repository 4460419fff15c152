package drain

import (
	"cmp"
	"context"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// restartPatience is how long a restart may take to be asked for. What goes after the pod, such as cluster DNS, waits for that.
const restartPatience = 20 * time.Second

// restart is what becomes of a pod whose workload is to make another in its place.
type restart struct {
	// asked is when that was asked for; zero if it was not.
	asked time.Time
	// answered tells that it was heard what came of it, and workload is what makes other pods now; "" is nothing.
	answered bool
	workload string
	// holds tells that the pod is not evicted because of that: others need not wait for it.
	holds bool
}

// restarts tells whether a pod's workload is to be restarted before the pod is evicted.
func (o Options) restarts(pod *corev1.Pod) bool {
	when, _ := KeyValue(pod.Annotations, EvictAnnotation)
	return o.Restart != nil && o.RestartWait > 0 && when == AfterRestart && !finished(pod)
}

// restarting tells whether a pod is not to be evicted yet because its workload makes another in its place, and when that is over at the
// latest. The workload is asked for once, and only before the first eviction; not for a pod that came while the node was being emptied, in
// whose place another one would come there, too.
func (g *guard) restarting(t *target, turned bool, now time.Time) (bool, time.Time) {
	r := &t.restart
	if turned || t.last != "" || t.late || r.answered && r.workload == "" || !g.node.opts.restarts(t.pod) {
		return false, time.Time{}
	}
	_, turn := g.limits(t, now)
	until := soonest(g.restartedBy(cmp.Or(r.asked, now)), turn)
	if !now.Before(until) {
		return false, time.Time{}
	}
	if r.asked.IsZero() {
		r.asked = now
		g.askToRestart(t, soonest(until, now.Add(restartPatience)))
	}
	return true, until
}

// restartedBy is until when a pod may wait for another one in its place, from when that was asked for: as with load balancers, for half of
// the time before a deadline at most, since disruption budgets need time as well.
func (g *guard) restartedBy(asked time.Time) time.Time {
	until := asked.Add(g.node.opts.RestartWait)
	if by := g.balancedBy(asked); !by.IsZero() {
		until = soonest(until, asked.Add(by.Sub(asked)/2))
	}
	return until
}

// askToRestart has a pod's workload restarted, and does not wait for that.
func (g *guard) askToRestart(t *target, until time.Time) {
	ctx, cancel := context.WithDeadline(g.ctx, until)
	t.cancel, t.sent = cancel, new(atomic.Bool)
	pod := t.pod
	g.workers.Go(func() {
		defer cancel()
		workload := g.node.opts.Restart(ctx, pod)
		g.post(func() { g.restarted(t, workload) })
	})
}

// restarted takes in what makes other pods in place of one; "" is nothing.
func (g *guard) restarted(t *target, workload string) {
	if g.targets[t.pod.UID] != t || t.last != "" {
		return
	}
	t.cancel = nil
	t.restart.answered, t.restart.workload = true, workload
	g.touched = append(g.touched, t)
	if workload != "" && t.pod.DeletionTimestamp == nil {
		t.restart.holds, t.held, g.all = true, "the restart of "+workload, true
		g.say(aboutPod(Restarting, t.pod, workload))
	}
}

// noteRestart remembers what has become of the restart for a pod that is to stay now, as it may have to go again: the workload is asked for
// once. An answer that has not come is waited for no more.
func (g *guard) noteRestart(t *target) {
	switch r := t.restart; {
	case t.last != "":
		g.replaced[t.pod.UID] = restart{answered: true}
	case !r.asked.IsZero():
		g.replaced[t.pod.UID] = restart{asked: r.asked, answered: true, workload: r.workload}
	}
}

// recallRestart has a pod that is to go again wait for what is left of its wait for another one in its place. For one of those that come back
// to the closed node, nothing is restarted: another one would come there, too.
func (g *guard) recallRestart(t *target, of *family) {
	t.restart = g.replaced[t.pod.UID]
	delete(g.replaced, t.pod.UID)
	if t.round > 0 {
		g.returning[of.name] = true
	}
	if t.restart.asked.IsZero() && g.returning[of.name] {
		t.restart.answered = true
	}
	if workload := t.restart.workload; workload != "" && t.pod.DeletionTimestamp == nil && g.node.opts.restarts(t.pod) {
		t.restart.holds, t.held = true, "the restart of "+workload
	}
}
