package drain

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nth-project/nth/pkg/kube"
	"github.com/nth-project/nth/pkg/state"
)

// volumePoll is how often the node's volumes are read. The kubelet reports them with its status, about every ten seconds or when they
// change.
const volumePoll = time.Second

// awaitVolumes waits until the node reports no volumes in use or attached except those of pods that stay, or until ctx ends. It returns how
// many others are left, or VolumesUnknown.
func (n *Node) awaitVolumes(ctx context.Context, staying *podVolumes, tell func(left string)) int {
	left, told := VolumesUnknown, 0
	for {
		switch node, err := n.get(ctx, false); {
		case err == nil:
			left = len(staying.without(ctx, n, volumesOf(node)))
		case kube.NotFound(err):
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
		if !kube.Await(ctx, nil, volumePoll) {
			return left
		}
	}
}

// attaches tells whether a pod has volumes that have to be attached to the next node, which is what takes longest when a pod moves.
func attaches(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.PersistentVolumeClaim != nil || v.Ephemeral != nil })
}

// volumesFirst compares two pods: those that attach volumes come first.
func volumesFirst(a, b *corev1.Pod) int {
	switch x, y := attaches(a), attaches(b); {
	case x == y:
		return 0
	case x:
		return -1
	}
	return 1
}

// volumesOf returns the volumes that a node reports.
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

// podVolumes are the volumes of pods that stay. Their names are asked of the API server when the first volume is waited for: a node may
// read the PersistentVolumeClaims and the volumes of its own pods.
type podVolumes struct {
	claims []types.NamespacedName // whose volumes are not in names yet
	names  []corev1.UniqueVolumeName
}

func claimedBy(staying map[types.UID]*corev1.Pod) *podVolumes {
	p := &podVolumes{}
	for _, pod := range staying {
		for _, volume := range pod.Spec.Volumes {
			switch {
			case volume.PersistentVolumeClaim != nil:
				p.claims = append(p.claims, types.NamespacedName{Namespace: pod.Namespace, Name: volume.PersistentVolumeClaim.ClaimName})
			case volume.Ephemeral != nil:
				p.claims = append(p.claims, types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name + "-" + volume.Name})
			}
		}
	}
	return p
}

// without removes these volumes from a set. If a claim cannot be read and the failure may pass, it is read again the next time; until then,
// its volume is waited for like any other.
func (p *podVolumes) without(ctx context.Context, n *Node, volumes map[corev1.UniqueVolumeName]bool) map[corev1.UniqueVolumeName]bool {
	if len(volumes) > 0 {
		p.claims = slices.DeleteFunc(p.claims, func(claim types.NamespacedName) bool {
			name, err := n.volumeOf(ctx, claim)
			p.names = append(p.names, name)
			return err == nil || !kube.Passing(err)
		})
	}
	for _, name := range p.names {
		delete(volumes, name)
	}
	return volumes
}

// volumeOf returns the name under which the node reports the volume of a claim: the CSI driver's and its handle for the
// volume (GetUniqueVolumeName in pkg/volume/util of Kubernetes). It is empty for volumes that are not CSI's.
func (n *Node) volumeOf(ctx context.Context, claim types.NamespacedName) (corev1.UniqueVolumeName, error) {
	bound, volume := &corev1.PersistentVolumeClaim{}, &corev1.PersistentVolume{}
	err := n.reads.Attempt(ctx, func(ctx context.Context) error {
		return n.rest().Get().Namespace(claim.Namespace).Resource("persistentvolumeclaims").Name(claim.Name).MaxRetries(0).Do(ctx).Into(bound)
	})
	if err != nil || bound.Spec.VolumeName == "" {
		return "", err
	}
	err = n.reads.Attempt(ctx, func(ctx context.Context) error {
		return n.rest().Get().Resource("persistentvolumes").Name(bound.Spec.VolumeName).MaxRetries(0).Do(ctx).Into(volume)
	})
	if err != nil || volume.Spec.CSI == nil {
		return "", err
	}
	csi := volume.Spec.CSI
	return corev1.UniqueVolumeName("kubernetes.io/csi/" + csi.Driver + "^" + csi.VolumeHandle), nil
}

// longestDeregistration is the longest deregistration delay that Elastic Load Balancing allows. No target is waited for any longer.
const longestDeregistration = time.Hour

var errHalf = errors.New("half of the time is over, and the rest is for the evictions")

// balancing is what a guard knows of load balancers. Their deregistration is waited for twice: the machine's before evictions, and that of the
// machine and the pods' addresses when no pod is left.
type balancing struct {
	// cancelDeregistrationWait ends the wait under way; nil if there is none. deregisteredEpoch is the epoch in which the last wait has ended.
	cancelDeregistrationWait context.CancelFunc
	deregisteredEpoch        int
	// heldSince is when the wait before evictions began; zero if there is none.
	heldSince time.Time
	// addresses are all that pods have had that had to go.
	addresses map[string]bool
	// waitReported tells that a wait was reported, but not its end. lastReason is the last reason for an end that was reported.
	waitReported bool
	lastReason   string
}

// noteAddresses notes the addresses by which load balancers may still know a pod when it is gone. A pod that has finished has given its
// addresses up.
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

// departedAddresses are the addresses to wait for: all but those of pods that stay.
func (g *guard) departedAddresses() []string {
	left := maps.Clone(g.addresses)
	for _, pod := range g.staying {
		for _, ip := range pod.Status.PodIPs {
			delete(left, ip.IP)
		}
	}
	return slices.Sorted(maps.Keys(left))
}

// awaitDeregistration begins a wait for load balancers, and calls done with its result unless endDeregistrationWait ends it before.
func (g *guard) awaitDeregistration(addresses []string, done func(error)) {
	ctx, stop := context.WithTimeout(g.ctx, longestDeregistration)
	ended := false
	g.cancelDeregistrationWait = func() { ended = true; stop() }
	balancers, labeled := g.node.opts.LoadBalancers, g.node.opts.ExcludeFromLoadBalancers
	g.workers.Go(func() {
		defer stop()
		err := balancers.Out(ctx, labeled, addresses, func(left string) {
			g.post(func() {
				if !ended {
					g.waitReported = true
					g.report(Progress{Kind: state.TargetsLeft, Detail: left})
				}
			})
		})
		g.post(func() {
			if !ended {
				g.endDeregistrationWait(err)
				done(err)
			}
		})
	})
}

// endDeregistrationWait ends the wait for load balancers, if there is one. The reason is reported; nil if all is well or nobody needs to know.
func (g *guard) endDeregistrationWait(reason error) {
	if g.cancelDeregistrationWait == nil {
		return
	}
	g.cancelDeregistrationWait()
	g.cancelDeregistrationWait, g.heldSince = nil, time.Time{}
	detail := ""
	switch {
	case errors.Is(reason, context.DeadlineExceeded):
		detail = "the time for that is over"
	case reason != nil:
		detail = reason.Error()
	}
	if g.waitReported || detail != "" && !kube.Alike(detail, g.lastReason) {
		g.waitReported, g.lastReason = false, detail
		g.report(Progress{Kind: state.TargetsOut, Detail: detail})
	}
}

// holdForDeregistration holds evictions until load balancers are done with the machine, or for a set time if that cannot be found out.
// Options.EvictAfter applies in any case. As with any hold, no pod waits beyond its turn.
func (g *guard) holdForDeregistration(now time.Time, set time.Duration) {
	g.evictFrom = now.Add(longestDeregistration + set)
	g.awaitDeregistration(nil, func(err error) {
		hold := g.node.opts.EvictAfter
		if err != nil {
			hold = set
		}
		g.setEvictFrom(now.Add(hold))
	})
	g.heldSince = now
}

func (g *guard) setEvictFrom(at time.Time) {
	g.evictFrom, g.all = at, true
	if left := time.Until(at); left > 0 {
		g.report(Progress{Kind: state.EvictionsDelayed, Detail: left.Round(100 * time.Millisecond).String()})
	}
}

// limitDeregistrationHold ends the hold for load balancers after half of the time before the deadline: a target may drain for longer than that, and
// disruption budgets need time as well. It returns when that is.
func (g *guard) limitDeregistrationHold(now time.Time) time.Time {
	held, until := g.heldSince, g.deregistrationDeadline(now)
	if held.IsZero() || until.IsZero() {
		return time.Time{}
	}
	if half := held.Add(until.Sub(held) / 2); now.Before(half) {
		return half
	}
	g.endDeregistrationWait(errHalf)
	g.setEvictFrom(held.Add(g.node.opts.EvictAfter))
	return time.Time{}
}

// deregistrationDeadline is until when load balancers may be waited for: as long as volumes are, but not past a soft deadline. A soft deadline that
// is over does not count before a hard one.
func (g *guard) deregistrationDeadline(now time.Time) time.Time {
	until, soft := g.volumeDeadline(now), g.goal.Soft
	if soft.After(now) || g.goal.Hard.IsZero() && !soft.IsZero() {
		until = soonest(until, soft.Add(-g.node.opts.Margin))
	}
	return until
}

// deregistered tells whether load balancers are done with the machine and its pods, or need not be waited for any longer. Otherwise it has
// begun to wait, and returns until when at most. A machine whose node somebody uncordoned stays in its load balancers.
func (g *guard) deregistered(now time.Time) (bool, time.Time) {
	if g.node.opts.LoadBalancers == nil || g.deregisteredEpoch == g.epoch || g.uncordoned {
		return true, time.Time{}
	}
	until := g.deregistrationDeadline(now)
	if !until.IsZero() && !now.Before(until) {
		g.endDeregistrationWait(context.DeadlineExceeded)
		g.deregisteredEpoch = g.epoch
		return true, time.Time{}
	}
	if g.cancelDeregistrationWait == nil {
		epoch := g.epoch
		g.awaitDeregistration(g.departedAddresses(), func(error) { g.deregisteredEpoch = epoch })
	}
	return false, until
}

// Scripts are run on the machine before its pods go.
type Scripts interface {
	// Run returns when all have run, with what went wrong, or when ctx has ended.
	Run(ctx context.Context) error
}

var errScriptsLate = errors.New("their time is over, and evictions begin without them")

// scripts is what a guard knows of Options.Scripts.
type scripts struct {
	// scriptsDone tells that they have run for this drain, or that their time is over.
	scriptsDone bool
	// cancelScripts ends the wait for them; nil if there is none. scriptsBegan is when it began.
	cancelScripts context.CancelFunc
	scriptsBegan  time.Time
}

// runScripts runs the scripts, or goes on waiting for them. As with any hold, no pod waits beyond its turn.
func (g *guard) runScripts(now time.Time) {
	g.evictFrom = now.Add(g.node.opts.ScriptsWait + longestDeregistration)
	if g.cancelScripts != nil {
		return
	}
	ctx, stop := context.WithCancel(g.ctx)
	waiting := true
	g.scriptsBegan, g.cancelScripts = now, func() { waiting = false; stop() }
	g.workers.Go(func() {
		defer stop()
		err := g.node.opts.Scripts.Run(ctx)
		g.post(func() {
			if waiting {
				g.endScripts(err)
			}
		})
	})
}

// endScripts goes on with the drain, and reports what went wrong, if anything.
func (g *guard) endScripts(failure error) {
	g.cancelScripts()
	g.cancelScripts, g.scriptsDone = nil, true
	g.evictFrom, g.all = time.Time{}, true
	if failure != nil {
		g.report(Progress{Kind: state.ScriptsFailed, Detail: failure.Error()})
	}
}

// awaitScripts ends the wait for the scripts after ScriptsWait, or a quarter of the time before a hard deadline. It returns when that is;
// zero if nothing is waited for.
func (g *guard) awaitScripts(now time.Time) time.Time {
	if g.cancelScripts == nil {
		return time.Time{}
	}
	until := g.scriptsBegan.Add(g.node.opts.ScriptsWait)
	if !g.goal.Hard.IsZero() {
		until = soonest(until, g.scriptsBegan.Add(max(g.goal.Hard.Sub(g.scriptsBegan)/4, 0)))
	}
	if now.Before(until) {
		return until
	}
	g.endScripts(errScriptsLate)
	return time.Time{}
}
