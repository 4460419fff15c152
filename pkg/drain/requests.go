package drain

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/nth-project/nth/pkg/state"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// Gate bounds how many requests of a kind, for all nodes that share it, wait for an answer at once: evictions and deletions of pods at one
// gate, reads and writes of Nodes at another. An API server that is asked thousands of things in one moment answers most of them too late,
// and is asked again. What is urgent has places of its own, so that it never waits behind what is not: a pod whose turn before a deadline
// has come, a node that is gone in minutes. Of the others and of these, what is first, such as a pod whose volumes have to be attached
// elsewhere, takes a place before what has come earlier. The nil Gate is always open.
type Gate struct {
	mu             sync.Mutex
	polite, urgent lane
	in             int           // how many have a place or wait for one
	quiet          chan struct{} // closed while there are none
}

// lane is a number of places, and who waits for one: those that come first, and the others.
type lane struct {
	free        int
	first, rest []chan struct{}
}

// NewGate returns a gate that lets so many through at once, and as many that are urgent.
func NewGate(places int) *Gate {
	quiet := make(chan struct{})
	close(quiet)
	return &Gate{polite: lane{free: places}, urgent: lane{free: places}, quiet: quiet}
}

// Quiet returns a channel that is closed once nobody asks for evictions or deletions, or waits to do so.
func (g *Gate) Quiet() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.quiet
}

// longestPass is how long a request is counted that has entered. What takes longer does so for a reason of its own, such as a webhook that
// does not answer, and is not to hold up all nodes.
const longestPass = 2 * time.Second

// urgentLook is how often those who wait for a place look whether they have become urgent.
const urgentLook = time.Second

// Enter waits for a place for a request, and returns how to leave it, which must be called. The time that the request may take begins
// only then. What becomes urgent while it waits, as urgent tells if it is not nil, goes on as such. The error is ctx's.
func (g *Gate) Enter(ctx context.Context, urgent func() bool, first bool) (leave func(), err error) {
	return g.line(urgent, first)(ctx)
}

// line takes a place, or one in the line for it. It returns what waits for the turn, which must be called, and returns how to leave
// the place again. The error is ctx's.
func (g *Gate) line(urgent func() bool, first bool) func(ctx context.Context) (leave func(), err error) {
	if g == nil {
		return func(context.Context) (func(), error) { return func() {}, nil }
	}
	l := &g.polite
	if urgent != nil && urgent() {
		l = &g.urgent
	}
	turn := g.join(l, first)
	return func(ctx context.Context) (func(), error) {
		var looks <-chan time.Time
		if l == &g.polite && urgent != nil {
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
					g.leave(&g.polite, before)
				}
			}
		}
	}
}

// pass returns how to leave a place that was taken, which is left by itself after longestPass.
func (g *Gate) pass(l *lane, turn chan struct{}) (leave func()) {
	once := sync.OnceFunc(func() { g.leave(l, turn) })
	limit := time.AfterFunc(longestPass, once)
	return func() {
		limit.Stop()
		once()
	}
}

// join takes a place, or one in the line for it: the channel is closed once it is taken.
func (g *Gate) join(l *lane, first bool) (turn chan struct{}) {
	turn = make(chan struct{})
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.in++; g.in == 1 {
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

// leave gives up a place to whoever is next, or one in the line.
func (g *Gate) leave(l *lane, turn chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.in--; g.in == 0 {
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

// The requests are made by hand, with MaxRetries(0). The typed client would repeat them by itself: up to ten times, and
// after as many seconds as a Retry-After says, deaf to the deadline; or a second after a broken connection, which is
// long for a cordon. This package repeats what is worth repeating, at its own pace.

// attemptTimeout bounds one request. It is long enough for slow admission webhooks and short enough to try again within
// the two minutes of a spot notice when a connection hangs.
const attemptTimeout = 8 * time.Second

func (n *Node) rest() rest.Interface { return n.client.CoreV1().RESTClient() }

// enter waits for a place among the requests about Nodes. The first of a node are before what others of the same urgency have begun to
// wait for earlier: it is to be closed soon once somebody has begun to.
func (n *Node) enter(ctx context.Context, first bool) (leave func(), err error) {
	return n.opts.Requests.Enter(ctx, n.opts.Urgent, first)
}

func (n *Node) get(ctx context.Context, first bool) (*corev1.Node, error) {
	leave, err := n.enter(ctx, first)
	if err != nil {
		return nil, err
	}
	defer leave()
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	node := &corev1.Node{}
	err = n.rest().Get().Resource("nodes").Name(n.name).MaxRetries(0).Do(ctx).Into(node)
	return node, err
}

// patch changes the Node, under the writer's name as field manager, and returns it as it is then.
func (n *Node) patch(ctx context.Context, patch map[string]any) (*corev1.Node, error) {
	leave, err := n.enter(ctx, false)
	if err != nil {
		return nil, err
	}
	defer leave()
	return n.write(ctx, patch)
}

// patchToEnd is patch, but that it is not canceled halfway: the API server might carry it out when nobody expects it any more, and what
// it has set is to be seen by whoever takes it back.
func (n *Node) patchToEnd(ctx context.Context, patch map[string]any) (*corev1.Node, error) {
	leave, err := n.enter(ctx, true)
	if err != nil {
		return nil, err
	}
	defer leave()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return n.write(context.WithoutCancel(ctx), patch)
}

func (n *Node) write(ctx context.Context, patch map[string]any) (*corev1.Node, error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	body, err := json.Marshal(patch)
	if err != nil {
		return nil, fmt.Errorf("encoding patch: %w", err)
	}
	node := &corev1.Node{}
	err = n.rest().Patch(types.MergePatchType).Resource("nodes").Name(n.name).
		VersionedParams(&metav1.PatchOptions{FieldManager: n.opts.Writer}, scheme.ParameterCodec).
		Body(body).MaxRetries(0).Do(ctx).Into(node)
	return node, err
}

func (n *Node) listPods(ctx context.Context, o metav1.ListOptions) (*corev1.PodList, error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	list := &corev1.PodList{}
	err := n.pods(o).Do(ctx).Into(list)
	return list, err
}

// listSince lists the pods from the API server's cache, once that is no older than a version. A server whose cache is not,
// and does not become so in time, is asked for the newest.
func (n *Node) listSince(ctx context.Context, version string) (*corev1.PodList, error) {
	o := metav1.ListOptions{ResourceVersion: version}
	if version != "" {
		o.ResourceVersionMatch = metav1.ResourceVersionMatchNotOlderThan
	}
	list, err := n.listPods(ctx, o)
	if version != "" && apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge) {
		return n.listPods(ctx, metav1.ListOptions{})
	}
	return list, err
}

// newer returns the newer of two resource versions, which the API server counts up. Where one cannot be read as a number, that is
// the first.
func newer(a, b string) string {
	x, errA := strconv.ParseUint(a, 10, 64)
	y, errB := strconv.ParseUint(b, 10, 64)
	if errB == nil && (a == "" || errA == nil && y > x) {
		return b
	}
	return a
}

func (n *Node) pods(o metav1.ListOptions) *rest.Request {
	o.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", n.name).String()
	return n.rest().Get().Resource("pods").VersionedParams(&o, scheme.ParameterCodec).MaxRetries(0)
}

// end asks once for a pod's eviction, or for its deletion, which asks no budget.
func (n *Node) end(ctx context.Context, what state.TransitionKind, pod *corev1.Pod, options *metav1.DeleteOptions, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	request, body := n.rest().Delete(), runtime.Object(options)
	if what == state.PodEvicted {
		// Of a dry run the query alone binds the API server; the body is for what stands between here and there.
		request = n.rest().Post().SubResource("eviction").VersionedParams(&metav1.CreateOptions{DryRun: options.DryRun}, scheme.ParameterCodec)
		body = &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}, DeleteOptions: options}
	}
	// Only an answer that can be read counts: what stands between here and the API server may answer 200, too.
	_, err := request.Namespace(pod.Namespace).Resource("pods").Name(pod.Name).MaxRetries(0).Body(body).Do(ctx).Get()
	return err
}

// backoff yields growing pauses with jitter.
type backoff struct {
	next, longest time.Duration
}

// How the pauses grow. Most failures of an API server are short, and what it refuses for good is not worth a hurry. A refused eviction
// is repeated often enough that a disruption budget which yields costs seconds of a two-minute notice.
var (
	failures  = backoff{next: 100 * time.Millisecond, longest: 2 * time.Second}
	refusals  = backoff{next: 2 * time.Second, longest: time.Minute}
	evictions = backoff{next: 200 * time.Millisecond, longest: 3 * time.Second}
)

func (b *backoff) pause() time.Duration {
	p := b.next/2 + rand.N(b.next/2+1)
	b.next = min(b.next*2, b.longest)
	return p
}

// retry repeats do until it succeeds, fails for good, or ctx ends; then it returns do's last error of its own, which says
// more than the context's.
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
		if !Await(ctx, nil, max(b.pause(), retryAfter(err))) {
			return fmt.Errorf("%w (%w)", last, ctx.Err())
		}
	}
}

// passing tells whether a failure may pass by itself. What the API server refuses with a 4xx stays refused, but for
// authentication (a credential may be renewed), conflicts, time-outs and throttling.
func passing(err error) bool {
	switch code := answer(err).Code; code {
	case http.StatusUnauthorized, http.StatusRequestTimeout, http.StatusConflict, http.StatusTooManyRequests:
		return true
	default:
		return code < 400 || code >= 500
	}
}

// retryAfter is the pause that a throttling API server asks for, within reason: a drain that has two minutes cannot spend
// one of them waiting.
func retryAfter(err error) time.Duration {
	const longest = 5 * time.Second
	if seconds, ok := apierrors.SuggestsClientDelay(err); ok {
		return min(time.Duration(seconds)*time.Second, longest)
	}
	return 0
}

// Await waits for so long, or for news, and tells whether ctx still goes on.
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

// answer is what the API server has answered; empty if it has not. Then, what was asked for may have been done.
func answer(err error) metav1.Status {
	if status := apierrors.APIStatus(nil); errors.As(err, &status) {
		return status.Status()
	}
	return metav1.Status{}
}

// vanished tells whether the answer means that this pod is no longer on the node: 404, a conflict over the UID, the node authorizer's
// 403 for an object to which the node has no relationship (any more), or NodeRestriction's for a pod that it does not know on this node
// (plugin/pkg/admission/noderestriction/admission.go of Kubernetes).
func vanished(err error) bool {
	return apierrors.IsNotFound(err) || apierrors.IsConflict(err) ||
		apierrors.IsForbidden(err) && noRelationship.MatchString(err.Error())
}

var noRelationship = regexp.MustCompile(`no relationship found between node|can only (evict|delete) pods with spec.nodeName set to itself`)

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

// Alike tells whether two errors differ in their numbers only: ports and times change with every attempt.
func Alike(a, b string) bool {
	digits := func(r rune) rune {
		if unicode.IsDigit(r) {
			return -1
		}
		return r
	}
	return strings.Map(digits, a) == strings.Map(digits, b)
}

// plain puts an error into few words that stay the same from one attempt to the next, so that it is told once.
func plain(err error) string {
	switch s := answer(err); {
	case s.Code != 0:
		return fmt.Sprintf("%d %s: %s", s.Code, http.StatusText(int(s.Code)), s.Message)
	case errors.Is(err, context.DeadlineExceeded):
		return "no answer from the API server"
	case strings.Contains(err.Error(), "getting credentials"): // as pkg/apiserver says when an exec plugin fails
		return "the credential plugin fails"
	}
	return "the API server cannot be reached"
}
