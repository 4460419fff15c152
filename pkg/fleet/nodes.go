package fleet

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/kube"
)

// node is what is kept of a Node. Its identity is its UID: its name passes to another machine.
type node struct {
	name string
	uid  types.UID
	// instance is the one in spec.providerID; "" if that names none. silent is set if it may be of any EC2 instance all the same.
	instance string
	silent   bool
	// address is its first InternalIP of IPv4, as EC2 names instances by it, group the value of Options.GroupLabel.
	address, group, bootID string
	// machine is the system's UUID: a Node of K3s or kubeadm may outlive its machine, and be another's with the same UID.
	machine              string
	created              time.Time
	ready, unschedulable bool
	// cordon is drain.CordonAnnotation. hasOwnCordon is set if a leader of this Lease has written it.
	cordon       drain.Claim
	hasOwnCordon bool
	// labeled is set if drain.ExcludeLabel is on it for this Lease.
	labeled bool
}

// marked reports whether the Node has anything of this Lease: it is to be looked at then, although nothing is announced.
func (n node) marked() bool { return n.hasOwnCordon || n.labeled }

const (
	byInstance, byAddress = "instance", "address"
	anySilent             = "" // the key in byAddress of all Nodes that do not name their instance
)

// nodes are all Nodes of the cluster, kept up to date by one informer. It lives as long as the process, so that a standby knows them.
type nodes struct {
	informer cache.SharedIndexInformer
	label    string // Options.GroupLabel
	lease    string // Options.Lease
}

// newNodes returns nodes that are not watched yet. changed is called with each Node that was added, changed or deleted.
func newNodes(client kubernetes.Interface, label, lease string, changed func(node)) *nodes {
	n := &nodes{label: label, lease: lease}
	source := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return client.CoreV1().Nodes().List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return client.CoreV1().Nodes().Watch(ctx, o)
		},
	}
	n.informer = cache.NewSharedIndexInformer(source, &corev1.Node{}, 0, cache.Indexers{
		byInstance: func(o any) ([]string, error) {
			if id := n.parse(o).instance; id != "" {
				return []string{id}, nil
			}
			return nil, nil
		},
		byAddress: func(o any) ([]string, error) {
			if one := n.parse(o); one.silent {
				return []string{anySilent, one.address}, nil
			}
			return nil, nil
		},
	})
	_ = n.informer.SetTransform(n.strip) // It fails once the informer runs.
	handle := func(o any) {
		if one := n.parse(o); one.uid != "" {
			changed(one)
		}
	}
	_, _ = n.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{ // It fails once the informer has stopped.
		AddFunc: handle, UpdateFunc: func(_, now any) { handle(now) }, DeleteFunc: handle,
	})
	return n
}

// watch keeps the nodes up to date until ctx ends.
func (n *nodes) watch(ctx context.Context) {
	n.informer.RunWithContext(klog.NewContext(ctx, logr.Discard()))
}

// of returns the Nodes that name an instance, the one to be drained first: Ready before others, and then the newest.
func (n *nodes) of(instance string) []node { return n.indexed(byInstance, instance) }

// at returns the Nodes with an InternalIP among those that do not name their instance.
func (n *nodes) at(address string) []node {
	if address == anySilent {
		return nil
	}
	return n.indexed(byAddress, address)
}

func (n *nodes) indexed(index, key string) []node {
	found, _ := n.informer.GetIndexer().ByIndex(index, key) // It fails without that index.
	all := make([]node, 0, len(found))
	for _, o := range found {
		all = append(all, n.parse(o))
	}
	slices.SortFunc(all, func(a, b node) int {
		return cmp.Or(trueFirst(a.ready, b.ready), b.created.Compare(a.created))
	})
	return all
}

// hasSilent reports whether there are Nodes that do not name their instance.
func (n *nodes) hasSilent() bool {
	keys, _ := n.informer.GetIndexer().IndexKeys(byAddress, anySilent) // It fails without that index.
	return len(keys) > 0
}

// watched returns a Node as the watch knows it, without what strip drops; nil if that knows none of its UID.
func (n *nodes) watched(of node) *corev1.Node {
	if now := n.named(of.name); now != nil && now.UID == of.uid {
		return now
	}
	return nil
}

// named returns the Node of a name as the watch knows it; nil if it knows none.
func (n *nodes) named(name string) *corev1.Node {
	o, _, _ := n.informer.GetStore().GetByKey(name) // It never fails.
	now, _ := o.(*corev1.Node)
	return now
}

// now returns the Node of the same UID as it is now; false if it is gone.
func (n *nodes) now(of node) (node, bool) {
	found := n.watched(of)
	return n.parse(found), found != nil
}

// all returns every Node.
func (n *nodes) all() []node {
	objects := n.informer.GetStore().List()
	all := make([]node, len(objects))
	for i, o := range objects {
		all[i] = n.parse(o)
	}
	return all
}

func (n *nodes) count() int { return len(n.informer.GetStore().ListKeys()) }

// strip drops what is not needed as soon as a Node is received.
func (n *nodes) strip(object any) (any, error) {
	full, ok := object.(*corev1.Node)
	if !ok {
		return object, nil
	}
	lean := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: full.Name, UID: full.UID, ResourceVersion: full.ResourceVersion, CreationTimestamp: full.CreationTimestamp,
			ManagedFields: drain.ClosedBy(full),
		},
		Spec: corev1.NodeSpec{ProviderID: full.Spec.ProviderID, Unschedulable: full.Spec.Unschedulable, Taints: full.Spec.Taints},
	}
	for _, key := range []string{n.label, drain.ExcludeLabel, corev1.LabelInstanceTypeStable, corev1.LabelTopologyZone, corev1.LabelTopologyRegion} {
		if value, ok := full.Labels[key]; ok {
			metav1.SetMetaDataLabel(&lean.ObjectMeta, key, value)
		}
	}
	for _, key := range []string{drain.CordonAnnotation, drain.ActionAnnotation} {
		if value, ok := full.Annotations[key]; ok {
			metav1.SetMetaDataAnnotation(&lean.ObjectMeta, key, value)
		}
	}
	lean.Status.NodeInfo.BootID, lean.Status.NodeInfo.SystemUUID = full.Status.NodeInfo.BootID, full.Status.NodeInfo.SystemUUID
	for _, c := range full.Status.Conditions {
		if c.Type == corev1.NodeReady {
			lean.Status.Conditions = []corev1.NodeCondition{{Type: c.Type, Status: c.Status}}
		}
	}
	lean.Status.Addresses = full.Status.Addresses
	return lean, nil
}

// parse reads a Node, or the last that is known of one that was deleted.
func (n *nodes) parse(object any) node {
	if gone, is := object.(cache.DeletedFinalStateUnknown); is {
		object = gone.Obj
	}
	full, _ := object.(*corev1.Node)
	if full == nil {
		return node{}
	}
	kept := node{
		name: full.Name, uid: full.UID, instance: instanceOf(full.Spec.ProviderID), silent: isSilent(full.Spec.ProviderID),
		group: full.Labels[n.label], bootID: full.Status.NodeInfo.BootID, machine: full.Status.NodeInfo.SystemUUID, unschedulable: full.Spec.Unschedulable,
		created: full.CreationTimestamp.Time, labeled: full.Labels[drain.ExcludeLabel] == n.lease,
	}
	kept.cordon, kept.hasOwnCordon = n.cordonOf(full.Annotations[drain.CordonAnnotation])
	for _, c := range full.Status.Conditions {
		if c.Type == corev1.NodeReady {
			kept.ready = c.Status == corev1.ConditionTrue
		}
	}
	for _, a := range full.Status.Addresses {
		if ip, err := netip.ParseAddr(a.Address); a.Type == corev1.NodeInternalIP && kept.address == "" && err == nil && ip.Is4() {
			kept.address = a.Address
		}
	}
	return kept
}

// cordonOf decodes a cordon annotation, and reports whether a leader of this Lease has written it.
func (n *nodes) cordonOf(text string) (claim drain.Claim, own bool) {
	own = text != "" && json.Unmarshal([]byte(text), &claim) == nil && claim.OfWriter(n.lease)
	return claim, own
}

// instanceOf returns the instance in a provider ID such as aws:///eu-central-1a/i-0123456789abcdef0; "" if it has none.
func instanceOf(providerID string) string {
	rest, isAWS := strings.CutPrefix(providerID, "aws://")
	if !isAWS {
		return ""
	}
	id := rest[strings.LastIndexByte(rest, '/')+1:]
	if !strings.HasPrefix(id, "i-") {
		return ""
	}
	return id
}

// isSilent reports whether a Node with that provider ID may be of any EC2 instance. An unknown form says little, because distributions
// such as K3s and RKE2 use one of their own on any machine. An ID of another cloud, or one of AWS that is not an instance, such as
// Fargate's, excludes it.
func isSilent(providerID string) bool {
	provider, _, _ := strings.Cut(providerID, "://")
	switch provider {
	case "aws", "eks-hybrid", "gce", "azure":
		return false
	}
	return true
}

// change writes the patch to a Node that patchFor returns for it; nothing if that returns nil for the Node as the watch knows it. If that is
// out of date, the Node is read. urgent, if not nil, reports whether the request is urgent. A Node that is gone is no error.
func (f *Fleet) change(ctx context.Context, of node, urgent func() bool, patchFor func(*corev1.Node) map[string]any) (err error) {
	now := f.nodes.watched(of)
	if f.opts.DryRun || now == nil {
		return nil
	}
	patch := patchFor(now)
	if patch == nil {
		return nil
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("writing to node %q: %w", of.name, err)
		}
	}()
	precedence := kube.InTurn
	if urgent != nil && urgent() {
		precedence = kube.Urgent
	}
	leave, err := f.requests.Enter(ctx, precedence)
	if err != nil {
		return err
	}
	defer leave()
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	err = f.patch(ctx, now, patch)
	if outdated := apierrors.IsConflict(err) || apierrors.IsInvalid(err) || kube.NotFound(err); !outdated {
		return err
	}
	now, err = f.opts.Client.CoreV1().Nodes().Get(ctx, of.name, metav1.GetOptions{})
	if kube.NotFound(err) || err == nil && now.UID != of.uid {
		return nil
	}
	if err != nil {
		return err
	}
	if patch := patchFor(now); patch != nil {
		return f.patch(ctx, now, patch)
	}
	return nil
}

// patch changes a Node, unless it has changed since it was read.
func (f *Fleet) patch(ctx context.Context, seen *corev1.Node, patch map[string]any) error {
	metadata, _ := patch["metadata"].(map[string]any)
	if metadata == nil {
		metadata = map[string]any{}
		patch["metadata"] = metadata
	}
	metadata["uid"], metadata["resourceVersion"] = seen.UID, seen.ResourceVersion
	body, err := json.Marshal(patch)
	if err != nil {
		return err
	}
	_, err = f.opts.Client.CoreV1().Nodes().Patch(ctx, seen.Name, types.MergePatchType, body, metav1.PatchOptions{FieldManager: f.opts.Lease})
	return err
}
