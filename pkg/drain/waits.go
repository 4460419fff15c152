package drain

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/nth-project/nth/pkg/state"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
)

// volumePoll is how often the node's volumes are looked at. The kubelet reports them with its status, about every ten
// seconds or when they change.
const volumePoll = time.Second

// awaitVolumes waits until the node reports no volumes in use or attached but those of pods that stay, or ctx ends, and returns
// how many others are left, as far as is known. A volume that is still attached keeps its pod from starting elsewhere for minutes.
func (n *Node) awaitVolumes(ctx context.Context, staying *claims, tell func(left string)) int {
	left, told := VolumesUnknown, 0
	for {
		switch node, err := n.get(ctx, false); {
		case err == nil:
			left = len(staying.without(ctx, n, volumesOf(node)))
		case apierrors.IsNotFound(err):
			left = 0
		}
		switch {
		case left == 0:
			return 0
		case left != told && left == VolumesUnknown:
			tell("an unknown number")
		case left != told:
			tell(strconv.Itoa(left))
		}
		told = left
		if !Await(ctx, nil, volumePoll) {
			return left
		}
	}
}

// attaches tells whether a pod has volumes that are to be attached wherever it goes, which takes longest of all.
func attaches(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.PersistentVolumeClaim != nil || v.Ephemeral != nil })
}

// volumesFirst is the order of two pods of which one attaches volumes.
func volumesFirst(a, b *corev1.Pod) int {
	switch x, y := attaches(a), attaches(b); {
	case x == y:
		return 0
	case x:
		return -1
	}
	return 1
}

// volumesOf is the set of volumes that a node reports.
func volumesOf(node *corev1.Node) map[corev1.UniqueVolumeName]bool {
	volumes := map[corev1.UniqueVolumeName]bool{}
	for _, name := range node.Status.VolumesInUse {
		volumes[name] = true
	}
	for _, attached := range node.Status.VolumesAttached {
		volumes[attached.Name] = true
	}
	return volumes
}

// claim is a PersistentVolumeClaim of a pod that stays.
type claim struct{ namespace, name string }

// claims are those whose volumes stay in use. What they are is asked of the API server when the first volume is waited
// for: a node may read the claims and the volumes of its own pods.
type claims struct {
	unknown []claim
	known   []corev1.UniqueVolumeName
}

func claimsOf(staying map[types.UID]*corev1.Pod) *claims {
	c := &claims{}
	for _, pod := range staying {
		for _, volume := range pod.Spec.Volumes {
			switch {
			case volume.PersistentVolumeClaim != nil:
				c.unknown = append(c.unknown, claim{pod.Namespace, volume.PersistentVolumeClaim.ClaimName})
			case volume.Ephemeral != nil:
				c.unknown = append(c.unknown, claim{pod.Namespace, pod.Name + "-" + volume.Name})
			}
		}
	}
	return c
}

// without takes the volumes of the claims out of a set. Those that cannot be told are waited for like all others; a failure that may
// pass is asked about again.
func (c *claims) without(ctx context.Context, n *Node, volumes map[corev1.UniqueVolumeName]bool) map[corev1.UniqueVolumeName]bool {
	if len(volumes) > 0 {
		c.unknown = slices.DeleteFunc(c.unknown, func(of claim) bool {
			name, err := n.volumeOf(ctx, of)
			c.known = append(c.known, name)
			return err == nil || !passing(err)
		})
	}
	for _, name := range c.known {
		delete(volumes, name)
	}
	return volumes
}

// volumeOf returns the name under which the node reports the volume of a claim: the CSI driver's and its handle for the
// volume (GetUniqueVolumeName in pkg/volume/util of Kubernetes). It is empty for volumes of other sorts.
func (n *Node) volumeOf(ctx context.Context, of claim) (corev1.UniqueVolumeName, error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	bound, volume := &corev1.PersistentVolumeClaim{}, &corev1.PersistentVolume{}
	err := n.rest().Get().Namespace(of.namespace).Resource("persistentvolumeclaims").Name(of.name).MaxRetries(0).Do(ctx).Into(bound)
	if err != nil || bound.Spec.VolumeName == "" {
		return "", err
	}
	err = n.rest().Get().Resource("persistentvolumes").Name(bound.Spec.VolumeName).MaxRetries(0).Do(ctx).Into(volume)
	if err != nil || volume.Spec.CSI == nil {
		return "", err
	}
	csi := volume.Spec.CSI
	return corev1.UniqueVolumeName("kubernetes.io/csi/" + csi.Driver + "^" + csi.VolumeHandle), nil
}

// longestDeregistration is how long Elastic Load Balancing lets a target drain at most. Nothing waits longer for one.
const longestDeregistration = time.Hour

var errHalf = errors.New("half of the time is over, and the rest is for the evictions")

// balanced is what a guard knows of load balancers.
type balanced struct {
	// waiting ends the wait for them that is; nil if there is none. outFor is the round for which they have been waited for at the end.
	waiting context.CancelFunc
	outFor  int
	// held is since when evictions are held for that wait; zero if they are not.
	held time.Time
	// addresses are those that pods have had that had to go.
	addresses map[string]bool
	// untargeted tells that something is left there, as was told, and unasked is why it could not be told, as was told last.
	untargeted bool
	unasked    string
}

// noteAddresses notes by which addresses a pod that has to go may still be known when it is gone. One that has finished has given up
// its own.
func (g *guard) noteAddresses(pod *corev1.Pod) {
	if g.node.opts.LoadBalancers == nil || finished(pod) {
		return
	}
	if g.addresses == nil {
		g.addresses = map[string]bool{}
	}
	for _, ip := range pod.Status.PodIPs {
		g.addresses[ip.IP] = true
	}
}

// whence are the addresses that are to be waited for: not those which pods have that stay.
func (g *guard) whence() []string {
	left := maps.Clone(g.addresses)
	for _, pod := range g.spared {
		for _, ip := range pod.Status.PodIPs {
			delete(left, ip.IP)
		}
	}
	return slices.Sorted(maps.Keys(left))
}

// await waits for load balancers beside all else, and has then called with what came of it, unless the wait was ended before.
func (g *guard) await(addresses []string, then func(error)) {
	ctx, stop := context.WithTimeout(g.ctx, longestDeregistration)
	ended := false
	g.waiting = func() { ended = true; stop() }
	balancers, labeled := g.node.opts.LoadBalancers, g.node.opts.ExcludeFromLoadBalancers
	g.workers.Go(func() {
		defer stop()
		err := balancers.Out(ctx, labeled, addresses, func(left string) {
			g.post(func() {
				if !ended {
					g.untargeted = true
					g.say(Progress{Kind: state.TargetsLeft, Detail: left})
				}
			})
		})
		g.post(func() {
			if !ended {
				g.waiting, g.held = nil, time.Time{}
				g.sayOut(err)
				then(err)
			}
		})
	})
}

// endWait ends the wait for load balancers that is, if there is one, for a reason; nil needs no word.
func (g *guard) endWait(why error) {
	if g.waiting != nil {
		g.waiting()
		g.waiting, g.held = nil, time.Time{}
		g.sayOut(why)
	}
}

// sayOut tells that nothing is waited for any more, if that was told or is not as it should be.
func (g *guard) sayOut(err error) {
	detail := ""
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		detail = "the time for that is over"
	case err != nil:
		detail = err.Error()
	}
	if g.untargeted || detail != "" && !Alike(detail, g.unasked) {
		g.untargeted, g.unasked = false, detail
		g.say(Progress{Kind: state.TargetsOut, Detail: detail})
	}
}

// holdForTargets holds evictions until load balancers are done with the machine, and for a set time where that cannot be told. What
// is set for all evictions holds in any case. As with any hold, no pod waits beyond its turn.
func (g *guard) holdForTargets(now time.Time, set time.Duration) {
	g.opens = now.Add(longestDeregistration + set)
	g.await(nil, func(err error) {
		hold := g.node.opts.EvictAfter
		if err != nil {
			hold = set
		}
		g.open(now.Add(hold))
	})
	g.held = now
}

// open has evictions begin at some time, which may be over.
func (g *guard) open(at time.Time) {
	g.opens, g.all = at, true
	if left := time.Until(at); left > 0 {
		g.say(Progress{Kind: state.EvictionsDelayed, Detail: left.Round(100 * time.Millisecond).String()})
	}
}

// letGo ends the hold for load balancers by half of the time that there is: a target may drain for longer than that, and what disruption
// budgets hold needs time as well. It returns when that is.
func (g *guard) letGo(now time.Time) time.Time {
	held, until := g.held, g.balancedBy(now)
	if held.IsZero() || until.IsZero() {
		return time.Time{}
	}
	if half := held.Add(until.Sub(held) / 2); now.Before(half) {
		return half
	}
	g.endWait(errHalf)
	g.open(held.Add(g.node.opts.EvictAfter))
	return time.Time{}
}

// balancedBy is until when load balancers are waited for at most: as long as volumes are, but not past a soft deadline. One that is over
// takes nothing from a hard one.
func (g *guard) balancedBy(now time.Time) time.Time {
	until, soft := g.volumesBy(now), g.goal.Soft
	if soft.After(now) || g.goal.Hard.IsZero() && !soft.IsZero() {
		until = soonest(until, soft.Add(-g.node.opts.Margin))
	}
	return until
}

// targetsOut tells whether load balancers are done with the machine and its pods, or the wait for that has ended; else it begins one,
// and returns when it ends at the latest. Where someone uncordoned the node, the machine is to stay in.
func (g *guard) targetsOut(now time.Time) (bool, time.Time) {
	if g.node.opts.LoadBalancers == nil || g.outFor == g.round || g.lifted {
		return true, time.Time{}
	}
	until := g.balancedBy(now)
	if !until.IsZero() && !now.Before(until) {
		g.endWait(context.DeadlineExceeded)
		g.outFor = g.round
		return true, time.Time{}
	}
	if g.waiting == nil {
		round := g.round
		g.await(g.whence(), func(error) { g.outFor = round })
	}
	return false, until
}

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
	return o.Restart != nil && when == AfterRestart && !finished(pod)
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
	t.restart.answered, t.restart.workload = true, workload
	g.touched = append(g.touched, t)
	if workload != "" && t.pod.DeletionTimestamp == nil {
		t.restart.holds, t.held, g.all = true, "the restart of "+workload, true
		g.say(aboutPod(state.PodRestarting, t.pod, workload))
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
	t.restart = g.replaced[t.pod.UID] // It stays noted, as the pod may be to stay again before anything is asked for.
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

// Scripts are what is run on the machine before its pods go.
type Scripts interface {
	// Run returns when all have run, with what went wrong, or when ctx has ended.
	Run(ctx context.Context) error
}

var errScriptsLate = errors.New("their time is over, and evictions begin without them")

// scripted is what a guard knows of the scripts.
type scripted struct {
	// ran tells that they have run for this drain, or have had their time.
	ran bool
	// running ends the wait for them; nil if there is none. began is since when they are waited for.
	running context.CancelFunc
	began   time.Time
}

// runScripts begins them, or goes on waiting. As with any hold, no pod waits beyond its turn.
func (g *guard) runScripts(now time.Time) {
	g.opens = now.Add(g.node.opts.ScriptsWait + longestDeregistration)
	if g.running != nil {
		return
	}
	ctx, stop := context.WithCancel(g.ctx)
	waiting := true
	g.began, g.running = now, func() { waiting = false; stop() }
	scripts := g.node.opts.Scripts
	g.workers.Go(func() {
		defer stop()
		err := scripts.Run(ctx)
		g.post(func() {
			if waiting {
				g.endScripts(err)
			}
		})
	})
}

// endScripts goes on with the drain, and tells why if not all is well.
func (g *guard) endScripts(why error) {
	g.running()
	g.running, g.ran = nil, true
	g.opens, g.all = time.Time{}, true
	if why != nil {
		g.say(Progress{Kind: state.ScriptsFailed, Detail: why.Error()})
	}
}

// awaitScripts ends the wait for them when its time is over, a quarter of what there is before the machine is gone at most. It returns
// when that is; zero if nobody waits.
func (g *guard) awaitScripts(now time.Time) time.Time {
	if g.running == nil {
		return time.Time{}
	}
	until := g.began.Add(g.node.opts.ScriptsWait)
	if !g.goal.Hard.IsZero() {
		until = soonest(until, g.began.Add(max(g.goal.Hard.Sub(g.began)/4, 0)))
	}
	if now.Before(until) {
		return until
	}
	g.endScripts(errScriptsLate)
	return time.Time{}
}
