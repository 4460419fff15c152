package notify

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	clientrecord "k8s.io/client-go/tools/record"

	"github.com/nth-project/nth/pkg/kube"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
)

const (
	// startupDelay is how long nothing is written after the start: the first poll of the metadata service comes first, and
	// a condition of an earlier run can wait.
	startupDelay = 5 * time.Second
	// requestTimeout bounds one request.
	requestTimeout = 5 * time.Second
	// eventInterval is the pause between two Events, so that those of a full node reach etcd over seconds.
	eventInterval = 50 * time.Millisecond
	// minBackoff and maxBackoff are between attempts while the API server does not answer.
	minBackoff, maxBackoff = time.Second, time.Minute
	// refusedFor is how long nothing more is tried after the API server has refused it (403).
	refusedFor = time.Hour
	// flushTimeout bounds the last attempt to deliver what is left when nth stops.
	flushTimeout = 2 * time.Second
	// finishTimeout bounds how long Run goes on after Finish: the drains of other nodes come first.
	finishTimeout = 5 * time.Minute
	// describeTimeout is how long an Event waits for the machine's description.
	describeTimeout = 3 * time.Second
)

// Identity is a client and the name of the node that it belongs to.
type Identity struct {
	Client kubernetes.Interface
	Node   string
}

// KubernetesOptions are the options of a Kubernetes. All are required unless they say otherwise.
type KubernetesOptions struct {
	// Identity returns the client and the node. Its errors are not reported here.
	Identity func(context.Context) (Identity, error)
	// Entries returns the record.
	Entries func() []state.Entry
	// Rules returns the rules in effect.
	Rules func() policy.Settings
	// Condition and Events enable nth's condition, and Events.
	Condition, Events bool
	// Heartbeat is how often the condition is written although nothing has changed, give or take a tenth. With it, the condition is
	// also there if nothing was ever announced. With 0 there is no heartbeat: the condition is there from the first announcement on, and
	// refreshed every five minutes while it is True.
	Heartbeat time.Duration
	// Alive reports whether nth does its work; otherwise there is no heartbeat. It is required with Heartbeat, is called from Run's
	// goroutine, and must not block.
	Alive func() bool
	// DryRun says that nothing is done to the node: the condition says so, and no event.
	DryRun bool
	// Writer is our field manager at the API server: the product in the user agent of the identity's client, before the slash. Conditions
	// that others have set are known by theirs.
	Writer string
	// Source is the component that Events name as their source.
	Source string
	// Describe, if set, returns annotations for Events about the Node, which describe the machine: fewer, or none, if they cannot be
	// read in time.
	Describe func(context.Context) map[string]string
	// Annotations are added to every Event, and override others.
	Annotations map[string]string
	// Turn, if set, is called before each write, and returns when it may be made, with a function to call after it. Conditions
	// are hurried, Events are not. The error is ctx's.
	Turn func(ctx context.Context, hurried bool) (end func(), err error)
	// Dropped, if set, is called with the number of Events that are dropped, because too many wait or they are refused. It
	// must not block.
	Dropped func(int)
	// Trouble is called once for each outage, separately for the condition and for Events.
	Trouble func(error)
}

// Kubernetes is the listener that writes to the cluster. Make one with NewKubernetes.
type Kubernetes struct {
	opts KubernetesOptions
	wake chan struct{}

	mu          sync.Mutex // for these, which OnTransition uses, too
	gate        gate
	builder     eventBuilder
	queue       []*corev1.Event // drafts, which newEvent completes
	stale       bool            // the condition may have to be written
	eventsMuted time.Time       // no Events are written until then
	finishBy    time.Time       // when Run ends at the latest; zero until Finish
	ceded       bool            // the condition is others' to keep

	// These belong to Run's goroutine.
	correlator  *clientrecord.EventCorrelator
	sending     *clientrecord.EventCorrelateResult
	beat        *heartbeat
	notBefore   time.Time // of the next write
	areas       map[area]*areaState
	eventNumber int64 // makes the names of Events unique
}

// areaState is how requests of an area fare. Each area has its own backoff: an admission webhook that is down, or Events in
// an etcd of their own, make one kind of request fail and not the others.
type areaState struct {
	backoff wait.Backoff
	retryAt time.Time // the end of the backoff
	// refreshAt is when a condition has to be checked although no transition has come; zero for never. After a refusal it is not
	// tried before that.
	refreshAt time.Time
	refused   bool
	reported  bool // A failure was reported, and nothing has succeeded since.
}

// area is a kind of request that can fail or be refused separately.
type area string

const (
	conditionArea area = "the node's condition " + ConditionType
	eventArea     area = "Events"
	podEventArea  area = "Events about pods"
)

// NewKubernetes returns a Kubernetes that has not written anything yet.
func NewKubernetes(opts KubernetesOptions) *Kubernetes {
	return &Kubernetes{
		opts: opts, wake: make(chan struct{}, 1), stale: opts.Condition,
		correlator: newCorrelator(), beat: newHeartbeat(opts.Heartbeat),
		areas: map[area]*areaState{
			conditionArea: {backoff: newBackoff()}, eventArea: {backoff: newBackoff()}, podEventArea: {},
		},
	}
}

func newBackoff() wait.Backoff {
	return wait.Backoff{Duration: minBackoff, Factor: 2, Cap: maxBackoff, Steps: math.MaxInt}
}

// OnTransition implements agent.Listener.
func (k *Kubernetes) OnTransition(t state.Transition) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.gate.observe(t)
	if k.opts.Events && time.Now().After(k.eventsMuted) {
		k.enqueue(k.builder.build(t, k.opts.Rules()))
	}
	if t.Pod == "" && t.Kind != state.SourceLost && t.Kind != state.SourceBack {
		k.stale = k.opts.Condition
	}
	wake(k.wake)
}

// Run writes until ctx ends, and then for a moment longer, if there is anything left to write. Call it once.
func (k *Kubernetes) Run(ctx context.Context) {
	k.mu.Lock()
	k.gate.closeUntil(time.Now().Add(startupDelay))
	k.mu.Unlock()
	for ctx.Err() == nil && !k.finished() {
		wait := k.step(ctx)
		select {
		case <-ctx.Done():
		case <-k.wake:
		case <-time.After(wait):
		}
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
	defer cancel()
	for _, s := range k.areas {
		s.backoff, s.retryAt = newBackoff(), time.Time{}
	}
	for last.Err() == nil {
		a, _ := k.next(time.Now())
		if a == "" {
			return
		}
		_ = k.try(last, a)
	}
}

// Finish says that no transition follows: Run ends when all is written, or after five minutes.
func (k *Kubernetes) Finish() {
	k.mu.Lock()
	k.gate, k.finishBy = gate{}, time.Now().Add(finishTimeout)
	k.mu.Unlock()
	wake(k.wake)
}

// Cede leaves the node's condition to others from now on, but for a request that is under way. Events are still written.
func (k *Kubernetes) Cede() {
	k.mu.Lock()
	k.ceded = true
	k.mu.Unlock()
	wake(k.wake)
}

// finished reports whether Run is to end.
func (k *Kubernetes) finished() bool {
	k.mu.Lock()
	finishBy := k.finishBy
	k.mu.Unlock()
	now := time.Now()
	return !finishBy.IsZero() && (len(k.pending(now)) == 0 || now.After(finishBy))
}

// step writes one thing, if it is time, and returns how long to wait until the next step, unless it is woken before.
func (k *Kubernetes) step(ctx context.Context) time.Duration {
	now := time.Now()
	k.mu.Lock()
	wait := max(k.gate.closed(now), k.notBefore.Sub(now))
	k.mu.Unlock()
	if wait > 0 {
		return wait
	}
	a, wait := k.next(now)
	if a == "" {
		return wait
	}
	if err := k.try(ctx, a); err != nil {
		return 0 // Something else may be written meanwhile.
	}
	k.notBefore = time.Now().Add(eventInterval)
	return eventInterval
}

// next returns the area that is to be written next; empty, and for how long, if there is none.
func (k *Kubernetes) next(now time.Time) (a area, wait time.Duration) {
	wait = idleWait
	for _, s := range k.areas {
		if left := s.refreshAt.Sub(now); left > 0 {
			wait = min(wait, left)
		}
	}
	for _, a := range k.pending(now) {
		left := k.areas[a].retryAt.Sub(now)
		if left <= 0 {
			return a, 0
		}
		wait = min(wait, left)
	}
	return "", wait
}

// pending returns the areas in which there is something to write, the most urgent first.
func (k *Kubernetes) pending(now time.Time) []area {
	k.mu.Lock()
	defer k.mu.Unlock()
	var areas []area
	s := k.areas[conditionArea]
	due := !s.refreshAt.IsZero() && !now.Before(s.refreshAt)
	if !k.ceded && (due || k.stale && !s.refused) {
		areas = append(areas, conditionArea)
	}
	if k.sending != nil || len(k.queue) > 0 {
		areas = append(areas, eventArea)
	}
	return areas
}

// try writes one thing of an area, or backs off if that has failed.
func (k *Kubernetes) try(ctx context.Context, a area) error {
	s, err := k.areas[a], k.write(ctx, a)
	if err == nil {
		s.backoff, s.retryAt = newBackoff(), time.Time{}
		return nil
	}
	s.retryAt = time.Now().Add(s.backoff.Step())
	return err
}

// write writes one thing of an area. An error means that the API server could not be asked, and that it is still to be
// written.
func (k *Kubernetes) write(ctx context.Context, a area) error {
	if k.opts.Turn != nil {
		end, err := k.opts.Turn(ctx, a != eventArea) // Others act upon conditions.
		if err != nil {
			return err
		}
		defer end()
	}
	id, err := k.opts.Identity(ctx)
	if err != nil {
		return fmt.Errorf("writing to the node: %w", err)
	}
	if a == eventArea {
		return k.sendEvent(ctx, id)
	}
	return k.writeCondition(ctx, id)
}

// writeCondition brings the node's condition up to date.
func (k *Kubernetes) writeCondition(ctx context.Context, id Identity) error {
	k.setStale(false)
	refresh, err := k.updateCondition(ctx, id)
	v, err := k.handleResult(ctx, conditionArea, err)
	if err != nil {
		k.setStale(true)
		return err
	}
	s := k.areas[conditionArea]
	if s.refreshAt, s.refused = refresh, v == forbidden || v == rejected; s.refused {
		s.refreshAt = time.Now().Add(refusedFor)
	}
	return nil
}

func (k *Kubernetes) setStale(stale bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.stale = stale
}

// handleResult reports the first failure of a row, and returns an error if the request should be repeated later.
func (k *Kubernetes) handleResult(ctx context.Context, a area, err error) (verdict, error) {
	v, s := classify(err), k.areas[a]
	if v == accepted {
		s.reported = false
		return v, nil
	}
	if !s.reported && v != gone && ctx.Err() == nil {
		s.reported = true
		k.opts.Trouble(fmt.Errorf("writing %s: %w; %s", a, err, v))
	}
	if v == retryable {
		return v, fmt.Errorf("writing %s: %w", a, err)
	}
	return v, nil
}

// verdict is what an answer of the API server means for a request.
type verdict string

const (
	accepted  verdict = "it was accepted"
	retryable verdict = "trying again"
	forbidden verdict = "it is not tried again for an hour"
	rejected  verdict = "it is left out"
	// gone: what the request is about no longer exists.
	gone verdict = "it is of no use"
)

// classify returns the verdict on an error. What is not an answer of the API server, or says that it is busy or broken, is retryable.
func classify(err error) verdict {
	var status apierrors.APIStatus
	switch {
	case err == nil, apierrors.IsAlreadyExists(err):
		return accepted
	case !errors.As(err, &status):
		return retryable
	case apierrors.IsForbidden(err):
		return forbidden
	case kube.NotFound(err), apierrors.IsGone(err):
		return gone
	case apierrors.IsTooManyRequests(err), apierrors.IsTimeout(err), apierrors.IsUnauthorized(err), apierrors.IsConflict(err),
		apierrors.IsNotFound(err): // not the API server's word, but a proxy's
		return retryable
	case status.Status().Code >= 500:
		return retryable
	}
	return rejected
}

// nodeReference refers to the Node in an Event about it. Like the kubelet, it uses the name as the UID: "kubectl describe node"
// looks for that, and a node that registers again keeps its history.
func nodeReference(node string) corev1.ObjectReference {
	return corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: node, UID: types.UID(node)}
}
