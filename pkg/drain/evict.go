package drain

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// job is the removal of one pod. It does not wait for the pod's end: the watch sees that, and ends the job's context.
type job struct {
	node *Node
	pod  *corev1.Pod
	// grace is the pod's own, or the one that replaces it.
	grace time.Duration
	// turn is the latest time that leaves the pod its grace; zero without a deadline. From then on nothing holds it back.
	turn time.Time
	// end is when the pod must be gone; zero without a hard deadline. With one, eviction gives way to deletion at turn.
	end time.Time
	// late tells that the pod came when the drain was well under way.
	late bool
	// pause is kept before the pod is evicted, if its controller keeps bringing pods back.
	pause time.Duration
	// gates are closed when the pod may be evicted.
	gates []<-chan struct{}
	tell  func(context.Context, outcome)
}

func (d *drainer) job(pod *corev1.Pod) job {
	j := job{
		node: d.node, pod: pod, grace: d.node.opts.grace(pod),
		late:  d.settled,
		gates: []<-chan struct{}{d.open},
		tell:  d.report,
	}
	if critical(pod) {
		j.gates = append(j.gates, d.rest)
	}
	if waits(pod) {
		j.gates = append(j.gates, nil) // a gate that never opens, so that only the turn ends the wait
	}
	if d.deadline.IsZero() {
		return j
	}
	end := d.deadline.Add(-d.node.opts.Margin)
	j.turn = end.Add(-j.grace)
	if d.plan.Hard {
		j.end = end
	}
	return j
}

func (o Options) grace(pod *corev1.Pod) time.Duration {
	switch {
	case o.GracePeriod != nil:
		return *o.GracePeriod
	case pod.Spec.TerminationGracePeriodSeconds != nil:
		return time.Duration(*pod.Spec.TerminationGracePeriodSeconds) * time.Second
	}
	return corev1.DefaultTerminationGracePeriodSeconds * time.Second
}

// run evicts the pod as soon as its gates are open, again and again, and deletes it instead once the turn has come, until
// calm ends, because the pod is ending. It returns what was accepted, or what was asked for and has no answer when ctx or
// calm ends; nothing if neither.
func (j job) run(ctx, calm context.Context) What {
	what := Evicted
	if j.pod.DeletionTimestamp != nil {
		what = Deleted
	}
	if !j.due(calm) || !j.waitRound(calm) {
		return ""
	}
	if j.late && j.node.reopened(calm) {
		j.tell(ctx, outcome{uid: j.pod.UID, what: spared})
		return ""
	}
	b := &backoff{next: 200 * time.Millisecond, longest: longestEvictionPause}
	var open What // asked for, and not answered
	for calm.Err() == nil {
		err := j.ask(ctx, what)
		if err == nil {
			j.tell(ctx, outcome{uid: j.pod.UID, what: what})
			return what
		}
		if ctx.Err() != nil {
			return what
		}
		if open = what; answered(err) {
			open = ""
		}
		if calm.Err() != nil {
			break
		}
		j.refusal(ctx, err)
		if what == Evicted && j.turned() {
			what = Deleted
			continue
		}
		if !sleep(calm, j.untilTurn(max(b.pause(), retryAfter(err)))) {
			break
		}
		if j.turned() {
			what = Deleted
		}
	}
	return open
}

// due waits until something is to be done about the pod. One that is terminating is left to end, unless that would take
// it past the deadline. It has had its signal then and uses its time, and any shortening would make the kubelet count
// anew from a time of the API server's; so it is shortened to a second in the last one.
func (j job) due(ctx context.Context) bool {
	if at := j.pod.DeletionTimestamp; at != nil {
		return !j.end.IsZero() && at.After(j.end) && sleep(ctx, time.Until(j.end.Add(-time.Second)))
	}
	for _, gate := range j.gates {
		if !j.pass(ctx, gate) {
			return false
		}
	}
	return true
}

// longestEvictionPause is how often at least a refused eviction is repeated: often enough that a disruption budget which
// yields costs seconds of a two-minute notice, and rare enough for a hundred pods at once.
const longestEvictionPause = 3 * time.Second

// pass waits for a gate, or for the turn, after which no gate holds.
func (j job) pass(ctx context.Context, gate <-chan struct{}) bool {
	var turn <-chan time.Time
	if !j.turn.IsZero() {
		t := time.NewTimer(time.Until(j.turn))
		defer t.Stop()
		turn = t.C
	}
	select {
	case <-gate:
		return true
	case <-turn:
		return true
	case <-ctx.Done():
		return false
	}
}

// turned tells whether asking politely has had its time.
func (j job) turned() bool { return !j.end.IsZero() && !time.Now().Before(j.turn) }

// untilTurn shortens a pause that would sleep through the turn.
func (j job) untilTurn(pause time.Duration) time.Duration {
	if left := time.Until(j.turn); !j.end.IsZero() && left > 0 {
		return min(pause, left)
	}
	return pause
}

// patience bounds one request, so that one that hangs costs neither the turn nor the rest of the time.
func (j job) patience() time.Duration {
	if j.end.IsZero() {
		return attemptTimeout
	}
	return min(attemptTimeout, max(time.Until(j.turn), time.Until(j.end)/3, time.Second/2))
}

// options are what the pod is evicted or deleted with: the grace that it has or that the deadline leaves, and its UID,
// so that a pod reborn under the same name is not touched.
func (j job) options() *metav1.DeleteOptions {
	// A turn is taken some milliseconds late; that must not cost a pod a second of its grace.
	const late = 200 * time.Millisecond
	o := &metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(j.pod.UID))}
	grace, replaced := j.grace, j.node.opts.GracePeriod != nil || j.pod.DeletionTimestamp != nil
	if left := time.Until(j.end) + late; !j.end.IsZero() && left < grace {
		grace, replaced = left, true
	}
	if replaced {
		o.GracePeriodSeconds = new(max(int64(grace/time.Second), 1))
	}
	return o
}

// ask asks once for the pod's eviction, or for its deletion, which asks no budget.
func (j job) ask(ctx context.Context, what What) error {
	if err := j.node.opts.Gate.enter(ctx); err != nil {
		return err
	}
	defer j.node.opts.Gate.leave()
	ctx, cancel := context.WithTimeout(ctx, j.patience())
	defer cancel()
	request, body := j.node.rest().Delete(), runtime.Object(j.options())
	if what == Evicted {
		request = j.node.rest().Post().SubResource("eviction")
		body = &policyv1.Eviction{
			ObjectMeta:    metav1.ObjectMeta{Namespace: j.pod.Namespace, Name: j.pod.Name},
			DeleteOptions: j.options(),
		}
	}
	// Only an answer that can be read counts: what stands between here and the API server may answer 200, too.
	_, err := request.Namespace(j.pod.Namespace).Resource("pods").Name(j.pod.Name).MaxRetries(0).Body(body).Do(ctx).Get()
	return err
}

// refusal tells why a pod's removal was not accepted. A pod that is said to be gone is not told: the watch will say so, and
// until it does, the answer may come from an API server that has not heard of a young pod yet.
func (j job) refusal(ctx context.Context, err error) {
	if vanished(err) {
		return
	}
	if budget, held := heldBy(err); held {
		j.tell(ctx, outcome{uid: j.pod.UID, what: Held, detail: budget})
		return
	}
	j.tell(ctx, outcome{uid: j.pod.UID, what: Refused, detail: plain(err)})
}

// answered tells whether the API server has said no. Without an answer, what was asked for may have been done.
func answered(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status)
}

// vanished tells whether the answer means that this pod is no longer on the node: 404, a conflict over the UID, or the
// node authorizer's 403 for an object to which the node has no relationship (any more).
func vanished(err error) bool {
	return apierrors.IsNotFound(err) || apierrors.IsConflict(err) ||
		apierrors.IsForbidden(err) && noRelationship.MatchString(err.Error())
}

var noRelationship = regexp.MustCompile(`no relationship found between node`)

// heldBy returns the budget that refuses an eviction. 429 alone can also mean that the API server is busy.
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

// plain puts an error into few words that stay the same from one attempt to the next, so that it is told once.
func plain(err error) string {
	var status apierrors.APIStatus
	switch {
	case errors.As(err, &status):
		s := status.Status()
		return fmt.Sprintf("%d %s: %s", s.Code, http.StatusText(int(s.Code)), s.Message)
	case errors.Is(err, context.DeadlineExceeded):
		return "no answer from the API server"
	case strings.Contains(err.Error(), "getting credentials"): // client-go's words when an exec plugin fails
		return "the credential plugin fails"
	}
	return "the API server cannot be reached"
}
