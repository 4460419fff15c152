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

	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
)

const (
	// startupDelay is how long nothing is written after the start: the first poll of the metadata service comes first, and
	// a condition that an earlier run has left can wait.
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
	// finishTimeout bounds what Run goes on writing after Finish: the drains of other nodes come first.
	finishTimeout = 5 * time.Minute
	// describeTimeout is how long an Event waits for the machine's description.
	describeTimeout = 3 * time.Second
)

// Identity is a client and the name of the node that it belongs to.
type Identity struct {
	Client kubernetes.Interface
	Node   string
}

// KubernetesOptions are what a Kubernetes is made of. All fields are needed but for those that say otherwise.
type KubernetesOptions struct {
	// Identity returns what to write with. Its errors are reported by whoever keeps the identity.
	Identity func(context.Context) (Identity, error)
	// Entries returns the record.
	Entries func() []state.Entry
	// Rules returns the rules in effect.
	Rules func() policy.Settings
	// Condition, Lifecycle and Events enable what is written: nth's own condition, Kubernetes' lifecycle conditions, and
	// Events.
	Condition, Lifecycle, Events bool
	// Heartbeat is how often the condition is written although nothing has changed, give or take a tenth. With it, the condition is
	// there also where nothing was ever announced. 0 is no heartbeat: it is then there from the first announcement on, and refreshed while
	// it is True, every five minutes.
	Heartbeat time.Duration
	// Alive reports whether the work is done at present that the heartbeat is to prove: without a yes there is none. It is needed with
	// Heartbeat, is called from Run's goroutine, and must not block.
	Alive func() bool
	// DryRun says that nothing is done to the node: the condition says so, and tells of no event.
	DryRun bool
	// Writer is the field manager by which the API server remembers who has set a condition: the product in the user agent of the
	// identity's client, before the slash. It is needed with Lifecycle and with Condition, which both spare what others have set.
	Writer string
	// Source is the component that Events name as their source.
	Source string
	// Describe returns annotations for Events about the Node, which describe the machine. It may return fewer, or none,
	// if they cannot be read in time; it may be nil.
	Describe func(context.Context) map[string]string
	// Annotations are added to every Event, and override others.
	Annotations map[string]string
	// Turn, if set, is called before each write, and returns when it may be made and what to call after it. The conditions
	// are hurried, Events are not. The error is ctx's.
	Turn func(ctx context.Context, hurried bool) (end func(), err error)
	// Dropped, if set, is called with the number of Events that are dropped, because too many wait or they are refused. It
	// must not block.
	Dropped func(int)
	// Trouble is called, once for each outage, with what cannot be written: each condition and Events separately.
	Trouble func(error)
}

// Kubernetes is the listener that writes to the cluster. Make one with NewKubernetes.
type Kubernetes struct {
	opts KubernetesOptions
	wake chan struct{}

	mu          sync.Mutex // for these, which OnTransition uses, too
	gate        gate
	builder     eventBuilder
	queue       []eventDraft
	stale       map[area]bool // the conditions that may have to be written
	eventsMuted time.Time     // no Events are written until then
	finishBy    time.Time     // when Run ends at the latest; zero until Finish
	ceded       bool          // the conditions are others' to keep

	// These belong to Run's goroutine.
	correlator   *clientrecord.EventCorrelator
	sending      *correlatedEvent
	beat         *heartbeat
	notBefore    time.Time // of the next write
	backoffs     map[area]backoff
	refusedUntil map[area]time.Time // conditions are not written before
	refreshAt    map[area]time.Time // when conditions have to be checked without news; zero if they need not
	eventNumber  int64              // makes the names of Events unique
	failing      map[area]bool      // reported to Trouble
}

// backoff delays the next attempt after a failure. Each area has its own: an admission webhook that is down, or Events
// in an etcd of their own, make one kind of request fail and not the others.
type backoff struct {
	wait.Backoff
	until time.Time
}

// area is what can fail or be refused separately.
type area string

const (
	conditionArea area = "the node's condition " + ConditionType
	lifecycleArea area = "the node's lifecycle conditions"
	eventArea     area = "Events"
	podEventArea  area = "Events about pods"
)

// NewKubernetes returns a Kubernetes that has not written anything yet.
func NewKubernetes(opts KubernetesOptions) *Kubernetes {
	return &Kubernetes{
		opts: opts, wake: make(chan struct{}, 1), stale: map[area]bool{conditionArea: opts.Condition, lifecycleArea: opts.Lifecycle},
		correlator: newCorrelator(), backoffs: map[area]backoff{}, refusedUntil: map[area]time.Time{}, refreshAt: map[area]time.Time{},
		failing: map[area]bool{}, beat: newHeartbeat(opts.Heartbeat, opts.Alive),
	}
}

// OnTransition implements agent.Listener.
func (k *Kubernetes) OnTransition(h state.Transition) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.gate.hear(h)
	if k.opts.Events && time.Now().After(k.eventsMuted) {
		k.enqueue(k.builder.build(h, k.opts.Rules()))
	}
	if h.Pod == "" && h.Kind != state.SourceLost && h.Kind != state.SourceBack {
		k.stale[conditionArea], k.stale[lifecycleArea] = k.opts.Condition, k.opts.Lifecycle
	}
	wake(k.wake)
}

// Run writes what was heard until ctx ends, and then for a moment longer, if there is anything left to write. Run it
// once.
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
	clear(k.backoffs)
	for last.Err() == nil {
		job, _ := k.next(time.Now())
		if job == nil {
			return
		}
		_ = k.try(last, job)
	}
}

// Finish says that nothing more is going to be heard: Run ends when all is written, or when that has not worked out for a
// while.
func (k *Kubernetes) Finish() {
	k.mu.Lock()
	k.gate, k.finishBy = gate{}, time.Now().Add(finishTimeout)
	k.mu.Unlock()
	wake(k.wake)
}

// Cede says that others keep the node's conditions from now on: of those, at most the request is made that is under way. What was heard is
// still written as Events.
func (k *Kubernetes) Cede() {
	k.mu.Lock()
	k.ceded = true
	k.mu.Unlock()
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// finished tells whether Run is to end.
func (k *Kubernetes) finished() bool {
	k.mu.Lock()
	finishBy := k.finishBy
	k.mu.Unlock()
	now := time.Now()
	return !finishBy.IsZero() && (len(k.jobs(now)) == 0 || now.After(finishBy))
}

// step writes one thing, if it is time, and returns how long to wait until the next step, unless something is heard
// before.
func (k *Kubernetes) step(ctx context.Context) time.Duration {
	now := time.Now()
	k.mu.Lock()
	wait := max(k.gate.closed(now), k.notBefore.Sub(now))
	k.mu.Unlock()
	if wait > 0 {
		return wait
	}
	job, wait := k.next(now)
	if job == nil {
		return min(wait, k.nextRefresh(now))
	}
	if err := k.try(ctx, job); err != nil {
		return 0 // Something else may be written meanwhile.
	}
	k.notBefore = time.Now().Add(eventInterval)
	return eventInterval
}

// try does a job, or backs off if it could not be done.
func (k *Kubernetes) try(ctx context.Context, job *writeJob) error {
	err := k.write(ctx, job)
	if err == nil {
		delete(k.backoffs, job.area)
		return nil
	}
	b, failed := k.backoffs[job.area]
	if !failed {
		b.Backoff = wait.Backoff{Duration: minBackoff, Factor: 2, Cap: maxBackoff, Steps: math.MaxInt}
	}
	b.until = time.Now().Add(b.Step())
	k.backoffs[job.area] = b
	return err
}

// nextRefresh is how long there will be nothing to write if nothing is heard.
func (k *Kubernetes) nextRefresh(now time.Time) time.Duration {
	next := now.Add(idleWait)
	for _, a := range []area{conditionArea, lifecycleArea} {
		for _, t := range []time.Time{k.refreshAt[a], k.refusedUntil[a]} {
			if t.After(now) && t.Before(next) {
				next = t
			}
		}
	}
	return next.Sub(now)
}

// writeJob writes one thing.
type writeJob struct {
	area    area
	write   func(context.Context, Identity) error
	hurried bool // others act upon it
}

// next returns what is to be written next, or nil and for how long nothing may be tried.
func (k *Kubernetes) next(now time.Time) (*writeJob, time.Duration) {
	wait := idleWait
	for _, job := range k.jobs(now) {
		left := k.backoffs[job.area].until.Sub(now)
		if left <= 0 {
			return &job, 0
		}
		wait = min(wait, left)
	}
	return nil, wait
}

// jobs returns what is to be written, the most urgent first.
func (k *Kubernetes) jobs(now time.Time) []writeJob {
	k.mu.Lock()
	defer k.mu.Unlock()
	var jobs []writeJob
	for _, a := range []area{conditionArea, lifecycleArea} {
		refresh := k.refreshAt[a]
		if !k.ceded && (k.stale[a] || !refresh.IsZero() && !now.Before(refresh)) && !now.Before(k.refusedUntil[a]) {
			jobs = append(jobs, writeJob{a, func(ctx context.Context, id Identity) error { return k.writeConditions(ctx, id, a) }, true})
		}
	}
	if k.sending != nil || len(k.queue) > 0 {
		jobs = append(jobs, writeJob{eventArea, k.sendEvent, false})
	}
	return jobs
}

// writeConditions makes the conditions of an area what they should be.
func (k *Kubernetes) writeConditions(ctx context.Context, id Identity, a area) error {
	k.setStale(a, false)
	update := k.updateCondition
	if a == lifecycleArea {
		update = k.updateLifecycle
	}
	refresh, err := update(ctx, id)
	v, err := k.handleResult(ctx, a, err)
	if v == forbidden || v == rejected {
		refresh = time.Now().Add(refusedFor)
		k.refusedUntil[a] = refresh
	}
	if err != nil {
		k.setStale(a, true)
		return err
	}
	k.refreshAt[a] = refresh
	return nil
}

func (k *Kubernetes) setStale(a area, stale bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.stale[a] = stale
}

// write does a job. An error means that the API server could not be asked, and that the job is still to be done.
func (k *Kubernetes) write(ctx context.Context, job *writeJob) error {
	if k.opts.Turn != nil {
		end, err := k.opts.Turn(ctx, job.hurried)
		if err != nil {
			return err
		}
		defer end()
	}
	id, err := k.opts.Identity(ctx)
	if err != nil {
		return fmt.Errorf("writing to the node: %w", err)
	}
	return job.write(ctx, id)
}

// handleResult reports the first failure of a row, and returns an error if the request should be repeated later.
func (k *Kubernetes) handleResult(ctx context.Context, a area, err error) (verdict, error) {
	v := classify(err)
	if v == accepted {
		delete(k.failing, a)
		return v, nil
	}
	if !k.failing[a] && v != gone && ctx.Err() == nil {
		k.failing[a] = true
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

// classify takes anything that is no answer of the API server, or says that it is busy or not well, for retryable.
func classify(err error) verdict {
	var status apierrors.APIStatus
	switch {
	case err == nil, apierrors.IsAlreadyExists(err):
		return accepted
	case !errors.As(err, &status):
		return retryable
	case apierrors.IsForbidden(err):
		return forbidden
	case apierrors.IsNotFound(err), apierrors.IsGone(err):
		return gone
	case apierrors.IsTooManyRequests(err), apierrors.IsTimeout(err), apierrors.IsUnauthorized(err), apierrors.IsConflict(err):
		return retryable
	case status.Status().Code >= 500:
		return retryable
	}
	return rejected
}

// nodeReference names the Node in an Event about it. Like the kubelet, it uses the name as the UID: that is what
// "kubectl describe node" looks for, and a node that registers again keeps its history.
func nodeReference(node string) corev1.ObjectReference {
	return corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: node, UID: types.UID(node)}
}
