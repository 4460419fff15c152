package drain

import (
	"context"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// settle is how long after the cordon a drain may not yet call itself done: a scheduler that has not heard of the
// cordon may still bind a pod.
const settle = time.Second

// drainer is one drain under way. One goroutine (run) owns its fields; pods are removed by a goroutine each, which
// sends what it does to outcomes.
type drainer struct {
	node     *Node
	plan     Plan
	deadline time.Time // zero: none

	changes  chan change
	outcomes chan outcome
	workers  sync.WaitGroup

	open     chan struct{} // closed when evictions may begin
	rest     chan struct{} // closed when only critical pods are left
	restDone bool

	// lifted is when the cordon was set that somebody has lifted since; zero if nobody has. What came after that stays.
	lifted time.Time
	late   <-chan CordonResult // the end of a cordon that goes on beside the evictions; nil without one

	targets map[types.UID]*target
	spared  map[types.UID]*corev1.Pod
	// kept are those that came to a node that somebody has uncordoned meanwhile, or keep coming back.
	kept     map[types.UID]bool
	families map[string]*family
	synced   bool
	settled  bool
	total    int
	result   Result
}

// target is a pod that has to go.
type target struct {
	pod    *corev1.Pod
	ctx    context.Context //nolint:containedctx // the pod's: it ends when the pod is gone
	cancel context.CancelFunc
	calm   context.CancelFunc // ends the asking for its end
	how    What               // Evicted or Deleted once accepted
	held   string             // what refuses it now
	end    chan What          // gets the last word of the pod's worker
	// timed tells that its end is being waited for, and overdue that it should have come.
	timed, overdue bool
}

// outcome is what happened to a pod, as its worker or another helper of the drain reports it.
type outcome struct {
	uid    types.UID
	what   What
	detail string
}

func newDrainer(n *Node, plan Plan) *drainer {
	return &drainer{
		node: n, plan: plan,
		changes:  make(chan change),
		outcomes: make(chan outcome),
		open:     make(chan struct{}),
		rest:     make(chan struct{}),
		targets:  map[types.UID]*target{},
		spared:   map[types.UID]*corev1.Pod{},
		kept:     map[types.UID]bool{},
		families: map[string]*family{},
	}
}

func (d *drainer) run(ctx context.Context) (Result, error) {
	if deadline, ok := ctx.Deadline(); ok {
		d.deadline = deadline
	}
	inner, stop := context.WithCancel(ctx)
	defer d.workers.Wait()
	defer stop()
	d.workers.Go(func() { d.node.watchPods(inner, d.changes) })

	if err := d.cordon(inner); err != nil || d.result.NodeGone || d.result.Limited {
		return d.result, err
	}
	err := d.loop(inner)
	d.conclude()
	if err != nil {
		return d.result, err
	}
	d.result.VolumesInUse = d.awaitVolumes(inner)
	return d.result, nil
}

// loop takes in what happens until no evictable pod is left or ctx ends.
func (d *drainer) loop(ctx context.Context) error {
	hold := d.hold(ctx)
	settled := time.After(settle)
	for {
		select {
		case c := <-d.changes:
			d.apply(ctx, c)
		case o := <-d.outcomes:
			d.note(o)
		case result := <-d.late:
			d.late = nil
			d.cordoned(result)
		case <-hold:
			close(d.open)
			hold = nil
		case <-settled:
			d.settled = true
		case <-ctx.Done():
			return ctx.Err()
		}
		d.openRest()
		if d.synced && d.settled && d.late == nil && len(d.targets) == 0 {
			return nil
		}
	}
}

// apply takes in news from the watch.
func (d *drainer) apply(ctx context.Context, c change) {
	switch {
	case c.pod != nil:
		d.see(ctx, c.pod)
	case c.gone != "":
		d.lose(c.gone)
	default:
		d.replace(ctx, c.all)
	}
}

// replace takes in a complete list: pods that are not in it are gone, even if nobody saw them go.
func (d *drainer) replace(ctx context.Context, all []*corev1.Pod) {
	there := make(map[types.UID]bool, len(all))
	for _, pod := range all {
		there[pod.UID] = true
		d.see(ctx, pod)
	}
	for uid := range d.targets {
		if !there[uid] {
			d.lose(uid)
		}
	}
	maps.DeleteFunc(d.spared, func(uid types.UID, _ *corev1.Pod) bool { return !there[uid] })
	if !d.synced {
		d.synced = true
		d.tell(Progress{What: Found})
	}
}

// see takes in a pod that is on the node and begins to remove it if it has to go.
func (d *drainer) see(ctx context.Context, pod *corev1.Pod) {
	if t, known := d.targets[pod.UID]; known {
		d.follow(t, pod)
		return
	}
	if d.kept[pod.UID] || d.cameSince(pod) || !d.node.opts.concerns(pod) || stays(pod, !d.deadline.IsZero()) {
		d.spared[pod.UID] = pod
		return
	}
	round := d.round(pod)
	if d.gaveUp(pod, round) {
		d.spared[pod.UID], d.kept[pod.UID] = pod, true
		return
	}
	delete(d.spared, pod.UID)
	end := make(chan What, 1)
	t := &target{pod: pod, end: end}
	t.ctx, t.cancel = context.WithCancel(ctx)
	var calm context.Context
	calm, t.calm = context.WithCancel(t.ctx)
	d.targets[pod.UID] = t
	d.total++
	job := d.job(pod)
	job.pause = roundPause(round)
	d.workers.Go(func() { end <- job.run(t.ctx, calm) })
	d.timeEnd(t)
}

// follow takes in a change of a pod that has to go. Once it is ending, by whoever's hand, it is not evicted any more: a
// second request would do nothing for it, and others would take it for a second eviction. All that may be left to do is
// to shorten its grace before the deadline.
func (d *drainer) follow(t *target, pod *corev1.Pod) {
	ends := t.pod.DeletionTimestamp == nil && pod.DeletionTimestamp != nil
	t.pod = pod
	d.timeEnd(t)
	if !ends {
		return
	}
	t.calm()
	t.held = ""
	job, asking := d.job(pod), t.end
	job.late = false // whatever became of the cordon since, it does not stay
	end := make(chan What, 1)
	t.end = end
	d.workers.Go(func() {
		what := <-asking
		if what == "" {
			what = job.run(t.ctx, t.ctx)
		}
		end <- what
	})
}

// lose takes in that a pod is gone. The watch may be faster than the answer to the request that removed it.
func (d *drainer) lose(uid types.UID) {
	delete(d.spared, uid)
	t, known := d.targets[uid]
	if !known {
		return
	}
	t.cancel()
	if how := <-t.end; how != "" && t.how == "" {
		t.how = how
		d.tell(aboutPod(how, t.pod))
	}
	delete(d.targets, uid)
	d.count(t)
	d.wentAway(t.pod)
	d.tell(aboutPod(Gone, t.pod))
}

func (d *drainer) count(t *target) {
	switch t.how {
	case Evicted:
		d.result.Evicted++
	case Deleted:
		d.result.Deleted++
	default:
		// It went by itself, or by somebody else's hand.
	}
}

// note takes in what a worker did.
func (d *drainer) note(o outcome) {
	if o.uid == "" {
		d.tell(Progress{What: o.what, Detail: o.detail})
		return
	}
	t, known := d.targets[o.uid]
	if !known {
		return
	}
	switch o.what {
	case spared:
		t.cancel()
		delete(d.targets, o.uid)
		d.spared[o.uid], d.kept[o.uid] = t.pod, true
		d.total--
		return
	case Evicted, Deleted:
		t.how, t.held = o.what, ""
	default:
		t.overdue = t.overdue || o.what == Overdue
		if t.held == o.detail {
			return // told already
		}
		t.held = o.detail
	}
	p := aboutPod(o.what, t.pod)
	p.Detail = o.detail
	d.tell(p)
}

func (d *drainer) report(ctx context.Context, o outcome) {
	select {
	case d.outcomes <- o:
	case <-ctx.Done():
	}
}

func (d *drainer) tell(p Progress) {
	if d.plan.Tell == nil {
		return
	}
	p.Total, p.Left = d.total, len(d.targets)
	d.plan.Tell(p)
}

// aboutPod is a thing that happened to a pod.
func aboutPod(what What, pod *corev1.Pod) Progress {
	return Progress{What: what, Pod: podName(pod), PodUID: string(pod.UID), PodLabels: pod.Labels}
}

func podName(pod *corev1.Pod) string { return pod.Namespace + "/" + pod.Name }
