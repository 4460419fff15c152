// Package fleet says which node, and when.
//
// It is told what a queue's messages say of instances, and finds their nodes through one watch of all Nodes. Each node
// that is interrupted gets a session: the claim on the Node, which keeps other processes from it, and an agent of its
// own, which decides and acts as it does on the machine itself. Sessions wait in a line while too many nodes are being
// drained; what leaves no time for that, such as a spot interruption, does not wait.
//
// A message is done when all that it says is done, or is none of ours. What must wait, and what failed, goes back into
// the queue with the time after which it is worth another look: the queue and the Node's annotations are all the memory
// there is, so that any process can go on where another one was killed.
package fleet

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/client-go/kubernetes"

	"github.com/nth-project/nth/pkg/agent"
	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/queue"
	"github.com/nth-project/nth/pkg/record"
)

// Message is a message that is held while its work is done. One of its methods is called, once.
type Message interface {
	// Done says that nothing is left to be done for it.
	Done()
	// Return says that it is worth another look after that time.
	Return(after time.Duration)
}

// Options are what a Fleet is made of. All are needed but for those that say otherwise.
type Options struct {
	Client kubernetes.Interface
	// Holder names this process in the claims that it makes; no other one has the same name.
	Holder string
	// Own is where this process itself runs, if that is in a pod.
	Own Own
	// Dead, if set, tells whether the holder of a claim is known not to exist any more.
	Dead   func(holder string) bool
	Policy policy.Settings
	Drain  drain.Options
	Limits Limits
	Log    *logrus.Entry
	// DryRun writes nothing: neither to the cluster nor to Auto Scaling.
	DryRun bool
	// Cluster is the name of this cluster in the tags of its instances (instances.ClusterTag). With "" it is the one by which the instances
	// of all its Nodes are tagged, if that is one.
	Cluster string
	// LeaveUnknown gives back what is of an instance that has no Node here and is not known to be this cluster's, for others to see.
	LeaveUnknown bool
	// UncordonStarted lifts a cordon of nth's when EC2 says that the instance has been started since.
	UncordonStarted bool
	// ManagedOnly drains only what Instances says is managed.
	ManagedOnly bool
	// OwnTag tells that no instance of another cluster has the tag by which Instances knows what is managed.
	OwnTag bool
	// Instances, if set, is asked about instances that are not found by their Nodes, and about reservations.
	Instances Instances
	// Schedule, if set, is asked what EC2 has scheduled, and which status checks fail. Impaired is for how long they must.
	Schedule Schedule
	Impaired time.Duration
	// Hooks, if set, is told to hold and to complete lifecycle actions; CompleteLaunches includes those of launches. Whose they are, it
	// knows itself.
	Hooks            Hooks
	CompleteLaunches bool
	Taints           Taints
	// Listeners, if set, makes those who are told what happens to a node. entries are what is known of its events; end is
	// called when nothing more is going to be told.
	Listeners func(node string, entries func() []record.Entry) (told []agent.Listener, end func())
}

// Fleet works off what it is told. Its methods may be called from several goroutines.
type Fleet struct {
	opts    Options
	rules   atomic.Pointer[Rules]
	nodes   *nodes
	roll    *roll
	kin     *kin
	claims  claims
	chance  chance
	outlook *outlook
	changed chan struct{} // has an element when the line may move
	work    sync.WaitGroup

	mu       sync.Mutex
	ctx      context.Context //nolint:containedctx // Run's: what is taken ends with it
	sessions map[string]*session
	line     line
	// spending is since when the budget counts of events for which Auto Scaling waits, by their IDs.
	spending map[string]time.Time
}

// New returns a fleet that is not looked at yet.
func New(opts Options) *Fleet {
	f := &Fleet{
		opts: opts, nodes: newNodes(opts.Client, opts.Limits.Label), outlook: newOutlook(),
		claims:  claims{client: opts.Client, holder: opts.Holder, dead: opts.Dead},
		changed: make(chan struct{}, 1), sessions: map[string]*session{}, spending: map[string]time.Time{},
	}
	f.roll, f.kin = newRoll(opts.Client, f.nodes, f.background), newKin(f.nodes, opts.Instances)
	f.Use(Rules{Policy: opts.Policy, Drain: opts.Drain, Draining: opts.Limits.Draining, Group: opts.Limits.Group, Impaired: opts.Impaired})
	return f
}

// glance is how often the line is looked at while nothing has happened here: other processes end their drains, too.
const glance = time.Second

// Run watches the Nodes until ctx ends. When they are known it calls ready, and from then on Take may be called. At the
// end it stops all drains where they are, gives back what they are for, and waits until that is done.
func (f *Fleet) Run(ctx context.Context, ready func()) {
	f.mu.Lock()
	f.ctx = ctx
	f.mu.Unlock()
	f.work.Go(func() { f.nodes.watch(ctx) })
	select {
	case <-f.nodes.known:
		ready()
		f.work.Go(func() { f.follow(ctx) })
	case <-ctx.Done():
	}
	ticks := time.NewTicker(glance)
	defer ticks.Stop()
	for ctx.Err() == nil {
		f.dispatch()
		select {
		case <-ctx.Done():
		case <-f.changed:
		case <-ticks.C:
		}
	}
	f.abandon()
	f.work.Wait()
}

// Take begins what a message asks for. receives is how often the message has been received so far. It does not block.
func (f *Fleet) Take(notices []queue.Notice, receives int, message Message) {
	f.take(notices, retryPause(receives), message)
}

func (f *Fleet) take(notices []queue.Notice, pause time.Duration, message Message) {
	w := &work{message: message, open: len(notices), pause: pause}
	for _, n := range notices {
		n.Event.Instance = n.Instance
		t := &task{notice: n, work: w}
		switch n.About {
		case queue.Interruption:
			f.interrupted(t)
		case queue.Running:
			f.started(t)
		case queue.Launch:
			f.launched(t)
		default:
			t.done()
		}
	}
}

// nudge lets the line move.
func (f *Fleet) nudge() {
	select {
	case f.changed <- struct{}{}:
	default:
	}
}

// background runs something that ends with Run, and that Run waits for.
func (f *Fleet) background(do func(ctx context.Context)) {
	f.mu.Lock()
	ctx := f.ctx
	f.mu.Unlock()
	f.work.Go(func() { do(ctx) })
}
