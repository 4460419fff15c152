// Package fleet drains the nodes of interrupted EC2 instances: nth-queue without its settings. It learns of interruptions from an SQS
// queue and from EC2.
//
// A newcomer starts with Fleet.Run, Fleet.Take and term.look. The package uses these terms:
//   - A term is one time for which this process leads (term.go, leader.go). All work belongs to a term and ends with it.
//   - A hint is what one message says of one instance (message.go). A hint is settled when its message may be deleted, or goes back to
//     the queue.
//   - A look brings the work for one instance up to date (instance.go). A hint is accepted when a look finds that its event concerns a Node.
//   - An event stands while it is not over: an accepted hint, EC2's list (truth.go) or the record of the Node (record.go) has it.
//   - A session is the drain of one Node (drain.go, taints.go), by an agent as on the machine itself. Sessions take turns (turns.go), and
//     lifecycle hooks are held meanwhile (hooks.go).
//   - Maintenance is finished when EC2 is asked to carry it out early (finish.go). The mark on the Node says that EC2 was asked.
//   - An event rests when the agent has nothing to do for it, unless something new is announced.
//   - A claim is the cordon's annotation on a Node: who cordoned the node, and for which events. Its own cordons are those of the same Lease.
//   - A Node is silent if it does not name its instance in spec.providerID (nodes.go).
//
// Variables named inst are an instance, and on is the Node that the instance has. Only the queue and the claims and marks on the Nodes store
// anything, so a standby can take over at any time.
package fleet

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/nth-project/nth/pkg/agent"
	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/kube"
	"github.com/nth-project/nth/pkg/loop"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
)

// Options configure a Fleet. All fields are required unless they say otherwise.
type Options struct {
	// Client must not be shared: New changes the client so that it refuses writes while this process does not lead.
	Client kubernetes.Interface
	// Leases is a client for the Lease alone. It has connections of its own, so that a renewal does not queue behind other requests.
	Leases kubernetes.Interface
	// Lease is the name of the Lease: of all processes that use this name, one leads. It is also the writer of its cordons, and the field
	// manager of its writes, so that the leaders of two queues leave each other's cordons alone. Identity names this process in the Lease, and is
	// unique.
	Lease, Identity string
	// Own is the pod that this process runs in; its zero value if the process runs outside of a pod.
	Own OwnPod
	Rules
	// GroupLabel is a label of Nodes, such as that of the zone. Its value is the node's group, see Limits.
	GroupLabel string
	Log        *logrus.Entry
	// DryRun writes nothing, neither to the cluster nor to Auto Scaling, and works without the Lease.
	DryRun bool
	// Cluster is this cluster's name in the tags of its instances (ec2.ClusterTag). If it is empty, the tags do not show to which cluster an
	// instance belongs.
	Cluster string
	// ManagedOnly drains only nodes whose instances are managed (ec2.Instance.Managed).
	ManagedOnly bool
	EC2         EC2
	// Clock, if set, returns the time by AWS's clock.
	Clock func() time.Time
	// Hooks, if set, holds and completes lifecycle actions, and decides which ones nth-queue answers. CompleteLaunches says that actions of
	// launches are completed, too.
	Hooks            Hooks
	CompleteLaunches bool
	Taints           Taints
	// Listeners, if set, returns the listeners for the Node of that name and UID. entries returns the current entries of the node's events.
	Listeners func(node, uid string, entries func() []state.Entry) []agent.Listener
}

// OwnPod is the pod that a process runs in. It is evicted last from its node.
type OwnPod struct {
	// Node is the name of the node that the pod is on; "" outside of a pod.
	Node           string
	Namespace, Pod string
}

// requestsAtOnce is how many requests about Nodes are made at the same time, and how many urgent ones in addition. So many keep an API server
// busy, and it still answers each in time.
const requestsAtOnce = 50

// Fleet drains the nodes of instances that are interrupted. Its methods may be called from several goroutines.
type Fleet struct {
	opts     Options
	nodes    *nodes
	lead     *leadership
	requests *kube.Gate
	term     atomic.Pointer[term] // nil while this process does not lead
}

// New returns a Fleet that is not running yet.
func New(opts Options) *Fleet {
	if opts.Clock == nil {
		opts.Clock = time.Now
	}
	f := &Fleet{opts: opts, lead: newLeadership(opts.Leases, opts.Lease, opts.Identity), requests: kube.NewGate(requestsAtOnce)}
	if !opts.DryRun {
		f.lead.fenceWrites(opts.Client)
	}
	f.nodes = newNodes(opts.Client, opts.GroupLabel, opts.Lease, func(n node) {
		if t := f.term.Load(); t != nil {
			t.nodeChanged(n)
		}
	})
	return f
}

// Run watches the Nodes and stands for election until ctx ends. While this process leads, Run calls receive, which passes messages to Take.
// receive receives until its context ends, and returns when every message was deleted or went back to the queue. When the Lease is
// lost, all work ends before Run stands for election again. An error means that the election cannot begin.
func (f *Fleet) Run(ctx context.Context, receive func(ctx context.Context)) error {
	var watching sync.WaitGroup
	defer watching.Wait()
	watched, stop := context.WithCancel(context.WithoutCancel(ctx)) // The last work still needs the Nodes after ctx has ended.
	defer stop()
	watching.Go(func() { f.nodes.informer.RunWithContext(klog.NewContext(watched, logr.Discard())) }) // without client-go's log
	for !f.nodes.informer.HasSynced() {
		if !loop.Await(ctx, nil, syncInterval) {
			return nil // ctx has ended before the Nodes were known.
		}
	}
	work := func(ctx context.Context) { f.serveTerm(ctx, receive) }
	if f.opts.DryRun { // A dry run writes nothing, so it needs no Lease and may run at the same time as a leader.
		work(ctx)
		return nil
	}
	return f.lead.campaign(ctx, func(leading context.Context) {
		work(leading)
		if ctx.Err() == nil { // Otherwise the process is stopping, which the caller logs.
			f.opts.Log.Warn("lost the leader-election Lease and stopped all drains; SQS delivers the unfinished messages to the next leader")
		}
	})
}

// syncInterval is how often Run looks whether the first list of Nodes has come.
const syncInterval = 50 * time.Millisecond

// Rules say when and how nodes are drained.
type Rules struct {
	Policy policy.Settings
	Drain  drain.Options
	Limits Limits
	// Impaired is for how long a status check of EC2 must have failed before its instance's node is drained.
	Impaired time.Duration
	// Finish says what follows a drain for maintenance. Policy's Reboot is not used.
	Finish Finish
}

// Watched returns a Node as the watch shows it now, with only the fields that are read; nil if no Node has that name.
func (f *Fleet) Watched(name string) *corev1.Node { return f.nodes.byName(name) }

// MayWrite returns nil while this process is sure to lead, and otherwise an error that says it does not lead.
func (f *Fleet) MayWrite() error { return f.lead.holds() }

// Status is the status of a Fleet.
type Status struct {
	// Known is set once the first list of Nodes has come, and Nodes is how many the cluster has. Draining is how many nodes are being
	// drained, and Waiting how many wait for their turn. LeftAlone is how many would be drained if operators had not opted them out.
	Known                               bool
	Nodes, Draining, Waiting, LeftAlone int
	// Leads is set while this process leads. Leader is the identity of the leader as it was last seen; "" if that is not known.
	Leads  bool
	Leader string
	// LeaseError is why the Lease cannot be read or written; nil if it can. Since is when that began.
	LeaseError error
	Since      time.Time
	// Events are those for which something is being done, sorted by node and ID.
	Events []state.EventStatus
}

// Status returns the fleet's current status. A process that does not lead has no drains and no events.
func (f *Fleet) Status() Status {
	now := Status{Known: f.nodes.informer.HasSynced(), Nodes: len(f.nodes.informer.GetStore().ListKeys()), Leader: f.lead.leader()}
	now.Since, now.LeaseError = f.lead.lock.trouble()
	t := f.term.Load()
	if now.Leads = t != nil; !now.Leads {
		return now
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, inst := range t.instances {
		s := inst.drain
		switch {
		case s == nil, s.stage == ended: // Nothing is being done for this instance, so it has no events to show.
			continue
		case s.stage == waiting:
			now.Waiting++
		case s.leftAlone():
			now.LeftAlone++
		default:
			now.Draining++
		}
		for _, ev := range s.open() {
			entry := state.Entry{Event: ev.Event, Phase: state.Seen, FirstSeen: s.since, Changed: time.Now()} // until the agent has recorded the event
			if recorded := s.record.entry(ev.ID); recorded.Event.ID != "" {
				entry = recorded
			}
			status := entry.Status(s.rules.Describe(entry))
			status.Node = s.node.name
			now.Events = append(now.Events, status)
		}
	}
	slices.SortFunc(now.Events, func(a, b state.EventStatus) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.ID, b.ID))
	})
	return now
}
