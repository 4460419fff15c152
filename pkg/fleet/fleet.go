// Package fleet decides which nodes are drained, and when.
//
// It takes what the messages of a queue say about instances, and finds their nodes in one watch of all Nodes. Each node that is
// interrupted gets a session: a claim on the Node, which keeps other processes away from it, and an agent, which decides and acts
// as it does on the machine itself. While too many nodes are being drained, sessions wait for their turn; a spot interruption, or
// anything else that leaves no time, does not wait.
//
// A claim names its process and is written once. It is valid as long as the process holds its Lease, so that a thousand drains
// are kept alive by one request every few seconds. A process that cannot renew its Lease stops its drains and returns their messages.
//
// A message is done when everything in it is done, or concerns other clusters. A message that has to wait, or whose work failed,
// is returned to the queue with a delay. Apart from the queue and the Nodes' annotations nothing is stored, so that any process
// can continue where another one was killed.
//
// A message goes through these files: intake.go finds the Node of its instance (owner.go and lister.go decide what becomes of an
// instance without one), task.go and hooks.go are what is done for it, session.go is the work on its node, queue.go and slots.go
// decide when that begins, claim.go and lease.go by which process. maintenance.go begins the same work for what EC2 lists.
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
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
)

// Message is a message that is in flight while its work is done. Exactly one of its methods is called, once.
type Message interface {
	// Done deletes the message: nothing is left to be done for it.
	Done()
	// Return puts the message back into the queue, to be received again after that time.
	Return(after time.Duration)
}

// Options configure a Fleet. All fields are required unless they say otherwise.
type Options struct {
	Client kubernetes.Interface
	// Leases is a client for Leases alone; by default it is Client. With connections of its own, renewing the Lease of this process does not
	// queue behind other requests.
	Leases kubernetes.Interface
	// Host is the name of the host, as a label on the Lease for people to read. Several processes may have the same.
	Host string
	// Own is the pod that this process runs in, if it does.
	Own OwnPod
	// Rules are the initial rules.
	Rules
	// GroupLabel is the label of Nodes, such as that of the zone, whose value is a node's group.
	GroupLabel string
	Log        *logrus.Entry
	// DryRun writes nothing, neither to the cluster nor to Auto Scaling.
	DryRun bool
	// Cluster is this cluster's name in the tags of its instances (ec2.ClusterTag). By default it is the name that the instances of all Nodes
	// are tagged with, if that is a single one.
	Cluster string
	// LeaveUnknown returns messages about instances that have no Node here and are not known to be of this cluster, so that other readers of
	// the queue get them.
	LeaveUnknown bool
	// UncordonStarted uncordons a node that nth-queue has cordoned when EC2 says that its instance has been started since.
	UncordonStarted bool
	// ManagedOnly drains only nodes whose instances are managed (ec2.Instance.Managed).
	ManagedOnly bool
	// OwnTag says that a managed instance is always one of this cluster.
	OwnTag bool
	// Instances, if set, is asked about instances whose Nodes are not found, and about capacity reservations.
	Instances Instances
	// Schedule, if set, is asked which events EC2 has scheduled, and which status checks fail.
	Schedule Schedule
	// Hooks, if set, holds and completes lifecycle actions, with CompleteLaunches also those of launches. It decides which hooks are to be
	// completed.
	Hooks            Hooks
	CompleteLaunches bool
	// Replace, if set, asks for another instance in place of one that goes on running after its node was drained.
	Replace func(ctx context.Context, instance string) error
	// DeleteNode deletes the Node of an instance that is terminated, once its drain has ended and its volumes are detached.
	DeleteNode bool
	Taints     Taints
	// Listeners, if set, returns the listeners for a node. entries returns the state of the node's events; end is called after the last
	// transition, with lost if another process may be working on the node by now and is to keep its conditions.
	Listeners func(node string, entries func() []state.Entry) (told []agent.Listener, end func(lost bool))
}

// Fleet drains the nodes that messages are about. Its methods may be called from several goroutines.
type Fleet struct {
	opts        Options
	rules       atomic.Pointer[Rules]
	nodes       *nodes
	lister      *nodeLister
	clusterTags *clusterTags
	leases      *leases
	claims      claims
	slots       *slotStore // used only by the goroutine that has set updatingSlots
	maintenance *ec2View
	changed     chan struct{} // has an element when the waiting sessions are to be looked at
	work        sync.WaitGroup
	term        atomic.Pointer[leaseTerm] // the latest; nil before the first

	mu sync.Mutex
	// leaseError is why this process has no Lease; nil if it has one, or has not asked for one yet. leaseErrorSince is since when.
	leaseError      error
	leaseErrorSince time.Time
	// updatingSlots is set while a goroutine updates the slots, and holdsSlots if this process may have some.
	updatingSlots, holdsSlots bool
	sessions                  map[string]*session
	// handovers are of events that are left to others, by their IDs.
	handovers map[string]handover
	// budgetStarts is when an event's budget began to count, by the event's ID.
	budgetStarts map[string]time.Time
}

// New returns a Fleet that is not running yet.
func New(opts Options) *Fleet {
	if opts.Leases == nil {
		opts.Leases = opts.Client
	}
	f := &Fleet{
		opts: opts, nodes: newNodes(opts.Client, opts.GroupLabel), maintenance: newEC2View(),
		changed: make(chan struct{}, 1), sessions: map[string]*session{}, budgetStarts: map[string]time.Time{}, handovers: map[string]handover{},
	}
	f.lister, f.clusterTags = newNodeLister(opts.Client, f.nodes, f.background), newClusterTags(f.nodes, opts.Instances)
	f.leases = newLeases(opts.Leases, opts.DryRun, f.wake)
	f.claims, f.slots = claims{client: opts.Client, nodes: f.nodes, leases: f.leases, gate: drain.NewGate(requestsAtOnce)}, &slotStore{leases: f.leases}
	f.Use(opts.Rules)
	return f
}

// dispatchInterval is how often the waiting sessions are looked at without being woken: other processes end their drains, too.
const dispatchInterval = time.Second

// Run watches the Nodes until ctx ends. Once they are known and this process has its Lease, it calls ready; Take may be called from then
// on. Whenever the Lease is lost, and at the end, it stops all drains where they are and returns their messages. It returns when all its
// goroutines have ended.
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

// wake has the waiting sessions looked at.
func (f *Fleet) wake() {
	select {
	case f.changed <- struct{}{}:
	default:
	}
}

// background runs a function in a goroutine that Run waits for. Its context ends with the term.
func (f *Fleet) background(do func(ctx context.Context)) {
	ctx := f.term.Load().ctx
	f.work.Go(func() { do(ctx) })
}

// Rules are the settings that may change while a Fleet runs.
type Rules struct {
	Policy policy.Settings
	// Drain is how nodes are drained.
	Drain  drain.Options
	Limits Limits
	// Impaired is for how long a status check must have failed before something is done.
	Impaired time.Duration
}

// Use replaces the rules for all that begins from now on; a drain that is under way keeps its rules.
func (f *Fleet) Use(rules Rules) {
	f.rules.Store(&rules)
	f.wake()
}

func (f *Fleet) policy() policy.Settings { return f.rules.Load().Policy }

// Description is what a Node says about its machine. What it does not say is empty.
type Description struct {
	Instance, Type, Zone, Region             string
	LocalIP, LocalName, PublicIP, PublicName string
	Labels                                   map[string]string
}

// Describe gets a Node from the API server and returns what it says about its machine.
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

// Status is the status of a Fleet.
type Status struct {
	// Nodes is how many Nodes the cluster has. Draining is how many of them this process drains, Waiting how many wait for their turn, and
	// LeftAlone how many would be drained if people had not forbidden it.
	Nodes, Draining, Waiting, LeftAlone int
	// Away is since when requests for the list of Nodes have failed; zero if the last was answered.
	Away time.Time
	// LeaseError is why this process has no Lease, so that it drains nothing, and Since since when; nil if it has one.
	LeaseError error
	Since      time.Time
	// Events are those that are not done.
	Events []state.EventStatus
}

// Status returns the fleet's current status.
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
		for id, t := range s.tasks {
			entry := state.Entry{Event: t.notice.Event, Phase: state.Seen, Changed: time.Now()}
			if s.record != nil {
				entry = cmp.Or(s.record.entry(id), entry)
			}
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
