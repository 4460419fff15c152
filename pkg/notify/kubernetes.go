package notify

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	clientrecord "k8s.io/client-go/tools/record"

	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/record"
)

// The times of the Kubernetes half.
const (
	// settling is how long nothing is written after the start: the first look at the metadata service comes first, and a
	// condition that an earlier run has left is in no hurry.
	settling = 5 * time.Second
	// requestTime is how long one request may take.
	requestTime = 5 * time.Second
	// pace is the pause between two Events, so that those of a full node reach etcd over seconds.
	pace = 50 * time.Millisecond
	// firstPause and longestPause are between attempts while the API server does not answer.
	firstPause, longestPause = time.Second, time.Minute
	// refusedFor is how long nothing more is tried after the API server has refused it (403).
	refusedFor = time.Hour
	// flushTime is how long stopping may take for what is still to be written.
	flushTime = 2 * time.Second
	// finishTime is how long the end of what is told may take while nth goes on: the drains of other nodes come first.
	finishTime = 5 * time.Minute
	// describeTime is how long an Event waits for the machine's description.
	describeTime = 3 * time.Second
)

// Identity is a client and the name of the node that it belongs to.
type Identity struct {
	Client kubernetes.Interface
	Node   string
}

// KubernetesOptions are what a Kubernetes is made of. All fields are needed but for those that say otherwise.
type KubernetesOptions struct {
	// Identity returns what to write with. Its errors are told by whoever keeps the identity.
	Identity func(context.Context) (Identity, error)
	// Entries returns the record.
	Entries func() []record.Entry
	// Rules returns the rules in effect.
	Rules func() policy.Settings
	// Condition, Lifecycle and Events switch on what is written: the condition of nth's own, those that Kubernetes knows, and
	// Events.
	Condition, Lifecycle, Events bool
	// Writer is the name by which the API server remembers who has set a lifecycle condition: that in the user agent of the
	// identity's client, before the slash. It is needed with Lifecycle.
	Writer string
	// Source is the component that Events name as their source.
	Source string
	// Describe returns annotations for Events about the Node, which tell about the machine. It may return fewer, or none,
	// if they cannot be read in time; it may be nil.
	Describe func(context.Context) map[string]string
	// Annotations are added to every Event, and go before others.
	Annotations map[string]string
	// Turn, if set, is called before each write, and returns when it may be made and what to call after it. The condition is
	// hurried, Events are not. The error is ctx's.
	Turn func(ctx context.Context, hurried bool) (end func(), err error)
	// Dropped, if set, is told how many Events are not going to be written, as too many wait or they are refused. It must not block.
	Dropped func(int)
	// Trouble is told, once for each outage, what cannot be written: of the conditions and of Events each by itself.
	Trouble func(error)
}

// Kubernetes is the listener that tells the cluster. Make one with NewKubernetes.
type Kubernetes struct {
	opts KubernetesOptions
	// wake has an element when there is something new to look at.
	wake chan struct{}

	mu    sync.Mutex // for these, which Hear uses, too
	gate  gate
	told  teller
	queue []notice
	dirty map[area]bool // of the conditions, those that may no longer be what they should be
	muted time.Time     // until when no Events are written
	last  time.Time     // when Run ends at the latest; zero until Finish

	// These belong to Run's goroutine.
	correlator *clientrecord.EventCorrelator
	sending    *correlated
	rest       time.Time // nothing is written before
	pauses     map[area]pause
	refused    map[area]time.Time // until when conditions are not written
	again      map[area]time.Time // when they have to be looked at without news; zero if they need not
	named      int64              // numbers the Events, so that no two have one name
	failing    map[area]bool      // what Trouble has been told of
}

// pause is the one before the next attempt at what could not be written. Each area has its own: an admission webhook that is down, or Events
// in an etcd of their own, let one kind of request fail and not the others.
type pause struct {
	length time.Duration
	until  time.Time
}

// area is one of the things that can be refused by themselves.
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
		opts: opts, wake: make(chan struct{}, 1), dirty: map[area]bool{conditionArea: opts.Condition, lifecycleArea: opts.Lifecycle},
		correlator: newCorrelator(), pauses: map[area]pause{}, refused: map[area]time.Time{}, again: map[area]time.Time{}, failing: map[area]bool{},
	}
}

// Hear implements agent.Listener.
func (k *Kubernetes) Hear(h record.Happening) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.gate.hear(h)
	if k.opts.Events && time.Now().After(k.muted) {
		k.enqueue(k.told.tell(h, k.opts.Rules()))
	}
	if h.Pod == "" && h.What != record.SourceLost && h.What != record.SourceBack {
		k.dirty[conditionArea], k.dirty[lifecycleArea] = k.opts.Condition, k.opts.Lifecycle
	}
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// Run writes what was heard until ctx ends, and then for a moment longer, if there is anything left to write. Run it
// once.
func (k *Kubernetes) Run(ctx context.Context) {
	k.mu.Lock()
	k.gate.hold(time.Now().Add(settling))
	k.mu.Unlock()
	for ctx.Err() == nil && !k.finished() {
		wait := k.turn(ctx)
		select {
		case <-ctx.Done():
		case <-k.wake:
		case <-time.After(wait):
		}
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTime)
	defer cancel()
	clear(k.pauses)
	for last.Err() == nil {
		do, _ := k.next(time.Now())
		if do == nil {
			return
		}
		k.try(last, do)
	}
}

// Finish says that nothing more is going to be heard: Run ends when all is written, or when that has not worked out for a
// while.
func (k *Kubernetes) Finish() {
	k.mu.Lock()
	k.gate, k.last = gate{}, time.Now().Add(finishTime)
	k.mu.Unlock()
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// finished tells whether Run is to end.
func (k *Kubernetes) finished() bool {
	k.mu.Lock()
	last := k.last
	k.mu.Unlock()
	now := time.Now()
	return !last.IsZero() && (len(k.jobs(now)) == 0 || now.After(last))
}

// idle is how long to wait when there is nothing to wait for.
const idle = time.Hour

// turn writes one thing, if it is time, and returns how long to wait until the next turn, unless something is heard
// before.
func (k *Kubernetes) turn(ctx context.Context) time.Duration {
	now := time.Now()
	if wait := k.closed(now); wait > 0 {
		return wait
	}
	if wait := k.rest.Sub(now); wait > 0 {
		return wait
	}
	do, wait := k.next(now)
	if do == nil {
		return min(wait, k.quiet(now))
	}
	if wait := k.try(ctx, do); wait > 0 {
		return 0 // Something else may be written meanwhile.
	}
	k.rest = time.Now().Add(pace)
	return pace
}

// try does a job, and returns how long it is not to be tried again as it could not be done.
func (k *Kubernetes) try(ctx context.Context, do *job) time.Duration {
	if err := k.write(ctx, do); err == nil {
		delete(k.pauses, do.area)
		return 0
	}
	length := min(max(2*k.pauses[do.area].length, firstPause), longestPause)
	k.pauses[do.area] = pause{length, time.Now().Add(length)}
	return length
}

func (k *Kubernetes) closed(now time.Time) time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.gate.closed(now)
}

// quiet is how long there will be nothing to write if nothing is heard.
func (k *Kubernetes) quiet(now time.Time) time.Duration {
	next := now.Add(idle)
	for _, a := range []area{conditionArea, lifecycleArea} {
		for _, t := range []time.Time{k.again[a], k.refused[a]} {
			if t.After(now) && t.Before(next) {
				next = t
			}
		}
	}
	return next.Sub(now)
}

// job writes one thing.
type job struct {
	area    area
	write   func(context.Context, Identity) error
	hurried bool // others act upon it
}

// next returns what is to be written next, or nil and how long there is nothing that may be tried.
func (k *Kubernetes) next(now time.Time) (*job, time.Duration) {
	wait := idle
	for _, do := range k.jobs(now) {
		left := k.pauses[do.area].until.Sub(now)
		if left <= 0 {
			return &do, 0
		}
		wait = min(wait, left)
	}
	return nil, wait
}

// jobs are what is to be written, the most urgent first.
func (k *Kubernetes) jobs(now time.Time) []job {
	k.mu.Lock()
	defer k.mu.Unlock()
	var jobs []job
	for _, a := range []area{conditionArea, lifecycleArea} {
		again := k.again[a]
		if (k.dirty[a] || !again.IsZero() && !now.Before(again)) && !now.Before(k.refused[a]) {
			jobs = append(jobs, job{a, func(ctx context.Context, id Identity) error { return k.keep(ctx, id, a) }, true})
		}
	}
	if k.sending != nil || len(k.queue) > 0 {
		jobs = append(jobs, job{eventArea, k.sendEvent, false})
	}
	return jobs
}

// keep makes conditions what they should be.
func (k *Kubernetes) keep(ctx context.Context, id Identity, a area) error {
	k.mark(a, false)
	write := k.keepCondition
	if a == lifecycleArea {
		write = k.keepLifecycle
	}
	again, err := write(ctx, id)
	v, err := k.settle(ctx, a, err)
	if v == forbidden || v == rejected {
		again = time.Now().Add(refusedFor)
		k.refused[a] = again
	}
	if err != nil {
		k.mark(a, true)
		return err
	}
	k.again[a] = again
	return nil
}

func (k *Kubernetes) mark(a area, dirty bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.dirty[a] = dirty
}

// write does a job. Its error means that the API server could not be asked, and that the job is still to be done.
func (k *Kubernetes) write(ctx context.Context, do *job) error {
	if k.opts.Turn != nil {
		end, err := k.opts.Turn(ctx, do.hurried)
		if err != nil {
			return err
		}
		defer end()
	}
	id, err := k.opts.Identity(ctx)
	if err != nil {
		return fmt.Errorf("writing to the node: %w", err)
	}
	return do.write(ctx, id)
}

// settle takes in how a request ended. It returns the error if the request should be made again later, and tells of the
// first of a row.
func (k *Kubernetes) settle(ctx context.Context, a area, err error) (verdict, error) {
	v := judge(err)
	if v == accepted {
		delete(k.failing, a)
		return v, nil
	}
	if !k.failing[a] && v != lost && ctx.Err() == nil {
		k.failing[a] = true
		k.opts.Trouble(fmt.Errorf("writing %s: %w; %s", a, err, v))
	}
	if v == unanswered {
		return v, fmt.Errorf("writing %s: %w", a, err)
	}
	return v, nil
}

// reference names the Node in an Event about it. As the kubelet does, it takes the name for the UID: that is what
// "kubectl describe node" looks for, and a node that registers again keeps its history.
func reference(node string) corev1.ObjectReference {
	return corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: node, UID: types.UID(node)}
}
