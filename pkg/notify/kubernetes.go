package notify

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"

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
	// maxEvents is how many Events wait to be written at most, which is enough for two drains of full nodes.
	maxEvents = 256
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
	// Labels enables KindLabel and MaintenanceLabel, which are kept with the condition.
	Labels bool
	// Heartbeat is how often the condition is written although nothing has changed, give or take a tenth. With it, the condition is
	// also on the Node if nothing was ever announced. With 0 there is no heartbeat: the condition is written from the first announcement
	// on, when it changes.
	Heartbeat time.Duration
	// Alive reports whether nth does its work; otherwise there is no heartbeat. It is required with Heartbeat, is called from one
	// goroutine, and must not block.
	Alive func() bool
	// Brief keeps requests few when many nodes drain at once. Kubernetes then writes no Event about an eviction or the beginning of a drain,
	// and the condition says only how the drain has ended.
	Brief bool
	// DryRun says that nothing is done to the node. The condition then says so, and names no event.
	DryRun bool
	// Source is the component that Events name as their source. A condition that is True begins with it.
	Source string
	// Turn, if set, is called before each write, from two goroutines. It blocks until the write may be made, and returns a function to call
	// after that. hurried is set for a condition. After an error, the write is tried again later.
	Turn func(ctx context.Context, hurried bool) (end func(), err error)
	// Trouble is called once for each outage, separately for the condition, the labels, and the Events of each namespace, from several goroutines.
	Trouble func(error)
}

// Kubernetes is the listener that writes to the cluster. Make one with NewKubernetes.
type Kubernetes struct {
	opts KubernetesOptions
	gate gate
	// Two queues, as one kind of request may fail and not the other: Events have admission webhooks, and perhaps an etcd, of their own.
	conditions, events *queue
	// What follows belongs to the one worker of conditions: the condition as it was written last, and when to write it again.
	written corev1.NodeCondition
	renewal time.Duration

	mu          sync.Mutex // for all that follows
	builder     builder
	look        *message        // the look at the condition that waits in its queue; nil if none does
	refresh     *time.Timer     // has the condition looked at without a transition
	ceded       bool            // Cede was called: others keep the condition
	eventNumber int64           // makes the names of Events unique
	failing     map[string]bool // what the last write of has failed, and was reported
}

// NewKubernetes returns a Kubernetes that has not written anything yet.
func NewKubernetes(opts KubernetesOptions) *Kubernetes {
	k := &Kubernetes{opts: opts, gate: gate{opens: time.Now().Add(startupDelay)}, failing: map[string]bool{}}
	k.drawRenewal()
	k.conditions = newQueue(2, 1, func(r DeliveryResult) { k.report("the node's condition "+ConditionType, r) })
	k.events = newQueue(maxEvents, 1, func(r DeliveryResult) { k.report(r.Event, r) })
	return k
}

// OnTransition implements agent.Listener: it queues Events, and has the condition looked at.
func (k *Kubernetes) OnTransition(t state.Transition) {
	if k.opts.Brief && t.Kind == state.PodEvicted {
		return // There is no Event about an eviction, and the condition does not change.
	}
	k.gate.observe(t)
	k.mu.Lock()
	n := k.builder.build(t)
	k.mu.Unlock()
	ignored := k.opts.Rules().Ignores(t.Entry) && (t.Kind == state.Announced || t.Kind == state.Changed || t.Kind == state.ClosedWith)
	redundant := k.opts.Brief && n.reason == reasonDraining // The Event of the announcement has the plan already.
	if k.opts.Events && n.reason != "" && !redundant && !ignored {
		k.events.add(k.eventMessage(n))
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
	k.events.finish()
	k.conditions.finish()
}

// Cede leaves the node's condition to others from now on, but for a request that is under way. Events are still written.
func (k *Kubernetes) Cede() {
	k.mu.Lock()
	k.ceded = true
	k.mu.Unlock()
	k.conditions.retry() // A message that waits for its next attempt is dropped now, so that Run need not wait for it.
}

// write calls do, which makes a request, once Options.Turn allows it and the identity is known. It returns what the result means for the
// message: see judge. hurried is the parameter of Turn.
func (k *Kubernetes) write(ctx context.Context, hurried bool, do func(Identity) error) error {
	if k.opts.Turn != nil {
		end, err := k.opts.Turn(ctx, hurried)
		if err != nil {
			return err
		}
		defer end()
	}
	id, err := k.opts.Identity(ctx)
	if err != nil {
		return fmt.Errorf("%w: %w", errNoIdentity, err)
	}
	return judge(do(id))
}

// errNoIdentity means that nth has no credential, or does not know its node yet. report does not report it, as pkg/identity says why.
var errNoIdentity = errors.New("there is no identity")

// judge returns what the error of a write means for the message. nil: it is delivered. errNothing: there is nothing to write. refusedError:
// it is lost. Any other error is tried again: those that are no answer of the API server, or say that it is busy or broken.
func judge(err error) error {
	var status apierrors.APIStatus
	switch {
	case err == nil, apierrors.IsAlreadyExists(err): // An earlier attempt, whose answer was lost, has created the Event.
		return nil
	case errors.Is(err, errNothing), !errors.As(err, &status): // There is nothing to write, or the API server has not answered.
		return err
	case kube.NotFound(err), apierrors.IsGone(err): // What it is about no longer exists.
		return errNothing
	case apierrors.IsTooManyRequests(err), apierrors.IsTimeout(err), apierrors.IsUnauthorized(err), apierrors.IsConflict(err),
		apierrors.IsNotFound(err), // not the API server's answer, but a proxy's
		status.Status().Code >= 500:
		return err
	}
	return refusedError{err.Error() + "; it is left out"}
}

// report takes the result of each attempt to write something, and calls Options.Trouble with the first failure of a row. A failure for lack of
// an identity is no part of a row: pkg/identity reports it.
func (k *Kubernetes) report(what string, r DeliveryResult) {
	if errors.Is(r.Err, errNoIdentity) {
		return
	}
	k.mu.Lock()
	first := r.Err != nil && !k.failing[what]
	if r.Err != nil {
		k.failing[what] = true
	} else {
		delete(k.failing, what)
	}
	k.mu.Unlock()
	switch {
	case first && r.Lost:
		k.opts.Trouble(fmt.Errorf("writing %s: %w", what, r.Err))
	case first:
		k.opts.Trouble(fmt.Errorf("writing %s: %w; trying again", what, r.Err))
	}
}
