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
	due := p.touched
	if p.all {
		// Pods that their owner has brought back come last: a budget that grants one eviction at a time is for the others first.
		due = slices.SortedFunc(p.going(), func(a, b *target) int {
			return cmp.Or(cmp.Compare(a.round, b.round), cmp.Compare(Name(a.pod), Name(b.pod)))
		})
		p.wake = time.Time{}
	}
	p.all, p.touched = false, nil
	for _, t := range due {
		what, again := p.plan(t, now)
		if what != "" {
			p.request(t, what, now)
		} else {
			p.wake = loop.Soonest(p.wake, again)
		}
	}
	if p.all { // plan has found a pod overdue. Critical pods, which no longer wait for it, may have been planned before it.
		return now
	}
	return p.wake
}

// plan says what comes next for a pod that has to go: state.PodEvicted or state.PodDeleted to request that now; or "", and when to plan again.
// A zero time means after the next change.
func (p *Pods) plan(t *target, now time.Time) (state.TransitionKind, time.Time) {
	end, turn := p.limits(t, now)
	switch {
	case t.last.open:
		// Its answer comes first. But at its turn, an eviction that hangs gives way to a deletion.
		if t.last.what == state.PodEvicted && !end.IsZero() && !t.last.urgent && !now.Before(turn) {
			t.last.cancel()
		}
		return "", after(now, turn)
	case t.stage >= terminating:
		return p.planTerminating(t, end, now)
	}
	what, again := p.planWaiting(t, end, turn, now)
	return what, loop.Soonest(again, after(now, turn))
}

// after returns the time at if that is still to come, otherwise zero.
func after(now, at time.Time) time.Time {
	if at.After(now) {
		return at
	}
	return time.Time{}
}

// planWaiting is plan for a pod that is not terminating: no request for it was accepted, or an accepted one shows no effect yet. end and turn are
// from limits.
func (p *Pods) planWaiting(t *target, end, turn, now time.Time) (state.TransitionKind, time.Time) {
	hard, turnCome := !end.IsZero(), !turn.IsZero() && !now.Before(turn)
	if p.opts.rank(t.pod) == lastRank && p.isPreceded(t.pod) {
		return "", time.Time{} // This process itself runs in that pod, and the drain would end with it.
	}
	// A look at the Node comes first: if somebody has uncordoned it, or wants nothing done to it, the pod stays.
	if p.terms().Looked < t.needsLook {
		if !hard {
			return "", time.Time{}
		}
		if by := p.lookBy(t, turnCome); now.Before(by) {
			return "", by
		}
	}
	if t.last.accepted {
		if effect := t.effectBy(end, turnCome); now.Before(effect) {
			return "", effect
		}
		t.last.accepted, t.last.refused = false, true
		p.noteHeld(t, state.PodRefused, noEffect)
	}
	if hard && turnCome {
		// Before it is deleted, its budget is asked once, without a pause. The deletion waits for none either, unless the deadline is long over.
		switch pressed := now.Before(end) || now.Before(p.terms().Hard); {
		case t.last.what == "":
			return state.PodEvicted, time.Time{}
		case t.last.what == state.PodEvicted && pressed || !now.Before(t.next):
			return state.PodDeleted, time.Time{}
		}
	}
	if now.Before(t.next) {
		return "", t.next
	}
	if held, again := p.heldBack(t, turnCome, now); held {
		return "", again
	}
	return state.PodEvicted, time.Time{}
}

// effectBy is until when an accepted request has to show an effect. After that it is repeated. That is overdueAfter, but less once the pod's
// turn before a hard deadline has come: a third of the time that was left at the request. A request from before that turn has leastWatchTime
// alone, as the pod is to be deleted now.
func (t *target) effectBy(end time.Time, turnCome bool) time.Time {
	patience := overdueAfter
	switch {
	case !turnCome || !t.last.at.Before(end): // Nothing presses, or not any more.
	case t.last.urgent:
		patience = min(patience, max(end.Sub(t.last.at)/3, leastWatchTime))
	default:
		patience = leastWatchTime
	}
	return t.last.at.Add(patience)
}

// lookBy is until when a pod waits before a hard deadline for a look at the Node, which may show that the pod may stay. An API server that does
// not answer must not cost the pod its grace. A pod whose turn has come waits lookGrace at most: after an outage, the watch and the look
// recover at about the same time.
func (p *Pods) lookBy(t *target, turnCome bool) time.Time {
	if by := p.terms().Patience(t.metAt); !turnCome || by.Before(t.metAt.Add(lookGrace)) {
		return by
	}
	return t.metAt.Add(lookGrace)
}

// limits returns by when a pod must be gone, zero without a hard deadline, and its turn: the latest time that leaves it its grace before
// the deadline, hard or soft. From then on nothing may delay it, and before a hard deadline eviction gives way to deletion.
func (p *Pods) limits(t *target, now time.Time) (end, turn time.Time) {
	switch hard := p.terms().Hard; {
	case hard.IsZero(): // end stays zero.
	case now.Before(hard):
		end = hard.Add(-p.opts.Margin)
	default: // The machine should be gone, and may be at any moment.
		end = hard.Add(overtime)
		if t.metAt.After(hard) {
			end = t.metAt.Add(overtime)
		}
	}
	grace, soft := p.opts.grace(t.pod), p.terms().Soft
	switch {
	case !end.IsZero():
		turn = end.Add(-grace)
	case !soft.IsZero():
		turn = soft.Add(-p.opts.Margin - grace)
	}
	return end, turn
}

// planTerminating is plan for a pod that is terminating. The pod is left to end, unless it would end after the deadline. Then a deletion shortens
// its grace to a second, one second before the deadline and no sooner: its containers have had their signal and use their time. The kubelet
// would count any longer grace from a time of the API server's clock.
func (p *Pods) planTerminating(t *target, end, now time.Time) (state.TransitionKind, time.Time) {
	var again time.Time
	switch {
	case now.Before(t.endBy):
		again = t.endBy
	case t.stage != overdue:
		t.stage, p.all = overdue, true
		t.held = "it does not end"
		p.drain.Report(state.PodOverdue, t.pod, t.held)
	}
	// A grace of a second cannot be shortened.
	last := t.pod.DeletionGracePeriodSeconds
	endsInTime := !t.endBy.Add(-overdueAfter).After(end)
	if end.IsZero() || last != nil && *last <= 1 || endsInTime {
		return "", again
	}
	due := end.Add(-time.Second)
	if due.Before(t.next) { // The last deletion failed, or the watch does not show it yet.
		due = t.next
	}
	if now.Before(due) {
		return "", loop.Soonest(again, due)
	}
	return state.PodDeleted, time.Time{}
}

// heldBack reports whether something holds back a pod's eviction, and when to ask again; zero means after the next change. What may: the node
// is not ready for evictions (Terms.From), its annotation, or a pod of a lower rank. Once its turn before a soft deadline has come, only a
// missing From does.
func (p *Pods) heldBack(t *target, turnCome bool, now time.Time) (bool, time.Time) {
	switch from := p.terms().From; {
	case from.IsZero() || !turnCome && (p.opts.waits(t.pod) || p.isPreceded(t.pod)):
		return true, time.Time{}
	default:
		return !turnCome && now.Before(from), from
	}
}

// isPreceded reports whether this pod has to wait for another one, of a lower rank, to be gone.
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

// request evicts or deletes a pod, and does not wait for that. The request is made in a goroutine once Options.Gate lets it pass. handleAnswer
// gets the result.
func (p *Pods) request(t *target, what state.TransitionKind, now time.Time) {
	end, turn := p.limits(t, now)
	pod, urgent := t.pod, !end.IsZero() && !now.Before(turn)
	if urgent && !t.last.urgent {
		t.backoff = evictions // Earlier ones must not slow it down now.
	}
	if !urgent { // At its turn, plan for it again, whatever the request does.
		p.wake = loop.Soonest(p.wake, turn)
	}
	ctx, cancel := context.WithCancel(p.loop.Context())
	t.last = request{what: what, at: now, urgent: urgent, open: true, cancel: cancel}
	precedence := kube.InTurn
	if urgent || p.opts.Urgent != nil && p.opts.Urgent() {
		precedence = kube.Urgent
	}
	run := p.loop.Worker()
	p.opts.Gate.Line(ctx, precedence, func(leave func(), err error) {
		go run(func(context.Context) func() {
			defer cancel()
			if err == nil {
				if options, timeout := p.send(ctx, t, pod, what); options != nil {
					err = p.remove(ctx, what, pod, options, timeout)
				} else {
					err = errUnwanted
				}
				leave()
			}
			canceled := errors.Is(err, errUnwanted) || ctx.Err() != nil // before the deferred cancel
			return func() { p.handleAnswer(t, pod, err, canceled) }
		})
	})
}

// errUnwanted is the result of a request that was not sent, since it was no longer wanted when the gate let it pass.
var errUnwanted = errors.New("it is no longer wanted")

// send prepares a request that has passed the gate: it marks the request as sent, and returns what to send and the time for the answer. It goes
// by the present deadline, as the wait at the gate may have been long. options is nil if the request is no longer wanted.
func (p *Pods) send(ctx context.Context, t *target, pod *corev1.Pod, what state.TransitionKind) (options *metav1.DeleteOptions, timeout time.Duration) {
	p.loop.Lock()
	defer p.loop.Unlock()
	now := time.Now()
	end, turn := p.limits(t, now)
	due := turn
	if pod.DeletionTimestamp != nil {
		due = end.Add(-time.Second) // as in planTerminating
	}
	tooSoon := end.IsZero() || now.Before(due) // The deadline has gone or moved.
	if ctx.Err() != nil || what == state.PodDeleted && tooSoon {
		return nil, 0
	}
	t.last.sent = true
	timeout = kube.Write
	left := max(end.Sub(now), p.terms().Hard.Sub(now))  // A slow API server may use up the margin.
	if !end.IsZero() && !now.Before(turn) && left > 0 { // Otherwise plan cancels it at its turn, or nothing presses any more.
		timeout = max(min(kube.WriteLimit(left), left/2), time.Second/2)
	}
	options = p.opts.deleteOptions(pod, end, now)
	if grace := p.opts.grace(pod); options.GracePeriodSeconds != nil && seconds(*options.GracePeriodSeconds) < grace {
		t.last.cut = fmt.Sprintf("the deadline leaves %d s of its grace period of %.0f s", *options.GracePeriodSeconds, grace.Seconds())
	}
	return options, timeout
}

// deleteOptions returns what a pod is evicted or deleted with. Its UID is in them, so that another pod of the same name is not touched. A grace
// period is in them if it is not the pod's own: a setting replaces it, or the deadline leaves less. A request for a terminating pod always has
// one, since the API server does nothing without it.
func (o Options) deleteOptions(pod *corev1.Pod, end, now time.Time) *metav1.DeleteOptions {
	// Requests are made some milliseconds after the pod's turn; that must not cost the pod a second of its grace.
	const late = 200 * time.Millisecond
	options := &metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pod.UID))}
	grace, replaced := o.grace(pod), o.GracePeriod != nil || pod.DeletionTimestamp != nil
	if left := end.Sub(now) + late; !end.IsZero() && left < grace {
		grace, replaced = left, true
	}
	if replaced {
		options.GracePeriodSeconds = new(max(int64(grace/time.Second), 1))
	}
	return options
}

// handleAnswer handles the answer to a pod's last request, or that no answer came. asked is the pod as it was at the request. canceled: the
// request was given up, or never sent.
func (p *Pods) handleAnswer(t *target, asked *corev1.Pod, err error, canceled bool) {
	if p.pods[t.pod.UID] != t { // It is gone, or need not go any more.
		return
	}
	now := time.Now()
	t.last.open = false
	p.touched = append(p.touched, t)
	switch {
	case err == nil:
		t.last.at = now // Webhooks may have taken long.
		if t.held != noEffect {
			t.held = "" // What refused it before does not hold it any more.
		}
		if t.stage < terminating { // It is counted once the watch shows that it terminates.
			t.last.accepted, t.next = true, time.Time{}
		} else if asked.DeletionTimestamp != nil {
			t.next = now.Add(forever) // Its grace is shortened now.
			p.credit(t)
		}
	case t.stage >= terminating && asked.DeletionTimestamp == nil, canceled: // It terminates all the same, or nothing has refused it.
	default:
		p.handleRefusal(t, err, now)
	}
}

// handleRefusal handles that a request for a pod failed: it sets when the next one may be made, and reports what holds the pod. An answer that
// says that the pod is gone is not reported. The watch will show that. Until then, the answer may come from an API server that has not heard
// of a young pod yet.
func (p *Pods) handleRefusal(t *target, err error, now time.Time) {
	name, held := heldBy(err)
	gone := vanished(err, t.pod)
	t.last.refused = !gone && kube.Answer(err).Code != 0
	pause, near := max(t.backoff.Step(), kube.RetryAfter(err)), p.terms().near(now)
	switch {
	case gone:
	case held:
		p.noteHeld(t, state.PodHeld, name)
	default:
		p.noteHeld(t, state.PodRefused, kube.Plain(err))
		if !kube.Passing(err) {
			pause = max(pause, refusedPause)
		}
	}
	if !near { // A pod may be held for days.
		pause = max(pause, p.shareOfPause())
	}
	if end, _ := p.limits(t, now); t.last.urgent && near && !end.IsZero() { // It is to be repeated while some of its grace is left.
		pause = min(pause, max(end.Sub(now)/3, shortestPause))
	}
	t.next = now.Add(pause)
}

// shareOfPause is how long each pod that is held waits, so that together they ask once in shortestPause.
func (p *Pods) shareOfPause() (pause time.Duration) {
	for t := range p.going() {
		if t.held != "" {
			pause += shortestPause
		}
	}
	return pause
}

// noteHeld records what holds a pod, and reports that if it is new for this pod. by is a budget's name or an error.
func (p *Pods) noteHeld(t *target, what state.TransitionKind, by string) {
	same := kube.EqualIgnoringDigits
	if what == state.PodHeld { // The names of two budgets may differ in a digit.
		same = func(a, b string) bool { return a == b }
	}
	t.held = by
	if what == state.PodHeld {
		t.held = "PDB " + by
	}
	if t.reported.Add(by, same) {
		p.drain.Report(what, t.pod, by)
	}
}

// remove makes one request for a pod: an eviction if what is state.PodEvicted, else a deletion, which no disruption budget can refuse.
func (e *Evictor) remove(ctx context.Context, what state.TransitionKind, pod *corev1.Pod, options *metav1.DeleteOptions, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	request, body := e.client.Delete(), runtime.Object(options)
	if what == state.PodEvicted {
		// The API server takes the dry run from the query only; proxies and webhooks may look at the body.
		request = e.client.Post().SubResource("eviction").VersionedParams(&metav1.CreateOptions{DryRun: options.DryRun}, scheme.ParameterCodec)
		body = &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}, DeleteOptions: options}
	}
	// The answer has to be one of the API server's: a proxy may answer 200, too.
	_, err := request.Namespace(pod.Namespace).Resource("pods").Name(pod.Name).MaxRetries(0).Body(body).Do(ctx).Get()
	return err
}

// vanished reports whether an answer means that the pod is no longer on the node. Such answers are:
//   - 404 for this pod,
//   - 409 since a pod of that name has another UID,
//   - 403 of the node authorizer, as the pod has no relationship to the node any more, or of NodeRestriction, as it is not on this node
//     (plugin/pkg/admission/noderestriction/admission.go of Kubernetes).
//
// The code alone proves nothing: an admission webhook may deny a request with any code, in its own words.
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

// heldBy returns the name of the disruption budget that refuses an eviction. held is false for any other error: a 429 without that cause means
// that the API server is busy.
func heldBy(err error) (budget string, held bool) {
	cause, found := apierrors.StatusCause(err, policyv1.DisruptionBudgetCause)
	if !found {
		return "", false
	}
	if m := budgetName.FindStringSubmatch(cause.Message); m != nil {
		return m[1], true
	}
	return "a disruption budget", true
}

// The API server's words: "The disruption budget NAME needs N healthy pods and has M currently", or "... is still being
// processed by the server." (pkg/registry/core/pod/storage/eviction.go of Kubernetes).
var budgetName = regexp.MustCompile(`disruption budget (\S+)`)
