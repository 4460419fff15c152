// Package fleet drains the nodes that a queue and EC2 tell of: nth-queue without its settings.
//
// One process leads (leader.go); all work belongs to the term for which it does (term.go). A message is a hint that there is something to
// look at (message.go). Each instance is reconciled (instance.go): what stands for it follows from what EC2 says now (truth.go), from its
// Node (nodes.go, notes.go) and from the hints. If something is to be done, an agent does it, as on the machine itself (drain.go,
// taints.go), when it is its turn (turns.go). Lifecycle hooks are held meanwhile, and completed once (hooks.go).
//
// A newcomer starts with Fleet.Run, Fleet.Take and term.look. Apart from the queue and the Nodes' annotations nothing is stored, so that a
// standby needs nothing to take over.
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
	"github.com/nth-project/nth/pkg/kube"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
)

// Options configure a Fleet. All fields are required unless they say otherwise.
type Options struct {
	// Client is the fleet's alone: it is changed to refuse writes while this process does not lead.
	Client kubernetes.Interface
	// Leases is a client for the Lease alone, with connections of its own, so that renewing it does not queue behind other requests.
	Leases kubernetes.Interface
	// Lease is the name of the Lease, by which one of all processes with that name leads. Identity is this process's in it: no two have the same.
	Lease, Identity string
	// Own is the pod that this process runs in, if it does.
	Own OwnPod
	// Rules are the initial rules.
	Rules
	// GroupLabel is the label of Nodes, such as that of the zone, whose value is a node's group.
	GroupLabel string
	Log        *logrus.Entry
	// DryRun writes nothing, neither to the cluster nor to Auto Scaling, and works without the Lease.
	DryRun bool
	// Cluster is this cluster's name in the tags of its instances (ec2.ClusterTag). By default it is the name that the instances of Nodes
	// are tagged with, if that is a single one.
	Cluster string
	// LeaveUnknown returns messages about instances that have no Node here and are not known to be of this cluster, so that other readers of
	// the queue get them.
	LeaveUnknown bool
	// ManagedOnly drains only nodes whose instances are managed (ec2.Instance.Managed). OwnTag says that a managed instance is always one of
	// this cluster.
	ManagedOnly, OwnTag bool
	EC2                 EC2
	// Clock, if set, tells the time by AWS's clock.
	Clock func() time.Time
	// Hooks, if set, holds and completes lifecycle actions, with CompleteLaunches also those of launches. It decides which hooks are to be
	// completed.
	Hooks            Hooks
	CompleteLaunches bool
	Taints           Taints
	// Listeners, if set, returns the listeners for the Node of that name and UID. entries returns the state of the node's events; end is called after the last
	// transition, with lost if another process may be working on the node by now and is to keep its conditions.
	Listeners func(node, uid string, entries func() []state.Entry) (listeners []agent.Listener, end func(lost bool))
}

// OwnPod is the pod that a process runs in. It is evicted last from its node.
type OwnPod struct {
	// Node is the name of the node that the pod is on; "" outside of a pod.
	Node           string
	Namespace, Pod string
}

// manager is the field manager of all writes.
const manager = drain.Queue

// requestsAtOnce is how many requests about Nodes are made at the same time, and as many urgent ones. It keeps an API server busy, but
// lets it answer each in time.
const requestsAtOnce = 50

// Fleet drains the nodes of instances that are interrupted. Its methods may be called from several goroutines.
type Fleet struct {
	opts     Options
	rules    atomic.Pointer[Rules]
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
	f.nodes = newNodes(opts.Client, opts.GroupLabel, func(n node) {
		if t := f.term.Load(); t != nil {
			t.nodeChanged(n)
		}
	})
	f.Use(opts.Rules)
	return f
}

// Run watches the Nodes and stands for election until ctx ends. While this process leads, receive is run, which passes messages to Take until
// its context ends, and returns when all of them are done or returned. When the Lease is lost, all work ends before Run stands again.
func (f *Fleet) Run(ctx context.Context, receive func(ctx context.Context)) error {
	var watching sync.WaitGroup
	defer watching.Wait()
	watched, stop := context.WithCancel(context.WithoutCancel(ctx)) // Also while the last work ends.
	defer stop()
	watching.Go(func() { f.nodes.watch(watched) })
	for !f.nodes.informer.HasSynced() {
		if !kube.Await(ctx, nil, syncInterval) {
			return nil
		}
	}
	work := func(ctx context.Context) { f.serveTerm(ctx, receive) }
	if f.opts.DryRun {
		work(ctx)
		return nil
	}
	return f.lead.campaign(ctx, work)
}

// syncInterval is how often Run looks whether the Nodes are known.
const syncInterval = 50 * time.Millisecond

// Rules are the settings that may change while a Fleet runs.
type Rules struct {
	Policy policy.Settings
	Drain  drain.Options
	Limits Limits
	// Impaired is for how long a status check must have failed before something is done.
	Impaired time.Duration
}

// Use replaces the rules for all that begins from now on; a drain that is under way keeps its rules.
func (f *Fleet) Use(rules Rules) {
	f.rules.Store(&rules)
	if t := f.term.Load(); t != nil {
		t.lookAtAll()
	}
}

func (f *Fleet) policy() policy.Settings { return f.rules.Load().Policy }

// Description is what a Node says about its machine. What it does not say is empty.
type Description struct {
	Instance, Type, Zone, Region             string
	LocalIP, LocalName, PublicIP, PublicName string
}

// Describe returns what a Node says about its machine, as the watch knows it.
func (f *Fleet) Describe(name string) Description {
	n := f.nodes.named(name)
	if n == nil {
		return Description{}
	}
	d := Description{
		Instance: instanceOf(n.Spec.ProviderID), Type: n.Labels[corev1.LabelInstanceTypeStable],
		Zone: n.Labels[corev1.LabelTopologyZone], Region: n.Labels[corev1.LabelTopologyRegion],
	}
	if d.Zone == "" && d.Instance != "" {
		d.Zone, _, _ = strings.Cut(strings.TrimPrefix(n.Spec.ProviderID, "aws:///"), "/")
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
	return d
}

// MayWrite returns an error unless this process is sure to lead.
func (f *Fleet) MayWrite() error { return f.lead.holds() }

// listeners returns who hears what happens to a Node; they hear nothing once this process does not lead.
func (f *Fleet) listeners(of node, entries func() []state.Entry) (listeners []agent.Listener, end func(lost bool)) {
	if f.opts.Listeners == nil {
		return nil, func(bool) {}
	}
	listeners, end = f.opts.Listeners(of.name, string(of.uid), entries)
	if !f.opts.DryRun {
		for i, l := range listeners {
			listeners[i] = fencedListener{l, f.lead}
		}
	}
	return listeners, end
}

// Labels gets the labels of a Node from the API server: the watch keeps few of them.
func (f *Fleet) Labels(ctx context.Context, name string) (map[string]string, error) {
	n, err := f.opts.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("asking for the labels of node %q: %w", name, err)
	}
	return n.Labels, nil
}

// Status is the status of a Fleet.
type Status struct {
	// Known is set once the Nodes are known. Nodes is how many the cluster has. Draining is how many of them are drained, Waiting how many
	// wait for their turn, and LeftAlone how many would be drained if operators had not forbidden it.
	Known                               bool
	Nodes, Draining, Waiting, LeftAlone int
	// Away is since when requests for the list of Nodes have failed; zero if the last was answered.
	Away time.Time
	// Leads is set while this process leads. Leader is the identity of the leader as it was last seen; "" if that is not known.
	Leads  bool
	Leader string
	// LeaseError is why the Lease can not be read or written, and Since since when; nil if it can.
	LeaseError error
	Since      time.Time
	// Events are those that are not done.
	Events []state.EventStatus
}

// Status returns the fleet's current status.
func (f *Fleet) Status() Status {
	now := Status{Known: f.nodes.informer.HasSynced(), Nodes: f.nodes.count(), Away: f.nodes.awaySince(), Leader: f.lead.leader()}
	now.Since, now.LeaseError = f.lead.lock.trouble()
	t := f.term.Load()
	if now.Leads = t != nil; !now.Leads {
		return now
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, in := range t.instances {
		s := in.drain
		switch {
		case s == nil, s.stage == ended:
			continue
		case s.stage == waiting:
			now.Waiting++
		case s.leftAlone():
			now.LeftAlone++
		default:
			now.Draining++
		}
		for id, ev := range s.events {
			if s.rested[id] {
				continue
			}
			entry := state.Entry{Event: ev, Phase: state.Seen, Changed: time.Now()}
			if recorded := s.record.entry(id); recorded.Event.ID != "" {
				entry = recorded
			}
			status := entry.Status(f.policy().Describe(entry))
			status.Node = s.node.name
			now.Events = append(now.Events, status)
		}
	}
	slices.SortFunc(now.Events, func(a, b state.EventStatus) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.ID, b.ID))
	})
	return now
}
