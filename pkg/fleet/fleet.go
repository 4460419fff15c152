// Package fleet says which node, and when.
//
// It is told what a queue's messages say of instances, and finds their nodes through one watch of all Nodes. Each node
// that is interrupted gets a session: the claim on the Node, which keeps other processes from it, and an agent of its
// own, which decides and acts as it does on the machine itself. Sessions wait in a line while too many nodes are being
// drained; what leaves no time for that, such as a spot interruption, does not wait.
//
// A claim names a process and is written once. It stands as long as the process's Lease does, so that a thousand drains are
// kept by one request every few seconds. Who cannot renew its Lease takes nothing, and gives back what it has.
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
	"github.com/nth-project/nth/pkg/record"
	"github.com/nth-project/nth/pkg/sqs"
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
	// Leases, if set, is the client for Leases. With connections of its own, the renewal of this process's Lease waits behind nothing that
	// Client is asked for.
	Leases kubernetes.Interface
	// Host is the name of the host, for people who look at the Leases; several may have the same.
	Host string
	// Own is where this process itself runs, if that is in a pod.
	Own    Own
	Policy policy.Settings
	// Drain is how nodes are drained. With its RestartWait, the workloads of pods that ask for it are restarted first.
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
	// Replace, if set, has an instance replaced whose node was drained for something that does not end it soon, if people want that.
	Replace func(ctx context.Context, instance string) error
	// DeleteNode deletes the Node of an instance that is terminated, as Instances says, once all else is done and its volumes are detached.
	DeleteNode bool
	Taints     Taints
	// Listeners, if set, makes those who are told what happens to a node. entries are what is known of its events; end is
	// called when nothing more is going to be told. lost tells that the node may be another process's since, who says how it stands.
	Listeners func(node string, entries func() []record.Entry) (told []agent.Listener, end func(lost bool))
}

// Fleet works off what it is told. Its methods may be called from several goroutines.
type Fleet struct {
	opts    Options
	rules   atomic.Pointer[Rules]
	nodes   *nodes
	roll    *roll
	kin     *kin
	leases  *leases
	claims  claims
	places  *places // of whoever sets placing
	chances chances
	restart *restarts
	outlook *outlook
	changed chan struct{} // has an element when the line may move
	work    sync.WaitGroup
	term    atomic.Pointer[term] // the latest; nil before the first

	mu sync.Mutex
	// leaseless is why there is no Lease, if one has been asked for, and leaselessSince since when.
	leaseless      error
	leaselessSince time.Time
	// placing tells that places are being taken, and placed that this process may have some.
	placing, placed bool
	sessions        map[string]*session
	line            line
	// spending is since when the budget counts of events for which Auto Scaling waits, by their IDs.
	spending map[string]time.Time
}

// New returns a fleet that is not looked at yet.
func New(opts Options) *Fleet {
	if opts.Leases == nil {
		opts.Leases = opts.Client
	}
	f := &Fleet{
		opts: opts, nodes: newNodes(opts.Client, opts.Limits.Label), outlook: newOutlook(),
		changed: make(chan struct{}, 1), sessions: map[string]*session{}, spending: map[string]time.Time{},
	}
	f.roll, f.kin = newRoll(opts.Client, f.nodes, f.background), newKin(f.nodes, opts.Instances)
	f.leases = newLeases(opts.Leases, opts.DryRun, f.nudge)
	f.claims, f.places = claims{client: opts.Client, nodes: f.nodes, leases: f.leases, gate: drain.NewGate(requestsAtOnce)}, &places{leases: f.leases}
	f.restart = &restarts{fleet: f, batches: map[string]*batch{}}
	f.Use(Rules{Policy: opts.Policy, Drain: opts.Drain, Draining: opts.Limits.Draining, Group: opts.Limits.Group, Impaired: opts.Impaired})
	return f
}

// glance is how often the line is looked at while nothing has happened here: other processes end their drains, too.
const glance = time.Second

// Run watches the Nodes until ctx ends. When they are known, and this process has its Lease, it calls ready, and from then on
// Take may be called. Whenever the Lease is lost, and at the end, it stops all drains where they are and gives back what they
// are for. It returns when that is done.
func (f *Fleet) Run(ctx context.Context, ready func()) {
	f.work.Go(func() { f.nodes.watch(ctx) })
	f.work.Go(func() { f.leases.follow(ctx) })
	select {
	case <-f.nodes.known:
		f.terms(ctx, sync.OnceFunc(ready))
	case <-ctx.Done():
	}
	f.work.Wait()
}

// Take begins what a message asks for. receives is how often the message has been received so far. It does not block.
func (f *Fleet) Take(notices []sqs.Notice, receives int, message Message) {
	f.take(notices, retryPause(receives), message)
}

func (f *Fleet) take(notices []sqs.Notice, pause time.Duration, message Message) {
	w := &work{message: message, open: len(notices), pause: pause}
	for _, n := range notices {
		n.Event.Instance = n.Instance
		t := &task{notice: n, work: w}
		switch n.About {
		case sqs.Interruption:
			f.interrupted(t)
		case sqs.Running:
			f.started(t)
		case sqs.Launch:
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

// background runs something that ends with the term, and that Run waits for.
func (f *Fleet) background(do func(ctx context.Context)) {
	ctx := f.term.Load().ctx
	f.work.Go(func() { do(ctx) })
}
