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
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/nth-project/nth/pkg/agent"
	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
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
	Own OwnPod
	// Rules are those to begin with.
	Rules
	// GroupLabel is the label of Nodes, such as that of the zone, whose value is a node's group.
	GroupLabel string
	Log        *logrus.Entry
	// DryRun writes nothing: neither to the cluster nor to Auto Scaling.
	DryRun bool
	// Cluster is the name of this cluster in the tags of its instances (ec2.ClusterTag). With "" it is the one by which the instances
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
	// Schedule, if set, is asked what EC2 has scheduled, and which status checks fail.
	Schedule Schedule
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
	Listeners func(node string, entries func() []state.Entry) (told []agent.Listener, end func(lost bool))
}

// Fleet works off what it is told. Its methods may be called from several goroutines.
type Fleet struct {
	opts        Options
	rules       atomic.Pointer[Rules]
	nodes       *nodes
	lister      *nodeLister
	clusterTags *clusterTags
	leases      *leases
	claims      claims
	slots       *slotStore // of whoever sets placing
	handovers   handovers
	restart     *restarts
	maintenance *ec2View
	changed     chan struct{} // has an element when the line may move
	work        sync.WaitGroup
	term        atomic.Pointer[leaseTerm] // the latest; nil before the first

	mu sync.Mutex
	// leaseError is why there is no Lease, if one has been asked for, and leaselessSince since when.
	leaseError      error
	leaseErrorSince time.Time
	// updatingSlots tells that places are being taken, and placed that this process may have some.
	updatingSlots, holdsSlots bool
	sessions                  map[string]*session
	// budgetStarts is since when the budget counts of events for which Auto Scaling waits, by their IDs.
	budgetStarts map[string]time.Time
}

// New returns a fleet that is not looked at yet.
func New(opts Options) *Fleet {
	if opts.Leases == nil {
		opts.Leases = opts.Client
	}
	f := &Fleet{
		opts: opts, nodes: newNodes(opts.Client, opts.GroupLabel), maintenance: newEC2View(),
		changed: make(chan struct{}, 1), sessions: map[string]*session{}, budgetStarts: map[string]time.Time{}, handovers: handovers{of: map[string]handoverTry{}},
	}
	f.lister, f.clusterTags = newNodeLister(opts.Client, f.nodes, f.background), newClusterTags(f.nodes, opts.Instances)
	f.leases = newLeases(opts.Leases, opts.DryRun, f.wake)
	f.claims, f.slots = claims{client: opts.Client, nodes: f.nodes, leases: f.leases, gate: drain.NewGate(requestsAtOnce)}, &slotStore{leases: f.leases}
	f.restart = &restarts{fleet: f, batches: map[string]*batch{}}
	f.Use(opts.Rules)
	return f
}

// dispatchInterval is how often the line is looked at while nothing has happened here: other processes end their drains, too.
const dispatchInterval = time.Second

// Run watches the Nodes until ctx ends. When they are known, and this process has its Lease, it calls ready, and from then on
// Take may be called. Whenever the Lease is lost, and at the end, it stops all drains where they are and gives back what they
// are for. It returns when that is done.
func (f *Fleet) Run(ctx context.Context, ready func()) {
	f.work.Go(func() { f.nodes.watch(ctx) })
	f.work.Go(func() { f.leases.run(ctx) })
	select {
	case <-f.nodes.known:
		f.terms(ctx, sync.OnceFunc(ready))
	case <-ctx.Done():
	}
	f.work.Wait()
}

// wake lets the line move.
func (f *Fleet) wake() {
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

// Rules are the settings that may change while a fleet is run.
type Rules struct {
	Policy policy.Settings
	// Drain is how nodes are drained. With its RestartWait, the workloads of pods that ask for it are restarted first.
	Drain  drain.Options
	Limits Limits
	// Impaired is for how long a status check must have failed.
	Impaired time.Duration
}

// Use replaces the rules for all that begins from now on. What is being drained goes on as it was begun. It may be called
// from any goroutine.
func (f *Fleet) Use(rules Rules) {
	f.rules.Store(&rules)
	f.wake()
}

func (f *Fleet) policy() policy.Settings { return f.rules.Load().Policy }

// Description is what a Node tells of its machine. What it does not tell is empty.
type Description struct {
	Instance, Type, Zone, Region             string
	LocalIP, LocalName, PublicIP, PublicName string
	Labels                                   map[string]string
}

// Describe asks the API server about a node.
func (f *Fleet) Describe(ctx context.Context, name string) (Description, error) {
	n, err := f.opts.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return Description{}, fmt.Errorf("describing node %q: %w", name, err)
	}
	d := Description{
		Instance: instanceOf(n.Spec.ProviderID), Type: n.Labels[corev1.LabelInstanceTypeStable],
		Zone: n.Labels[corev1.LabelTopologyZone], Region: n.Labels[corev1.LabelTopologyRegion], Labels: n.Labels,
	}
	if d.Zone == "" && d.Instance != "" {
		zone := strings.TrimPrefix(n.Spec.ProviderID, "aws:///")
		d.Zone, _, _ = strings.Cut(zone, "/")
	}
	for _, a := range n.Status.Addresses {
		switch a.Type {
		case corev1.NodeInternalIP:
			d.LocalIP = a.Address
		case corev1.NodeInternalDNS:
			d.LocalName = a.Address
		case corev1.NodeExternalIP:
			d.PublicIP = a.Address
		case corev1.NodeExternalDNS:
			d.PublicName = a.Address
		case corev1.NodeHostName:
		}
	}
	return d, nil
}

// Status is how the fleet stands.
type Status struct {
	// Nodes is how many the cluster has; Draining are being drained by this process, and Waiting wait in its line. LeftAlone are those
	// that would be drained, if people did not want them left alone.
	Nodes, Draining, Waiting, LeftAlone int
	// Away is since when the API server has not answered who watches the Nodes, or has refused to; zero if it has answered.
	Away time.Time
	// LeaseError is why this process has no Lease, so that it drains nothing, and Since since when; nil if it has one.
	LeaseError error
	Since      time.Time
	// Events are those that something is still to be done for.
	Events []state.EventStatus
}

// Status tells how the fleet stands now.
func (f *Fleet) Status() Status {
	now := Status{Away: f.nodes.awaySince()}
	f.nodes.each(func(node) { now.Nodes++ })
	f.mu.Lock()
	defer f.mu.Unlock()
	now.LeaseError, now.Since = f.leaseError, f.leaseErrorSince
	for _, s := range f.sessions {
		switch {
		case !s.begun:
			now.Waiting++
		case s.leftAlone():
			now.LeftAlone++
		default:
			now.Draining++
		}
		for _, t := range s.tasks {
			entry := s.entry(t.notice.Event)
			status := entry.Status(f.policy().Describe(entry))
			status.Node = s.node
			now.Events = append(now.Events, status)
		}
	}
	slices.SortFunc(now.Events, func(a, b state.EventStatus) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.ID, b.ID))
	})
	return now
}

// entry is how far the session has come with an event. s.fleet.mu is held.
func (s *session) entry(ev event.Event) state.Entry {
	if s.record != nil {
		if e := s.record.entry(ev.ID); e.Phase != "" {
			return e
		}
	}
	return state.Entry{Event: ev, Phase: state.Seen, Changed: time.Now()}
}
