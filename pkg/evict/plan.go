package evict

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/nth-project/nth/pkg/kube"
	"github.com/nth-project/nth/pkg/loop"
	"github.com/nth-project/nth/pkg/state"
)

// Act plans for the pods that may have something due, and makes the requests. It returns when to call it again; zero means after the next change.
func (p *Pods) Act(now time.Time) time.Time {
	targets := p.touched // None of them has been dropped: handleGone and spare set all.
	due := !p.wake.IsZero() && !now.Before(p.wake)
	if p.all || due {
		// Pods that their owner has brought back come last: a budget that grants one eviction at a time is for the others first.
		targets = slices.SortedFunc(p.going(), func(a, b *target) int {
			return cmp.Or(cmp.Compare(a.round, b.round), compareNames(a.pod, b.pod))
		})
		p.wake = time.Time{}
	}
	p.all, p.touched = false, nil
	for _, t := range targets {
		what, again := p.plan(t, now)
		if what != "" {
			p.request(t, what, now)
		}
		p.wake = loop.Soonest(p.wake, again)
	}
	if p.all { // plan has found a pod overdue. Critical pods wait for that pod no longer, so plan for all once more.
		return now
	}
	return p.wake
}

// plan says what comes next for a pod that has to go. It returns state.PodEvicted or state.PodDeleted if that is to be requested now, otherwise "".
// again is when to plan for the pod again at the latest; zero means after the next change.
func (p *Pods) plan(t *target, now time.Time) (what state.TransitionKind, again time.Time) {
	l := p.limits(t, now)
	switch {
	case t.last.open: // The answer comes first.
		if l.escalated(now) && !t.last.escalated && t.last.what == state.PodEvicted {
			t.last.cancel() // The eviction may hang. handleAnswer has the pod planned for again, and a deletion follows.
		}
	case t.stage >= terminating:
		what, again = p.planTerminating(t, l, now)
	default:
		what, again = p.planWaiting(t, l, now)
	}
	for _, at := range []time.Time{l.evictBy, l.deleteFrom} {
		if now.Before(at) {
			again = loop.Soonest(again, at)
		}
	}
	return what, again
}

// limits are the times that a deadline sets for a pod.
type limits struct {
	// goneBy is when the pod must be gone: a margin before the hard deadline or, once that is over, at the end of overtime. It is zero without one.
	goneBy time.Time
	// evictBy is the latest time that leaves the pod its grace before the sooner deadline, hard or soft; zero without one. From then on, nothing may
	// delay the pod's eviction. deleteFrom is the same for the hard deadline alone: from then on, a pod that cannot be evicted at once is deleted.
	evictBy, deleteFrom time.Time
}

// limits returns when a pod must be evicted and gone, by the drain's deadlines. A pod that is still there after a hard deadline gets overtime.
func (p *Pods) limits(t *target, now time.Time) limits {
	var l limits
	grace, terms := p.opts.grace(t.pod), p.drain.Terms()
	if soft := terms.SoftDeadline(now); !soft.IsZero() {
		l.evictBy = soft.Add(-p.opts.Margin - grace)
	}
	switch {
	case terms.Hard.IsZero():
		return l
	case now.Before(terms.Hard):
		l.goneBy = terms.Hard.Add(-p.opts.Margin)
	case t.metAt.After(terms.Hard): // The machine should be gone, as in the next case. This pod was found later.
		l.goneBy = t.metAt.Add(overtime)
	default:
		l.goneBy = terms.Hard.Add(overtime)
	}
	l.deleteFrom = l.goneBy.Add(-grace)
	l.evictBy = loop.Soonest(l.evictBy, l.deleteFrom)
	return l
}

// pressing reports whether evictBy has come.
func (l limits) pressing(now time.Time) bool { return !l.evictBy.IsZero() && !now.Before(l.evictBy) }

// escalated reports whether deleteFrom has come.
func (l limits) escalated(now time.Time) bool {
	return !l.deleteFrom.IsZero() && !now.Before(l.deleteFrom)
}

// shortenAt is when a deletion shortens the grace of a pod that is terminating; only if goneBy is set.
func (l limits) shortenAt() time.Time { return l.goneBy.Add(-time.Second) }

// planWaiting is plan for a pod that is not terminating, and for which no request is under way. It checks one after the other what the pod's eviction
// may have to wait for. Once limits.evictBy has come, most of that no longer counts.
func (p *Pods) planWaiting(t *target, l limits, now time.Time) (what state.TransitionKind, again time.Time) {
	if p.opts.rank(t.pod) == lastRank && p.isPreceded(t.pod) {
		return "", time.Time{} // This process itself runs in that pod, and the drain would end with it.
	}
	// A look at the Node comes first. The pod stays if somebody has uncordoned the Node, or opted it out.
	if p.drain.Terms().Looked < t.needsLook {
		if l.goneBy.IsZero() { // There is time to wait until the API server answers.
			return "", time.Time{}
		}
		if by := p.lookBy(t, l.pressing(now)); now.Before(by) {
			return "", by
		}
	}
	if t.last.accepted {
		if by := t.effectBy(l, now); now.Before(by) {
			return "", by
		}
		t.last.accepted, t.last.refused = false, true // If the pod goes now, that is not by this request: see countRemoval.
		p.noteHeld(t, state.PodRefused, noEffect)
	}
	if l.escalated(now) {
		hurry := now.Before(l.goneBy) || now.Before(p.drain.Terms().Hard) // After overtime, a pause costs no pod its grace.
		switch {
		case !t.last.sent: // Its disruption budget is asked, even now.
			return state.PodEvicted, time.Time{}
		case t.last.what == state.PodEvicted && hurry: // The deletion follows without a pause.
			return state.PodDeleted, time.Time{}
		case !now.Before(t.next): // The pause after the last request is over.
			return state.PodDeleted, time.Time{}
		}
	}
	if now.Before(t.next) {
		return "", t.next
	}
	if held, again := p.heldBack(t, l.pressing(now), now); held {
		return "", again
	}
	return state.PodEvicted, time.Time{}
}

// effectBy returns until when an accepted request has to show its effect: the watch shows the pod terminating. After that the request is repeated.
// That is overdueAfter the request, and sooner before a hard deadline, where waiting costs the pod its grace.
func (t *target) effectBy(l limits, now time.Time) time.Time {
	patience, leftAtRequest := overdueAfter, l.goneBy.Sub(t.last.at)
	switch {
	case !l.escalated(now) || leftAtRequest <= 0: // There is no hurry, or the request was made after the deadline.
	case t.last.escalated: // The rest of the time is for other requests.
		patience = min(patience, max(leftAtRequest/3, leastWatchTime))
	default: // The request was an eviction without hurry. Now a deletion is due.
		patience = leastWatchTime
	}
	return t.last.at.Add(patience)
}

// lookBy returns until when a pod waits before a hard deadline for a look at the Node. The look may show that the pod may stay. But an API server
// that does not answer must not cost the pod its grace. So a pressing pod, whose evictBy has come, waits lookGrace at most, from when it was found.
func (p *Pods) lookBy(t *target, pressing bool) time.Time {
	by := p.drain.Terms().Patience(t.metAt)
	if pressing {
		by = loop.Soonest(by, t.metAt.Add(lookGrace))
	}
	return by
}

// planTerminating is plan for a pod that is terminating. The pod is left to end by itself, unless it would end after goneBy. Then a deletion
// shortens its grace to a second. The deletion is made one second before goneBy and no sooner: the containers have had their signal, and use their
// time. The kubelet would count any longer grace from a time of the API server's clock.
func (p *Pods) planTerminating(t *target, l limits, now time.Time) (what state.TransitionKind, again time.Time) {
	switch {
	case now.Before(t.endBy):
		again = t.endBy
	case t.stage != overdue:
		t.stage, p.all = overdue, true
		t.held = "containers that have not ended"
		p.drain.Report(state.PodOverdue, t.pod, t.held)
	}
	grace := t.pod.DeletionGracePeriodSeconds
	shortest := grace != nil && *grace <= 1 // A grace of a second cannot be shortened.
	endsInTime := !t.endBy.Add(-overdueAfter).After(l.goneBy)
	if l.goneBy.IsZero() || shortest || endsInTime {
		return "", again
	}
	shortenAt := l.shortenAt()
	if shortenAt.Before(t.next) { // The last deletion failed, or the watch does not show its effect yet.
		shortenAt = t.next
	}
	if now.Before(shortenAt) {
		return "", loop.Soonest(again, shortenAt)
	}
	return state.PodDeleted, time.Time{}
}

// heldBack reports whether a pod's eviction has to wait, and when to ask again; zero means after the next change, or at evictBy, which plan
// adds. pressing: the pod's evictBy has come.
func (p *Pods) heldBack(t *target, pressing bool, now time.Time) (held bool, again time.Time) {
	from := p.drain.Terms().From
	switch {
	case from.IsZero(): // It is not known yet when evictions begin.
		return true, time.Time{}
	case pressing: // Nothing else may delay it.
		return false, time.Time{}
	case p.opts.waitsForDeadline(t.pod), p.isPreceded(t.pod):
		return true, time.Time{}
	}
	return now.Before(from), from
}

// isPreceded reports whether a pod has to wait until another pod, of a lower rank, is gone.
func (p *Pods) isPreceded(pod *corev1.Pod) bool {
	rank := p.opts.rank(pod)
	if rank == 0 {
		return false
	}
	for t := range p.going() {
		if p.opts.rank(t.pod) < rank && t.stage != overdue {
			return true
		}
	}
	return false
}

// request has a pod evicted or deleted, as what says, and returns at once. The request is made in a goroutine once Options.Gate lets it pass. Its
// result goes to handleAnswer, in the loop.
func (p *Pods) request(t *target, what state.TransitionKind, now time.Time) {
	pod, escalated := t.pod, p.limits(t, now).escalated(now)
	if escalated && !t.last.escalated {
		t.backoff = evictions // The short pauses of the start, whatever failed before.
	}
	ctx, cancel := context.WithCancel(p.loop.Context())
	t.last = request{what: what, at: now, escalated: escalated, open: true, cancel: cancel}
	precedence := kube.InTurn
	if escalated || p.opts.Urgent != nil && p.opts.Urgent() {
		precedence = kube.Urgent
	}
	run := p.loop.Worker() // The loop does not end before this request.
	p.opts.Gate.Enqueue(ctx, precedence, func(leave func(), err error) {
		go run(func(context.Context) func() {
			defer cancel()
			if err == nil { // It has a place at the gate.
				if options, timeout := p.prepare(ctx, t, pod, what); options != nil {
					err = p.remove(ctx, what, pod, options, timeout)
				} else {
					err = errUnwanted
				}
				leave()
			}
			canceled := errors.Is(err, errUnwanted) || ctx.Err() != nil // The deferred cancel comes later.
			return func() { p.handleAnswer(t, pod, err, canceled) }
		})
	})
}

// errUnwanted is the result of a request that was not sent, since it was no longer wanted when the gate let it pass.
var errUnwanted = errors.New("it is no longer wanted")

// prepare is called in a request's goroutine once Options.Gate has let it pass. It marks the request as sent, and what it cuts of the grace. It returns
// what to send and the time for the answer. options is nil if the request is no longer wanted: the deadline may have changed while it waited.
func (p *Pods) prepare(ctx context.Context, t *target, pod *corev1.Pod, what state.TransitionKind) (options *metav1.DeleteOptions, timeout time.Duration) {
	p.loop.Lock()
	defer p.loop.Unlock()
	now := time.Now()
	l := p.limits(t, now)
	mayDelete := l.escalated(now)
	if pod.DeletionTimestamp != nil { // The deletion shortens the grace, as planTerminating says.
		mayDelete = !l.goneBy.IsZero() && !now.Before(l.shortenAt())
	}
	if ctx.Err() != nil || what == state.PodDeleted && !mayDelete {
		return nil, 0
	}
	t.last.sent = true
	options = p.opts.deleteOptions(pod, l.goneBy, now)
	if grace := p.opts.grace(pod); options.GracePeriodSeconds != nil && seconds(*options.GracePeriodSeconds) < grace {
		t.last.cut = fmt.Sprintf("the deadline leaves it a grace period of %d s instead of %.0f s", *options.GracePeriodSeconds, grace.Seconds())
		if pod.DeletionTimestamp != nil {
			t.last.cut = fmt.Sprintf("it was terminating already, and its grace period of %.0f s is cut to %d s", grace.Seconds(), *options.GracePeriodSeconds)
		}
	}
	return options, p.answerTime(l, now)
}

// answerTime returns how long the answer to a request may take.
func (p *Pods) answerTime(l limits, now time.Time) time.Duration {
	// Before Hard, an answer may come until then, a margin after goneBy. After Hard, goneBy is later, by overtime.
	left := max(l.goneBy.Sub(now), p.drain.Terms().Hard.Sub(now))
	if !l.escalated(now) || left <= 0 {
		return kube.Write // If that is too long for an eviction, plan cancels it when it escalates.
	}
	return max(min(kube.WriteLimit(left), left/2), time.Second/2) // The other half is for another request.
}

// deleteOptions returns the options with which a pod is evicted or deleted. They name the pod's UID, so that another pod of the same name is not
// touched. They have a grace period only if it is not the pod's own: a setting replaces it, or the time until goneBy is shorter. A request for a
// terminating pod always has a grace period, since the API server does nothing without it.
func (o Options) deleteOptions(pod *corev1.Pod, goneBy, now time.Time) *metav1.DeleteOptions {
	// Requests are made some milliseconds after limits.evictBy; that must not cost the pod a second of its grace.
	const tolerance = 200 * time.Millisecond
	options := &metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pod.UID))}
	grace, named := o.grace(pod), o.GracePeriod != nil || pod.DeletionTimestamp != nil
	if left := goneBy.Sub(now) + tolerance; !goneBy.IsZero() && left < grace {
		grace, named = left, true
	}
	if named {
		options.GracePeriodSeconds = new(max(int64(grace/time.Second), 1)) // With 0, the API server would not wait for the containers.
	}
	return options
}

// handleAnswer handles the answer to a pod's last request, or that no answer came. asked is the pod as it was at the request. canceled: the
// request was given up, or never sent.
func (p *Pods) handleAnswer(t *target, asked *corev1.Pod, err error, canceled bool) {
	if p.pods[t.pod.UID] != t { // The pod is gone, or need not go any more.
		return
	}
	now := time.Now()
	t.last.open = false
	p.touched = append(p.touched, t)
	shortens := asked.DeletionTimestamp != nil // The request was to shorten the grace of a terminating pod.
	switch {
	case err == nil:
		t.last.at = now         // Webhooks may have taken long.
		if t.held != noEffect { // Only the watch can show that there is an effect.
			t.held = "" // What refused an earlier request does not hold the pod any more.
		}
		if t.stage < terminating { // The pod is counted once the watch shows that it terminates.
			t.last.accepted, t.next = true, time.Time{} // planWaiting waits for its effect.
		} else if shortens {
			t.next = now.Add(loop.Forever) // Nothing is left to request.
			p.countRemoval(t)
		}
	case canceled: // Nothing has refused it.
	case t.stage >= terminating && !shortens: // The pod terminates all the same.
	default:
		p.handleRefusal(t, err, now)
	}
}

// handleRefusal handles that a request for a pod failed: it sets when the next request may be made, and reports what holds the pod. It does not
// report an answer that says that the pod is gone. If that is true, the watch will show it. If not, the answer came from an API server that
// does not know of a young pod yet.
func (p *Pods) handleRefusal(t *target, err error, now time.Time) {
	budget, held := heldBy(err)
	gone := vanished(err, t.pod)
	t.last.refused = !gone && kube.Answer(err).Code != 0 // Without an answer, the request may have been carried out.
	pause, near := max(t.backoff.Step(), kube.RetryAfter(err)), p.drain.Terms().near(now)
	switch {
	case gone: // nothing to report
	case held:
		p.noteHeld(t, state.PodHeld, budget)
	default:
		p.noteHeld(t, state.PodRefused, kube.Plain(err))
		if !kube.Passing(err) {
			pause = max(pause, refusedPause)
		}
	}
	if !near { // A pod may be held for days.
		pause = max(pause, p.pauseOfHeld())
	}
	if goneBy := p.limits(t, now).goneBy; t.last.escalated && near && !goneBy.IsZero() { // Repeat it while some of the pod's grace is left.
		pause = min(pause, max(goneBy.Sub(now)/3, shortestPause))
	}
	t.next = now.Add(pause)
}

// pauseOfHeld returns how long each pod that is held waits between requests: shortestPause for each of them. So all together make one request in
// each shortestPause.
func (p *Pods) pauseOfHeld() (pause time.Duration) {
	for t := range p.going() {
		if t.held != "" {
			pause += shortestPause
		}
	}
	return pause
}

// noteHeld records what holds a pod, and reports that if it is new for this pod. by is a budget's name if what is state.PodHeld. It is the text
// of an error if what is state.PodRefused.
func (p *Pods) noteHeld(t *target, what state.TransitionKind, by string) {
	same := kube.EqualIgnoringDigits
	t.held = by
	if what == state.PodHeld {
		same = func(a, b string) bool { return a == b } // The names of two budgets may differ in a digit.
		t.held = "PDB " + by
	}
	if t.reported.Add(by, same) {
		p.drain.Report(what, t.pod, by)
	}
}

// remove makes one request for a pod: an eviction if what is state.PodEvicted, else a deletion, which no disruption budget can refuse. The error
// is client-go's; nil means that the API server has accepted the request, not that the pod is gone.
func (e *Evictor) remove(ctx context.Context, what state.TransitionKind, pod *corev1.Pod, options *metav1.DeleteOptions, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	request, body := e.client.Delete(), runtime.Object(options)
	if what == state.PodEvicted {
		// The API server reads DryRun from the query only; proxies and webhooks may look at the body.
		request = e.client.Post().SubResource("eviction").VersionedParams(&metav1.CreateOptions{DryRun: options.DryRun}, scheme.ParameterCodec)
		body = &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}, DeleteOptions: options}
	}
	// Get also decodes the answer, which has to be an object of the API server: a proxy may answer 200, too.
	_, err := request.Namespace(pod.Namespace).Resource("pods").Name(pod.Name).MaxRetries(0).Body(body).Do(ctx).Get()
	return err
}

// vanished reports whether an answer means that the pod is no longer on the node. Such answers are:
//   - 404 for this pod,
//   - 409, since a pod of that name has another UID,
//   - 403 of the node authorizer, since the pod has no relationship to the node any more,
//   - 403 of NodeRestriction, since the pod is not on this node (plugin/pkg/admission/noderestriction/admission.go of Kubernetes).
//
// The code alone proves nothing: an admission webhook may deny a request with any code. So the message is read, too.
func vanished(err error, pod *corev1.Pod) bool {
	switch s := kube.Answer(err); s.Code {
	case http.StatusNotFound:
		return s.Details != nil && s.Details.Kind == "pods" && s.Details.Name == pod.Name
	case http.StatusConflict:
		return otherUID.MatchString(s.Message)
	case http.StatusForbidden:
		return noRelationship.MatchString(s.Message)
	}
	return false
}

// The API server's words: BeforeDelete in pkg/registry/rest/delete.go, and Preconditions.Check in pkg/storage/interfaces.go, of k8s.io/apiserver.
var otherUID = regexp.MustCompile(`^Operation cannot be fulfilled on .*UID in (the )?precondition`)

var noRelationship = regexp.MustCompile(`no relationship found between node|can only (evict|delete) pods with spec.nodeName set to itself`)

// heldBy returns the name of the disruption budget that refuses an eviction. held is false for any other error. A 429 that names no disruption
// budget as its cause means that the API server is busy.
func heldBy(err error) (budget string, held bool) {
	cause, found := apierrors.StatusCause(err, policyv1.DisruptionBudgetCause)
	if !found {
		return "", false
	}
	if m := budgetName.FindStringSubmatch(cause.Message); m != nil {
		return m[1], true
	}
	return "(which the API server does not name)", true
}

// The API server's words: "The disruption budget NAME needs N healthy pods and has M currently", or "... is still being
// processed by the server." (pkg/registry/core/pod/storage/eviction.go of Kubernetes).
var budgetName = regexp.MustCompile(`disruption budget (\S+)`)
