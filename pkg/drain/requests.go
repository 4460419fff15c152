package drain

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"

	"github.com/nth-project/nth/pkg/kube"
	"github.com/nth-project/nth/pkg/state"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// Gate bounds how many requests are in flight at once, for all nodes that share it: evictions and deletions of pods at one gate, reads and
// writes of Nodes at another. An API server that gets thousands of requests in one moment answers most of them too late, and gets them
// again. Urgent requests have places of their own and never wait behind others: those for a pod whose turn before a deadline has come, or
// for a node that is gone in minutes. Among the urgent ones and among the others, those that are first, such as for a pod with volumes to
// attach elsewhere, take a place before those that came earlier. The nil Gate is always open.
type Gate struct {
	mu             sync.Mutex
	normal, urgent lane
	entered        int           // how many requests have a place or wait for one
	quiet          chan struct{} // closed while there are none
}

// lane is a number of places, with the two lines for them.
type lane struct {
	free        int
	first, rest []chan struct{}
}

// NewGate returns a gate with so many places, and as many more for urgent requests.
func NewGate(places int) *Gate {
	quiet := make(chan struct{})
	close(quiet)
	return &Gate{normal: lane{free: places}, urgent: lane{free: places}, quiet: quiet}
}

// Quiet returns a channel that is closed once no request has a place or waits for one.
func (g *Gate) Quiet() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.quiet
}

// longestPass is how long a request may keep its place. If it takes longer, the reason is its own, such as a webhook that does not answer,
// and must not hold up all nodes.
const longestPass = 2 * time.Second

// urgentLook is how often a request that waits for a place checks whether it has become urgent.
const urgentLook = time.Second

// Enter waits for a place, and returns a function that must be called to leave it. The request's own timeout should begin only then. urgent,
// if not nil, tells whether the request is urgent, and is called again while it waits. The error is ctx's.
func (g *Gate) Enter(ctx context.Context, urgent func() bool, first bool) (leave func(), err error) {
	return g.line(urgent, first)(ctx)
}

// line is Enter in two steps: it joins the line at once, and returns the function that waits, which must be called.
func (g *Gate) line(urgent func() bool, first bool) func(ctx context.Context) (leave func(), err error) {
	if g == nil {
		return func(context.Context) (func(), error) { return func() {}, nil }
	}
	l := &g.normal
	if urgent != nil && urgent() {
		l = &g.urgent
	}
	turn := g.join(l, first)
	return func(ctx context.Context) (func(), error) {
		var looks <-chan time.Time
		if l == &g.normal && urgent != nil {
			ticks := time.NewTicker(urgentLook)
			defer ticks.Stop()
			looks = ticks.C
		}
		for {
			select {
			case <-turn:
				return g.pass(l, turn), nil
			case <-ctx.Done():
				g.leave(l, turn)
				return nil, ctx.Err()
			case <-looks:
				if urgent() {
					before := turn
					l, turn, looks = &g.urgent, g.join(&g.urgent, first), nil
					g.leave(&g.normal, before)
				}
			}
		}
	}
}

// pass returns the function that leaves a place. After longestPass, the place is left in any case.
func (g *Gate) pass(l *lane, turn chan struct{}) (leave func()) {
	once := sync.OnceFunc(func() { g.leave(l, turn) })
	limit := time.AfterFunc(longestPass, once)
	return func() {
		limit.Stop()
		once()
	}
}

// join takes a place or joins the line for one. The channel is closed once the place is taken.
func (g *Gate) join(l *lane, first bool) (turn chan struct{}) {
	turn = make(chan struct{})
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.entered++; g.entered == 1 {
		g.quiet = make(chan struct{})
	}
	switch {
	case l.free > 0:
		l.free--
		close(turn)
	case first:
		l.first = append(l.first, turn)
	default:
		l.rest = append(l.rest, turn)
	}
	return turn
}

// leave leaves the line, or gives the place to the next one in line.
func (g *Gate) leave(l *lane, turn chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.entered--; g.entered == 0 {
		close(g.quiet)
	}
	for _, waiting := range []*[]chan struct{}{&l.first, &l.rest} {
		if i := slices.Index(*waiting, turn); i >= 0 {
			*waiting = slices.Delete(*waiting, i, i+1)
			return
		}
	}
	for _, waiting := range []*[]chan struct{}{&l.first, &l.rest} {
		if len(*waiting) > 0 {
			close((*waiting)[0])
			*waiting = (*waiting)[1:]
			return
		}
	}
	l.free++
}

// Requests are made with the REST client and MaxRetries(0). The typed client would retry them by itself: up to ten times, each after as many
// seconds as Retry-After says, whatever the deadline; or a second after a broken connection, which is long for a cordon.

// reads bounds attempts to read: the limit grows after each time-out, and shrinks after an answer for which the one before was enough.
type reads struct {
	timeouts atomic.Int32
	hard     atomic.Pointer[time.Time] // the deadline, if there is one
}

// setDeadline has attempts leave half of the time before a hard deadline to what follows them.
func (r *reads) setDeadline(hard time.Time) { r.hard.Store(&hard) }

func (r *reads) limit(timeouts int) time.Duration {
	limit := kube.ReadLimit(timeouts)
	if hard := r.hard.Load(); hard != nil && time.Now().Before(*hard) {
		limit = min(limit, max(kube.Read, time.Until(*hard)/2))
	}
	return limit
}

// attempt makes one attempt.
func (r *reads) attempt(ctx context.Context, read func(context.Context) error) error {
	timeouts := int(r.timeouts.Load())
	limited, cancel := context.WithTimeout(ctx, r.limit(timeouts))
	defer cancel()
	began := time.Now()
	err := read(limited)
	r.note(timeouts, err == nil, limited.Err() != nil && ctx.Err() == nil, time.Since(began))
	return err
}

// note takes in how an attempt ended that was made after so many time-outs.
func (r *reads) note(timeouts int, answered, timedOut bool, took time.Duration) {
	switch {
	case answered && timeouts > 0 && took < kube.ReadLimit(timeouts-1):
		r.timeouts.CompareAndSwap(int32(timeouts), int32(timeouts-1))
	case !answered && timedOut && kube.ReadLimit(timeouts) < kube.ReadMost:
		r.timeouts.CompareAndSwap(int32(timeouts), int32(timeouts+1))
	}
}

// timeoutBefore bounds a write that a hard deadline presses, with so much time left: a connection that hangs must not use it up.
func timeoutBefore(left time.Duration) time.Duration {
	return min(kube.Write, max(kube.WritePressed, left/10))
}

// patchTimeout bounds a patch of the Node.
func (g Goal) patchTimeout() time.Duration {
	if g.Hard.IsZero() {
		return kube.Write
	}
	return timeoutBefore(time.Until(g.Hard))
}

// outlasting returns a context that ends after a timeout, whatever becomes of ctx; but kube.WritePressed after ctx's end at the latest.
func outlasting(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	stop := context.AfterFunc(ctx, func() {
		Await(limited, nil, kube.WritePressed)
		cancel()
	})
	return limited, func() { stop(); cancel() }
}

func (n *Node) rest() rest.Interface { return n.client.CoreV1().RESTClient() }

// enter waits for a place at the gate for Nodes. The requests that close a node go first, so that a node is closed soon once that was
// begun.
func (n *Node) enter(ctx context.Context, first bool) (leave func(), err error) {
	return n.opts.Requests.Enter(ctx, n.opts.Urgent, first)
}

func (n *Node) get(ctx context.Context, first bool) (*corev1.Node, error) {
	leave, err := n.enter(ctx, first)
	if err != nil {
		return nil, err
	}
	defer leave()
	node := &corev1.Node{}
	err = n.reads.attempt(ctx, func(ctx context.Context) error {
		return n.rest().Get().Resource("nodes").Name(n.name).MaxRetries(0).Do(ctx).Into(node)
	})
	if err == nil && n.opts.UID != "" && node.UID != n.opts.UID {
		err = apierrors.NewNotFound(corev1.Resource("nodes"), n.name)
	}
	return node, err
}

// labelManager is the field manager of our other keys on a Node: to write them must not move the time that the API server has noted for the
// cordon (writtenAt).
func (n *Node) labelManager() string { return n.opts.Writer + "-label" }

// patch changes our other keys on the Node, and returns the new Node.
func (n *Node) patch(ctx context.Context, patch map[string]any) (*corev1.Node, error) {
	leave, err := n.enter(ctx, false)
	if err != nil {
		return nil, err
	}
	defer leave()
	return n.write(ctx, patch, n.labelManager())
}

// patchToEnd changes the cordon, with the writer as field manager. It is like patch, except that a request that was begun is not
// canceled with ctx: the API server might still carry it out, and whoever uncordons the node afterwards has to see it. calm ends with ctx, or
// when there is little time all at once.
func (n *Node) patchToEnd(ctx, calm context.Context, patch map[string]any, timeout time.Duration) (*corev1.Node, error) {
	leave, err := n.enter(ctx, true)
	if err != nil {
		return nil, err
	}
	defer leave()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	ctx, cancel := outlasting(calm, timeout)
	defer cancel()
	return n.write(ctx, patch, n.opts.Writer)
}

func (n *Node) write(ctx context.Context, patch map[string]any, manager string) (*corev1.Node, error) {
	body, err := json.Marshal(patch)
	if err != nil {
		return nil, fmt.Errorf("encoding patch: %w", err)
	}
	node := &corev1.Node{}
	err = n.rest().Patch(types.MergePatchType).Resource("nodes").Name(n.name).
		VersionedParams(&metav1.PatchOptions{FieldManager: manager}, scheme.ParameterCodec).
		Body(body).MaxRetries(0).Do(ctx).Into(node)
	return node, err
}

// newer returns the newer of two resource versions, which the API server counts up; a if one of them is no number.
func newer(a, b string) string {
	x, errA := strconv.ParseUint(a, 10, 64)
	y, errB := strconv.ParseUint(b, 10, 64)
	if errB == nil && (a == "" || errA == nil && y > x) {
		return b
	}
	return a
}

// remove makes one request for a pod's eviction, or for its deletion, which no disruption budget can refuse.
func (n *Node) remove(ctx context.Context, what state.TransitionKind, pod *corev1.Pod, options *metav1.DeleteOptions, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	request, body := n.rest().Delete(), runtime.Object(options)
	if what == state.PodEvicted {
		// The API server takes the dry run from the query only; proxies and webhooks may look at the body.
		request = n.rest().Post().SubResource("eviction").VersionedParams(&metav1.CreateOptions{DryRun: options.DryRun}, scheme.ParameterCodec)
		body = &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}, DeleteOptions: options}
	}
	// The answer has to be one of the API server's: a proxy may answer 200, too.
	_, err := request.Namespace(pod.Namespace).Resource("pods").Name(pod.Name).MaxRetries(0).Body(body).Do(ctx).Get()
	return err
}

// Most failures of an API server are short, and a request that it refuses for good is repeated without hurry. A refused eviction is repeated
// often enough that a disruption budget which yields costs no more than seconds of a two-minute notice.
var (
	failures  = backoff(50*time.Millisecond, time.Second)
	refusals  = backoff(time.Second, 30*time.Second)
	evictions = backoff(100*time.Millisecond, 1500*time.Millisecond)
	// overdueLists are the pauses between lists for pods that should have ended.
	overdueLists = backoff(5*time.Second, 5*time.Minute)
)

// backoff returns pauses that double from first to longest, each with a jitter that adds up to as much again.
func backoff(first, longest time.Duration) wait.Backoff {
	return wait.Backoff{Duration: first, Cap: longest, Factor: 2, Jitter: 1, Steps: 10}
}

// retry repeats do until it succeeds, is refused for good, or ctx ends. In the last case it returns the last error that ctx's end did not
// cause, which says more.
func retry(ctx context.Context, do func(context.Context) error) error {
	b := failures
	var last error
	for {
		err := do(ctx)
		if err == nil || !passing(err) {
			return err
		}
		if last == nil || ctx.Err() == nil {
			last = err
		}
		pause := max(b.Step(), retryAfter(err))
		if errors.Is(err, errNotReady) {
			pause = lookEvery
		}
		if !Await(ctx, nil, pause) {
			return fmt.Errorf("%w (%w)", last, ctx.Err())
		}
	}
}

// passing tells whether a failure may pass by itself. A 4xx of the API server stands, except for authentication (a
// credential may be renewed), conflicts, timeouts and throttling. A proxy says 404 while the API server behind it moves.
func passing(err error) bool {
	switch code := answer(err).Code; code {
	case http.StatusUnauthorized, http.StatusRequestTimeout, http.StatusConflict, http.StatusTooManyRequests:
		return true
	case http.StatusNotFound:
		return !NotFound(err)
	default:
		return code < 400 || code >= 500
	}
}

// retryAfter is the pause that a throttling API server asks for, but a few seconds at most: a drain that has two minutes cannot spend
// one of them waiting.
func retryAfter(err error) time.Duration {
	const longest = 5 * time.Second
	if delay, ok := apierrors.SuggestsClientDelay(err); ok {
		return min(seconds(int64(delay)), longest)
	}
	return 0
}

// Await waits for d, or for news, or until ctx ends. It returns false if ctx has ended.
func Await(ctx context.Context, news <-chan struct{}, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-news:
	case <-timer.C:
	}
	return ctx.Err() == nil
}

// NotFound tells whether the API server has answered that there is no such object. The page of a proxy or a load balancer with that code, which
// client-go marks as unexpected, is not the API server's word.
func NotFound(err error) bool {
	return apierrors.IsNotFound(err) && !apierrors.IsUnexpectedServerError(err)
}

// answer is the API server's answer; empty if there was none, so that the request may have been carried out.
func answer(err error) metav1.Status {
	if status := apierrors.APIStatus(nil); errors.As(err, &status) {
		return status.Status()
	}
	return metav1.Status{}
}

// vanished tells whether an answer means that the pod is no longer on the node: the pod's own 404, a conflict over the UID, the node
// authorizer's 403 for an object to which the node has no relationship (any more), or NodeRestriction's for a pod that is not on this node
// (plugin/pkg/admission/noderestriction/admission.go of Kubernetes). An admission webhook may deny a request with any code, in its own words.
func vanished(err error, pod *corev1.Pod) bool {
	switch s := answer(err); s.Code {
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

// heldBy returns the disruption budget that refuses an eviction. A 429 without that cause means that the API server is busy.
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

// Alike tells whether two errors differ in nothing but digits: ports and times change with every attempt.
func Alike(a, b string) bool {
	digits := func(r rune) rune {
		if unicode.IsDigit(r) {
			return -1
		}
		return r
	}
	return strings.Map(digits, a) == strings.Map(digits, b)
}

// reasons are what was told of why something fails, each once. There is a bound to that: somebody may say something else each time.
type reasons []string

// add tells whether a reason is to be told.
func (r *reasons) add(text string, same func(a, b string) bool) bool {
	const most = 16
	if len(*r) == most || slices.ContainsFunc(*r, func(told string) bool { return same(told, text) }) {
		return false
	}
	*r = append(*r, text)
	return true
}

// plain describes an error in words that stay the same from one attempt to the next, so that it is reported once.
func plain(err error) string {
	switch s := answer(err); {
	case s.Code != 0:
		return fmt.Sprintf("%d %s: %s", s.Code, http.StatusText(int(s.Code)), s.Message)
	case errors.Is(err, context.DeadlineExceeded):
		return "no answer from the API server"
	case strings.Contains(err.Error(), "getting credentials"): // as pkg/identity says when an exec plugin fails
		return "the credential plugin fails"
	}
	return "the API server cannot be reached"
}
