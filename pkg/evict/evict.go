// Package evict empties one node of its pods: which of them have to go, when each is evicted or deleted, and what holds it.
//
// It needs only the rights of a kubelet. The filters of k8s.io/kubectl/pkg/drain decide which pods a drain concerns; a client that answers from
// memory feeds them. The rest of kubectl's package does not fit. It looks up the DaemonSet of a pod, which a kubelet may not. It polls each
// evicted pod until the answer is 404, while a kubelet gets 403 once the pod has left its node. And it never deletes a pod that is not
// evicted in time.
//
// Words: a look is one read of the Node by pkg/drain; looks are numbered. A round is how often a controller has brought its pods back to the node: such
// pods wait longer, and after the last round they stay. A request is escalated when no more than the pod's grace is left before a hard deadline
// (limits): a deletion follows if the eviction fails.
//
// Newcomers begin with Pods.plan, which says what comes next for a pod, and when.
package evict

import (
	"cmp"
	"context"
	"iter"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"

	"github.com/nth-project/nth/pkg/kube"
	"github.com/nth-project/nth/pkg/loop"
	"github.com/nth-project/nth/pkg/state"
)

// Annotation on a Pod says when it may be evicted: AtDeadline or Never. Any other value is ignored. nth never writes it.
const Annotation = kube.KeyPrefix + "evict"

// The values of Annotation.
const (
	// AtDeadline lets the pod run until no more than its grace period is left before the deadline. Without a deadline the pod stays.
	AtDeadline = "at-deadline"
	// Never lets the pod run until the machine is gone.
	Never = "never"
)

// Options are the settings that hold for every drain of a node. The zero value drains with each pod's own grace, and protects nothing.
type Options struct {
	// Margin is how long before a deadline pods have to be gone, so that the last pod's end can still be seen.
	Margin time.Duration
	// GracePeriod replaces each pod's own termination grace period; nil leaves it.
	GracePeriod *time.Duration
	// ProtectEmptyDir and ProtectUnmanaged let pods with emptyDir volumes, and pods without a controller, stay.
	ProtectEmptyDir, ProtectUnmanaged bool
	// RespectDoNotDisrupt treats pods with karpenter.sh/do-not-disrupt: "true" or cluster-autoscaler.kubernetes.io/safe-to-evict: "false" like
	// those with AtDeadline. Annotation takes precedence.
	RespectDoNotDisrupt bool
	// Last is the pod in which this process itself runs, as "namespace/name"; "" if it does not run on the node. It is evicted when no other
	// pod is left, whatever the deadline.
	Last string
	// Gate, if set, limits evictions and deletions; it is shared with the drains of other nodes. Urgent, if set, reports whether this node's
	// requests are urgent there. It may be called from any goroutine.
	Gate   *kube.Gate
	Urgent func() bool
}

// Evictor evicts the pods of one node.
type Evictor struct {
	client rest.Interface
	name   string
	opts   Options
}

// New returns the evictor of the node of that name. It makes no request.
func New(client rest.Interface, name string, opts Options) *Evictor {
	return &Evictor{client: client, name: name, opts: opts}
}

// Drain is the drain of the node to which Pods belong; pkg/drain implements it. All methods are called in the loop of Pods.
type Drain interface {
	// Terms returns what the drain wants of all pods now.
	Terms() Terms
	// Look requests a look at the Node that begins after the call, and returns its number.
	Look() int
	// Met is called when a pod is found that has to go. A fresh pod was not on the node at the first list.
	Met(pod *corev1.Pod, fresh bool)
	// Report is called when something happened to a pod, or to all pods if pod is nil. detail names the budget, the reason or the controller.
	Report(what state.TransitionKind, pod *corev1.Pod, detail string)
}

// Terms are what a drain wants of all pods of its node.
type Terms struct {
	// Evict: pods have to go.
	Evict bool
	// Hard is when the machine is gone: pods that are left are deleted in time. Soft is when the drain should have ended. Zero is never.
	Hard, Soft time.Time
	// From is when evictions begin; zero if that is not known yet. A pod does not wait for a known From beyond limits.evictBy.
	From time.Time
	// Cordoned: the Node takes no pods. Looked is the number of the last look at the Node that has returned; 0 if none has.
	Cordoned bool
	Looked   int
	// Uncordoned: somebody uncordoned the node, and pods that come now stay.
	Uncordoned bool
	// Since: pods that came to the node after this time stay, too. If it is zero, no pod stays for this reason.
	Since time.Time
}

// SoftDeadline returns Soft if it counts, and zero otherwise: one that is over does not count if there is a hard one.
func (t Terms) SoftDeadline(now time.Time) time.Time {
	if !t.Hard.IsZero() && !now.Before(t.Soft) {
		return time.Time{}
	}
	return t.Soft
}

// near reports whether a deadline leaves no time for long pauses between requests. It is false again once a soft deadline is over, or a hard
// one is over by overtime.
func (t Terms) near(now time.Time) bool {
	const near = 10 * time.Minute
	softNear := t.Soft.After(now) && t.Soft.Sub(now) < near
	hardNear := !t.Hard.IsZero() && t.Hard.Sub(now) < near && now.Before(t.Hard.Add(overtime))
	return softNear || hardNear
}

const (
	// patience is how long evictions wait at most for a look at the Node before a hard deadline. leastPatience is how long they wait even if
	// no time is left, since the Node may be opted out.
	patience      = 10 * time.Second
	leastPatience = time.Second
)

// Patience returns when evictions stop waiting for a look at the Node. They wait because the look shows whether operators have opted the node out. They
// stop because the pods would otherwise lose their grace: t has a hard deadline. began is when they began to wait. They wait for a quarter of the time
// that was left then, but at least leastPatience and at most patience.
func (t Terms) Patience(began time.Time) time.Time {
	return began.Add(min(patience, max(t.Hard.Sub(began)/4, leastPatience)))
}

// Pods is what is known of a node's pods. Only its loop changes it, and prepare, with the lock held.
type Pods struct {
	*Evictor
	loop  *loop.Loop
	drain Drain

	watching bool         // Begin was called
	lists    kube.Trouble // why the pods cannot be listed
	synced   bool         // there has been a complete list
	pods     map[types.UID]*target
	owners   map[string]*owner // by the owner's name
	counts   Counts

	// The next Act plans for touched; for all pods if all is set or wake has come. wake is when something is due for any other pod; zero if nothing is.
	all     bool
	touched []*target
	wake    time.Time

	// proving: a list of Prove is under way. The next list is not made before proveAt.
	proving bool
	proveAt time.Time
	// proven is the last number given to Prove for which a list has shown that no pod has to go.
	proven int
}

// Counts count pods.
type Counts struct {
	// Total counts the pods that had to go since Begin, without those that were spared. Left counts those of them that are still on the node, and
	// Skipped the pods that stay.
	Total, Left, Skipped int
	// Evicted counts the pods whose eviction was accepted, and Deleted those that had to be deleted.
	Evicted, Deleted int
}

// Pods returns what is known of the node's pods: nothing, until Begin. The methods of Pods must be called in the loop.
func (e *Evictor) Pods(in *loop.Loop, drain Drain) *Pods {
	return &Pods{
		Evictor: e, loop: in, drain: drain,
		pods: map[types.UID]*target{}, owners: map[string]*owner{},
	}
}

// Begin begins to watch the pods, unless that has begun.
func (p *Pods) Begin() {
	if p.watching {
		return
	}
	p.watching = true
	p.loop.Go(p.watchPods)
}

// Synced reports whether there has been a complete list.
func (p *Pods) Synced() bool { return p.synced }

// Replan has the next Act plan for all pods.
func (p *Pods) Replan() { p.all = true }

// Counts returns how many pods have to go, stay and have left, as of now.
func (p *Pods) Counts() Counts {
	c := p.counts
	for range p.going() {
		c.Left++
	}
	c.Skipped = len(p.pods) - c.Left
	return c
}

// going yields the pods that have to go and are still on the node.
func (p *Pods) going() iter.Seq[*target] {
	return func(yield func(*target) bool) {
		for _, t := range p.pods {
			if t.stage.goes() && !yield(t) {
				return
			}
		}
	}
}

// Left returns the pods that have to go and are still on the node. A key is "namespace/name". Its value names what holds the pod, such as a
// disruption budget; "" if nothing does.
func (p *Pods) Left() map[string]string {
	left := map[string]string{}
	for t := range p.going() {
		left[Name(t.pod)] = t.held
	}
	return left
}

// Staying returns the pods that need not go.
func (p *Pods) Staying() []*corev1.Pod {
	var staying []*corev1.Pod
	for _, t := range p.pods {
		if !t.stage.goes() {
			staying = append(staying, t.pod)
		}
	}
	return staying
}

// Prove reports whether a list of the pods, made for this number, has shown that no pod has to go. If there is no such list, it starts one in
// the background, and returns when to call it again; zero means after the next change. Callers use a higher number when something voids the
// earlier proofs. They call Prove only while Counts has no pod left. The list shows what the watch may not have shown yet: a new pod, or one
// that stayed and has to go now. A pod that the watch shows meanwhile voids the proof by Drain.Met.
func (p *Pods) Prove(number int, now time.Time) (proven bool, again time.Time) {
	switch {
	case p.proven == number:
		return true, time.Time{}
	case p.proving:
		return false, time.Time{}
	case now.Before(p.proveAt):
		return false, p.proveAt
	}
	p.proving = true
	p.loop.Go(func(ctx context.Context) func() {
		// Without a version, the list is as of now. A server from 1.31 answers from its cache once that is up to date (KEP-2340).
		list, err := p.listPods(ctx, metav1.ListOptions{})
		return func() {
			pause := max(provePause, kube.RetryAfter(err))
			if err != nil && !kube.Passing(err) {
				pause = refusedPause
			}
			p.proving, p.proveAt = false, time.Now().Add(pause)
			if err != nil {
				p.handleListError(err)
				return
			}
			p.handleListed()
			terms := p.drain.Terms()
			// An exempt pod stays. One that goes was met since the call: the next call has a higher number.
			mustGo := func(pod corev1.Pod) bool {
				t := p.pods[pod.UID]
				return (t == nil || t.stage == staying) && !p.opts.Stays(&pod, terms)
			}
			if !slices.ContainsFunc(list.Items, mustGo) {
				p.proven = number
			}
		}
	})
	return false, time.Time{}
}

// Name is a pod's "namespace/name".
func Name(pod *corev1.Pod) string { return pod.Namespace + "/" + pod.Name }

// compareNames compares two pods by namespace and name. Unlike Name, it allocates nothing: Act sorts all pods whenever one has left.
func compareNames(a, b *corev1.Pod) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

const (
	// overtime is the time that a pod gets if the deadline is over and the machine is still there. It is enough for most pods to end by
	// themselves, and short enough to be a last effort.
	overtime = 30 * time.Second
	// overdueAfter is how much longer than its grace period a pod may take to end before critical pods stop waiting for it. It is also how
	// long an accepted eviction may show no effect before it is repeated. The kubelet needs seconds to clean up after the last container. A
	// pod that takes longer is stuck, for instance behind a finalizer or a volume, and needs no name service any more.
	overdueAfter = 10 * time.Second
	// lookGrace is how long after it was found a pod whose limits.evictBy has come waits for a look. After an outage, one returns within two seconds.
	lookGrace = 3 * time.Second
	// shortestPause is the shortest time between two requests for a pod.
	shortestPause = 100 * time.Millisecond
	// leastWatchTime is the least time that the watch gets to show that a pod is terminating.
	leastWatchTime = time.Second
	// provePause is the time between two lists of Prove.
	provePause = time.Second
	// refusedPause is the least pause after a refusal that does not pass by itself.
	refusedPause = 5 * time.Second
	// mostOwners bounds the owners that are remembered: a drain may last for weeks, and each Job is another owner.
	mostOwners = 4096
)

// evictions are the pauses after failures, and while a budget holds a pod. They are short: a budget may yield at any moment of the notice.
var evictions = kube.Backoff(100*time.Millisecond, 1500*time.Millisecond)

// stage is how far a pod is on its way off the node.
type stage int

const (
	// staying: the pod need not go, by the rules, the settings or its annotation.
	staying stage = iota
	// exempt: the pod stays although it would have to go. It came back too often, or came after somebody uncordoned the node.
	exempt
	// waiting: the pod has to go, and is not terminating.
	waiting
	// terminating: the pod ends within its grace.
	terminating
	// overdue: the pod is terminating, and should have ended.
	overdue
)

// goes reports whether a pod in this stage has to go.
func (s stage) goes() bool { return s >= waiting }

// target is a pod of the node. The zero value is one that stays; all other fields are for one that has to go.
type target struct {
	pod   *corev1.Pod
	stage stage
	metAt time.Time
	// round is how often the pod's owner had brought pods back when this one was found (see rounds).
	round int
	// needsLook is the number of the look that has to return before the pod is evicted. For a pod that comes to a cordoned node it is the next
	// look, as somebody may have uncordoned the node. For any other pod it is the first look.
	needsLook int
	last      request
	// The next request is made at next at the earliest. backoff are the pauses after failures.
	next    time.Time
	backoff wait.Backoff
	// countedAs is what the pod is counted as in Counts: PodEvicted or PodDeleted; "" if it is not counted. A pod is counted once it is
	// terminating, as a webhook may have made the request a dry run.
	countedAs state.TransitionKind
	held      string       // what holds the pod now, in words
	reported  kube.Reasons // what held the pod, as far as it was reported
	// endBy is when a pod that is terminating should have ended.
	endBy time.Time
}

// request is the last request for a pod. The zero value means that no request was made.
type request struct {
	what state.TransitionKind // PodEvicted or PodDeleted
	// at is when the request was made, or accepted. escalated: limits.escalated was true when it was made.
	at        time.Time
	escalated bool
	// open: the request is under way, and cancel ends it. sent: it has left the gate. accepted, refused: what the API server has answered.
	open, sent, accepted, refused bool
	cancel                        context.CancelFunc
	cut                           string // how much of its grace the deadline leaves the pod; "" if all of it
}

// owner is the controller of pods. A pod without a controller is its own owner.
type owner struct {
	name string
	// from is when the first of the owner's pods began to leave, by the API server's clock; zero if none has. Younger pods have come back, in
	// this round.
	from     time.Time
	round    int
	reported bool // it was reported that the owner's pods are left on the node
}

// replacePods handles a complete list from the Reflector. A pod that is not in the list is gone, even if the watch has not said so.
func (p *Pods) replacePods(all []*corev1.Pod) {
	listed := make(map[types.UID]bool, len(all))
	for _, pod := range all {
		listed[pod.UID] = true
	}
	for uid, t := range p.pods {
		if !listed[uid] {
			p.handleGone(t.pod)
		}
	}
	for _, pod := range all { // Only now, as handleGone has to record first that the pods they replace have left.
		p.handlePod(pod)
	}
	if !p.synced {
		p.synced, p.all = true, true
	}
}

// handlePod handles a pod that is on the node: it decides whether the pod has to go, and acts on a change of the pod or of that decision.
func (p *Pods) handlePod(pod *corev1.Pod) {
	t, known := p.pods[pod.UID]
	if !known {
		t = &target{}
		p.pods[pod.UID] = t
	}
	t.pod = pod
	terms := p.drain.Terms()
	mustGo := terms.Evict && t.stage != exempt && !p.opts.Stays(pod, terms)
	switch {
	case t.stage.goes() && mustGo:
		p.follow(t)
	case t.stage.goes():
		p.spare(t, staying)
	case mustGo:
		fresh := p.synced && !known
		p.meet(t, fresh)
	} // Otherwise it stays, as before.
}

// Rejudge decides again for all pods whether they have to go.
func (p *Pods) Rejudge() {
	p.all = true
	for _, t := range p.pods { // handlePod may replace t, but adds and removes no pod.
		p.handlePod(t.pod)
	}
}

// Restart begins again for another event: rounds of owners that bring their pods back are counted from the start, no pod is exempt any more, and
// no pod waits for the end of a pause. The caller has to call Rejudge, which decides whether pods that were exempt have to go.
func (p *Pods) Restart() {
	clear(p.owners)
	for _, t := range p.pods {
		t.round, t.next = 0, time.Time{}
		if t.stage == exempt {
			t.stage = staying
		}
	}
}

// meet handles a pod that has to go from now on. A fresh pod was not on the node at the first list. The pod becomes exempt instead if it came
// after an uncordon, or if its owner has brought pods back too often.
func (p *Pods) meet(t *target, fresh bool) {
	terms, now := p.drain.Terms(), time.Now()
	if terms.Uncordoned && fresh && terms.Since.IsZero() { // The uncordon says that pods may come. With Since, Stays has decided.
		t.stage = exempt
		return
	}
	o := p.ownerOf(t.pod)
	round := o.roundOf(t.pod)
	if round >= len(rounds) { // After the last round, its owner's pods stay.
		t.stage = exempt
		if !o.reported {
			o.reported = true
			p.drain.Report(state.PodsLeftToReturn, nil, o.name)
		}
		return
	}
	*t = target{
		pod: t.pod, stage: waiting, metAt: now, round: round, needsLook: 1, next: now.Add(rounds[round]), backoff: evictions,
	}
	if fresh && terms.Cordoned {
		t.needsLook = p.drain.Look()
	}
	p.counts.Total++
	p.touched = append(p.touched, t)
	p.drain.Met(t.pod, fresh)
	if t.pod.DeletionTimestamp != nil { // It was leaving before the drain. So its replacement is no return, and noteDeparture is not called.
		t.terminates()
	}
}

// follow handles a change of a pod that has to go. Once the pod is terminating, for any reason, it is not evicted any more: a second eviction
// would have no effect, and audit logs would show two. All that may be left to do is to shorten its grace before the deadline.
func (p *Pods) follow(t *target) {
	p.touched = append(p.touched, t)
	switch {
	case t.pod.DeletionTimestamp == nil: // It is not terminating yet.
	case t.stage >= terminating: // The change may be a shorter grace.
		t.endBy = loop.Soonest(t.endBy, time.Now().Add(givenGrace(t.pod)+overdueAfter))
	default: // It terminates from now on.
		t.withdraw(false)
		p.countRemoval(t)
		p.noteDeparture(t)
		t.terminates()
	}
}

// givenGrace is the grace period that a terminating pod was given when it was evicted or deleted.
func givenGrace(pod *corev1.Pod) time.Duration {
	if pod.DeletionGracePeriodSeconds == nil {
		return 0
	}
	return seconds(*pod.DeletionGracePeriodSeconds)
}

// terminates records that a pod is terminating, and sets when it should have ended. That time is counted from now, since the pod's timestamps
// are by the API server's clock.
func (t *target) terminates() {
	t.stage, t.endBy = terminating, time.Now().Add(givenGrace(t.pod)+overdueAfter)
}

// countRemoval counts a pod that leaves as evicted or deleted, and reports that, unless somebody else has removed it. A pod is counted once: one
// whose eviction was followed by a deletion, which has shortened its grace, counts as deleted.
func (p *Pods) countRemoval(t *target) {
	t.held = ""
	somebodyElse := !t.last.sent || t.last.refused
	counted := t.countedAs == t.last.what || t.countedAs == state.PodDeleted
	if somebodyElse || counted {
		return
	}
	if t.countedAs == state.PodEvicted {
		p.counts.Evicted--
	}
	t.countedAs = t.last.what
	if t.countedAs == state.PodEvicted {
		p.counts.Evicted++
	} else {
		p.counts.Deleted++
	}
	p.drain.Report(t.countedAs, t.pod, t.last.cut)
}

// noEffect is reported of a pod that keeps running although its eviction was accepted. A webhook may have made the eviction a dry run.
const noEffect = "the API server accepted an eviction, but the pod is not terminating"

// handleGone handles that a pod has left the node. pod is as it was before that. A pod that did not have to go is only forgotten.
func (p *Pods) handleGone(pod *corev1.Pod) {
	t, known := p.pods[pod.UID]
	delete(p.pods, pod.UID)
	if !known || !t.stage.goes() {
		return
	}
	t.pod = pod
	p.countRemoval(t)          // It counts a pod once; a deletion may have followed the eviction since.
	if t.stage < terminating { // Otherwise follow has noted its departure.
		p.noteDeparture(t)
	}
	t.withdraw(false)
	p.all = true // Critical pods may have waited for it.
	p.drain.Report(state.PodGone, pod, "")
}

// withdraw cancels the request that is under way; if it has been sent, only if sent is true. To remove a pod without a grace, the API server first
// writes that the pod is terminating, and then removes it. If the client goes away in between, the pod stays terminating for ever.
func (t *target) withdraw(sent bool) {
	if t.last.open && (sent || !t.last.sent) {
		t.last.cancel()
	}
}

// SpareLate lets pods stay that came since somebody uncordoned the node, though the guard took it for cordoned. The guard calls it when a look has shown
// that. look is the number of the last look that saw the cordon: such pods wait for a later one (needsLook).
func (p *Pods) SpareLate(look int) {
	for t := range p.going() {
		if t.needsLook > max(look, 1) { // Pods that were there at the first list have 1, and go.
			p.spare(t, exempt)
		}
	}
}

// spare lets a pod stay that had to go. why is its new stage: staying or exempt. A request that the API server may have got already is canceled, too:
// its effect, if it has one, comes by the watch.
func (p *Pods) spare(t *target, why stage) {
	if t.stage >= terminating || t.last.accepted { // It ends all the same, though the watch may not show that yet.
		p.countRemoval(t)
	}
	given := t.pod.Spec.TerminationGracePeriodSeconds
	hasGrace := p.opts.GracePeriod != nil || given == nil || *given > 0
	t.withdraw(hasGrace)
	p.all = true // Critical pods may have waited for it.
	p.counts.Total--
	p.pods[t.pod.UID] = &target{pod: t.pod, stage: why} // A new target, so that handleAnswer ignores a late answer.
	p.drain.Report(state.StateChanged, nil, "")         // The counts have changed.
}

// A cordon does not keep off pods that tolerate it, or that name the node themselves: their controller replaces each evicted pod, on the same
// node. So these pods are evicted in rounds, with pauses that grow, and left on the node after the last round.

// rounds are the pauses before the pods of each round are evicted, so that all pods of the round are likely to be on the node. Pods of round
// 0 have not come back. Pods of round 1 may have been bound before the scheduler knew of the cordon.
var rounds = []time.Duration{0, 500 * time.Millisecond, 2 * time.Second, 4 * time.Second, 8 * time.Second}

// ownerOf returns a pod's owner: its controller, or the pod itself.
func (p *Pods) ownerOf(pod *corev1.Pod) *owner {
	name := "the creator of pod " + Name(pod)
	if ref := metav1.GetControllerOf(pod); ref != nil {
		name = ref.Kind + " " + pod.Namespace + "/" + ref.Name
	}
	o := p.owners[name]
	if o == nil {
		if len(p.owners) >= mostOwners { // Their rounds begin again.
			clear(p.owners)
		}
		o = &owner{name: name}
		p.owners[name] = o
	}
	return o
}

// roundOf returns the round of a pod that was found now. That is the owner's round if the pod was created after one of the owner's pods had begun to
// leave, or in the same second: the pod has been brought back. Otherwise it is 0.
func (o *owner) roundOf(pod *corev1.Pod) int {
	if o.from.IsZero() || pod.CreationTimestamp.Time.Before(o.from) { // No pod has left, or this one is older and was only bound late.
		return 0
	}
	return o.round
}

// noteDeparture records with a pod's owner that the pod leaves the node. Pods of that owner that are created later count as returned, in the
// next round.
func (p *Pods) noteDeparture(t *target) {
	from := t.pod.CreationTimestamp.Time // If the pod was not seen terminating, its replacement is known to be younger.
	if end := t.pod.DeletionTimestamp; end != nil {
		from = end.Add(-givenGrace(t.pod)) // when the API server accepted the eviction
	}
	o := p.ownerOf(t.pod)
	o.from, o.round = loop.Soonest(o.from, from), max(o.round, t.round+1)
}

// handleListError handles that the pods could not be listed, and reports each new reason once.
func (p *Pods) handleListError(err error) {
	if why := p.lists.Note(err); why != "" {
		p.drain.Report(state.PodRefused, nil, p.Unlisted())
	}
}

// handleListed handles that the pods could be listed. If it was reported that they could not, it reports that this is over.
func (p *Pods) handleListed() {
	reported := p.Unlisted() != ""
	p.lists = kube.Trouble{}
	if reported {
		p.drain.Report(state.StateChanged, nil, "")
	}
}

// Unlisted says why the pods cannot be listed, if that was reported. It is empty if they can be listed.
func (p *Pods) Unlisted() string {
	why := p.lists.Last()
	if why == "" {
		return ""
	}
	return "cannot list the pods: " + why
}
