package notify

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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
	// maxPause is the longest pause between attempts while the API server does not answer.
	maxPause = time.Minute
	// refusedFor is how long nothing more is tried after the API server has refused it (403).
	refusedFor = time.Hour
	// finishTimeout bounds how long Run continues after Finish: the drains of other nodes come first.
	finishTimeout = 5 * time.Minute
)

// Identity is a client, and the node that is written about.
type Identity struct {
	Client kubernetes.Interface
	Node   string // the Node's name
	// UID, if set, is that of the only Node whose condition is written: the name may pass to another machine.
	UID string
}

// KubernetesOptions are the options of a Kubernetes. All are required unless they say otherwise.
type KubernetesOptions struct {
	// Identity returns the client and the node. Kubernetes retries after an error, and does not report it: the identity's own package does.
	Identity func(context.Context) (Identity, error)
	// Entries returns the record.
	Entries func() []state.Entry
	// Rules returns the rules in effect.
	Rules func() policy.Settings
	// Condition and Events enable nth's condition, and Events.
	Condition, Events bool
	// Labels enables KindLabel and MaintenanceLabel, which are kept with the condition. Without it, those that this Writer has set are taken off.
	Labels bool
	// Heartbeat is how often the condition is written although nothing has changed, give or take a tenth. With it, the condition is
	// also on the Node if nothing was ever announced. With 0 there is no heartbeat: the condition is written from the first announcement
	// on, and refreshed every five minutes while it is True.
	Heartbeat time.Duration
	// Alive reports whether nth does its work; otherwise there is no heartbeat. It is required with Heartbeat, is called from one
	// goroutine, and must not block.
	Alive func() bool
	// Brief keeps requests few when many nodes drain at once. Kubernetes then writes no Event about an eviction or the beginning of a drain,
	// and the condition says only how the drain has ended.
	Brief bool
	// DryRun says that nothing is done to the node. The condition then says so, and names no event.
	DryRun bool
	// Writer is our field manager at the API server: the product in the user agent of the identity's client, before the slash. Conditions
	// that others have set are known by theirs.
	Writer string
	// Source is the component that Events name as their source.
	Source string
	// Machine describes the machine, as far as that can be read before the context ends, for Events about the Node.
	Machine func(context.Context) Machine
	// Turn, if set, is called before each write, from two goroutines. It blocks until the write may be made, and returns a function to call
	// after that. hurried is set for a condition. After an error, the write is tried again later.
	Turn func(ctx context.Context, hurried bool) (end func(), err error)
	// Trouble is called once for each outage, separately for the condition and for Events, from two goroutines.
	Trouble func(error)
}

// Kubernetes is the listener that writes to the cluster. Make one with NewKubernetes.
type Kubernetes struct {
	opts KubernetesOptions
	gate gate
	// Two queues, as one kind of request may fail and not the other: Events have admission webhooks, and perhaps an etcd, of their own.
	conditions, events *queue
	condition          *message // the only message of the queue conditions
	// correlator and eventNumber belong to the one worker of events. eventNumber makes the names of Events unique.
	correlator  *clientrecord.EventCorrelator
	eventNumber int64
	// What follows belongs to the one worker of conditions: the condition as it was written last, and when to write it again.
	written corev1.NodeCondition
	renewal time.Duration

	mu       sync.Mutex // for all that follows
	builder  builder
	refresh  *time.Timer        // has the condition looked at without a transition
	ceded    bool               // Cede was called: others keep the condition
	muted    map[area]time.Time // until when nothing is written, because the API server has refused it
	reported map[area]bool      // a failure was reported, and nothing has succeeded since
}

// area is a kind of request that can fail or be refused without the others. Errors name it.
type area string

const (
	conditionArea area = "the node's condition " + ConditionType
	labelArea     area = "the node's labels"
	eventArea     area = "Events"
	podEventArea  area = "Events about pods" // their namespaces may have quotas
)

// NewKubernetes returns a Kubernetes that has not written anything yet.
func NewKubernetes(opts KubernetesOptions) *Kubernetes {
	k := &Kubernetes{
		opts: opts, gate: gate{opens: time.Now().Add(startupDelay)}, correlator: newCorrelator(), muted: map[area]time.Time{}, reported: map[area]bool{},
	}
	k.drawRenewal()
	k.condition = &message{deliver: k.keepCondition, gate: &k.gate}
	// The one message about the condition is composed when it is sent. Events are paced, and the oldest are lost if too many wait.
	k.conditions = newQueue(1, 1, 0, maxPause, func(r DeliveryResult) { k.report(conditionArea, r) })
	k.events = newQueue(maxEvents, 1, eventInterval, maxPause, func(r DeliveryResult) { k.report(eventArea, r) })
	return k
}

// OnTransition implements agent.Listener: it queues Events, and has the condition looked at.
func (k *Kubernetes) OnTransition(t state.Transition) {
	if k.opts.Brief && t.Kind == state.PodEvicted {
		return // There is no Event about an eviction, and the condition does not change.
	}
	if k.gate.observe(t) {
		k.conditions.wake()
		k.events.wake()
	}
	k.mu.Lock()
	notices := k.builder.build(t)
	k.mu.Unlock()
	ignored := k.opts.Rules().Ignores(t.Entry) && (t.Kind == state.Announced || t.Kind == state.Changed || t.Kind == state.ClosedWith)
	for _, n := range notices {
		redundant := k.opts.Brief && n.reason == reasonDraining // The Event of the announcement has the plan already.
		if k.opts.Events && n.reason != "" && !redundant && !ignored && !time.Now().Before(k.mutedUntil(eventArea)) {
			// Each namespace has a line: if its admission webhook hangs, Events of other namespaces and of the Node do not wait.
			namespace, _, _ := strings.Cut(n.Pod, "/")
			k.events.add(&message{deliver: (&eventMessage{kubernetes: k, notice: n}).deliver, line: namespace, gate: &k.gate})
		}
	}
	if t.Pod == "" && t.Kind != state.SourceLost && t.Kind != state.SourceBack { // Pods and sources do not change the condition.
		k.touch()
	}
}

// Run writes until ctx ends, or Finish makes it return. Then it tries what is left once more, for flushTimeout at most. Call it once.
func (k *Kubernetes) Run(ctx context.Context) {
	k.touch()
	var events sync.WaitGroup
	events.Go(func() { k.events.run(ctx) })
	k.conditions.run(ctx)
	k.touchIn(0)
	events.Wait()
}

// Finish says that no transition follows: Run returns when all is written, or soon after finishTimeout.
func (k *Kubernetes) Finish() {
	k.gate.open()
	k.events.finish(finishTimeout)
	k.conditions.finish(finishTimeout)
}

// Cede leaves the node's condition to others from now on, but for a request that is under way. Events are still written.
func (k *Kubernetes) Cede() {
	k.mu.Lock()
	k.ceded = true
	k.mu.Unlock()
	k.conditions.retry() // A message that waits for its next attempt is dropped now, so that Run need not wait for it.
}

// write calls do, which makes a request of an area, once Options.Turn allows it and the identity is known. It returns what the result means
// for the message: see judge.
func (k *Kubernetes) write(ctx context.Context, a area, do func(Identity) error) error {
	if k.opts.Turn != nil {
		end, err := k.opts.Turn(ctx, a == conditionArea) // Operators and controllers act upon conditions.
		if err != nil {
			return err
		}
		defer end()
	}
	id, err := k.opts.Identity(ctx)
	if err != nil {
		return fmt.Errorf("%w: %w", errNoIdentity, err)
	}
	return k.judge(a, do(id))
}

// errNoIdentity means that nth has no credential, or does not know its node yet. report does not report it, as pkg/identity says why.
var errNoIdentity = errors.New("there is no identity")

// judge returns what the error of a write means for the message. nil: it is delivered. errNothing: there is nothing to write. refusedError:
// it is lost. Any other error is tried again: those that are no answer of the API server, or say that it is busy or broken.
func (k *Kubernetes) judge(a area, err error) error {
	var status apierrors.APIStatus
	switch {
	case err == nil, apierrors.IsAlreadyExists(err): // An earlier attempt, whose answer was lost, has created the Event.
		return nil
	case errors.Is(err, errNothing), !errors.As(err, &status): // There is nothing to write, or the API server has not answered.
		return err
	case apierrors.IsForbidden(err) && a != podEventArea:
		k.mu.Lock()
		k.muted[a] = time.Now().Add(refusedFor)
		k.mu.Unlock()
		return refusedError{err.Error() + "; it is not tried again for an hour"}
	case kube.NotFound(err), apierrors.IsGone(err): // What it is about no longer exists.
		return errNothing
	case apierrors.IsInternalError(err) && a == podEventArea: // A namespace's admission webhook must not hold up Events about the Node.
		return refusedError{err.Error() + "; it is left out"}
	case apierrors.IsTooManyRequests(err), apierrors.IsTimeout(err), apierrors.IsUnauthorized(err), apierrors.IsConflict(err),
		apierrors.IsNotFound(err), // not the API server's answer, but a proxy's
		status.Status().Code >= 500:
		return err
	}
	return refusedError{err.Error() + "; it is left out"}
}

// mutedUntil returns until when nothing is written to an area; zero if nothing mutes it.
func (k *Kubernetes) mutedUntil(a area) time.Time {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.muted[a]
}

// report takes the result of each attempt to write to an area, and calls Options.Trouble with the first failure of a row. A failure for lack of
// an identity is no part of a row: pkg/identity reports it.
func (k *Kubernetes) report(a area, r DeliveryResult) {
	k.mu.Lock()
	first := r.Err != nil && !k.reported[a]
	if !errors.Is(r.Err, errNoIdentity) {
		k.reported[a] = r.Err != nil
	}
	k.mu.Unlock()
	switch {
	case !first || errors.Is(r.Err, errNoIdentity): // It succeeded, or was reported already.
	case r.Lost:
		k.opts.Trouble(fmt.Errorf("writing %s: %w", a, r.Err))
	default:
		k.opts.Trouble(fmt.Errorf("writing %s: %w; trying again", a, r.Err))
	}
}
