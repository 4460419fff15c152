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

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/kube"
)

// node is what the fleet needs of a Node. The UID identifies the Node: another machine may get a Node of the same name.
type node struct {
	name string
	uid  types.UID
	// instance is the instance ID in spec.providerID; "" if that names none. silent is set if the Node may be of any EC2 instance nevertheless.
	instance string
	silent   bool
	// address is the Node's first InternalIP of IPv4: EC2 finds an instance by that. group is the value of the label Options.GroupLabel.
	address, group, bootID string
	// machine is the system's UUID. A Node of K3s or kubeadm may outlive its machine: another machine then uses the Node with the same UID.
	machine              string
	created              time.Time
	ready, unschedulable bool
	// cordon is the claim in drain.CordonAnnotation. hasOwnCordon is set if a leader of this Lease has written the claim.
	cordon       drain.Claim
	hasOwnCordon bool
	// labeled is set if the Node has drain.ExcludeLabel of this Lease, and optedOut if operators have opted its pods out.
	labeled, optedOut bool
	mark              mark // its zero value if the Node has none
}

// marked reports whether the Node has a claim or a label of this Lease, or a mark. Such a Node is looked at even if nothing is announced.
func (on node) marked() bool { return on.hasOwnCordon || on.labeled || len(on.mark.Events) > 0 }

const (
	byInstance, byAddress = "instance", "address"
	anySilent             = "" // the key in byAddress of all Nodes that do not name their instance
)

// nodes are all Nodes of the cluster, kept up to date by one informer. The informer runs as long as the process, so a standby knows the Nodes, too.
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
	_ = n.informer.SetTransform(n.strip) // An error would mean that the informer runs already.
	handle := func(o any) {
		if one := n.parse(o); one.uid != "" {
			changed(one)
		}
	}
	_, _ = n.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{ // An error would mean that the informer has stopped.
		AddFunc: handle, UpdateFunc: func(_, now any) { handle(now) }, DeleteFunc: handle,
	})
	return n
}

// of returns the Nodes that name an instance. The first is the one to be drained: Ready before others, and then the newest.
func (n *nodes) of(instance string) []node { return n.indexed(byInstance, instance) }

// indexed returns the Nodes with a key in an index, Ready ones first, and then the newest.
func (n *nodes) indexed(index, key string) []node {
	found, _ := n.informer.GetIndexer().ByIndex(index, key) // An error would mean that no such index exists.
	all := make([]node, 0, len(found))
	for _, o := range found {
		all = append(all, n.parse(o))
	}
	slices.SortFunc(all, func(a, b node) int {
		return cmp.Or(trueFirst(a.ready, b.ready), b.created.Compare(a.created))
	})
	return all
}

// watched returns a Node as the watch shows it now, without what strip drops. It returns nil if the watch does not have a Node of this UID.
func (n *nodes) watched(of node) *corev1.Node {
	if now := n.byName(of.name); now != nil && now.UID == of.uid {
		return now
	}
	return nil
}

// byName returns the Node of a name as the watch shows it now; nil if the watch does not have one.
func (n *nodes) byName(name string) *corev1.Node {
	o, _, _ := n.informer.GetStore().GetByKey(name) // The store is in memory: no error is possible.
	now, _ := o.(*corev1.Node)
	return now
}

// now returns a Node as the watch shows it now. exists is false if the Node of this UID is gone.
func (n *nodes) now(of node) (now node, exists bool) {
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

// strip returns a Node with only the fields that the fleet needs, to save memory. The informer calls it for each Node that it receives.
func (n *nodes) strip(object any) (any, error) {
	full, ok := object.(*corev1.Node)
	if !ok { // The informer also passes its own objects about deleted Nodes.
		return object, nil
	}
	lean := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: full.Name, UID: full.UID, ResourceVersion: full.ResourceVersion, CreationTimestamp: full.CreationTimestamp,
			ManagedFields: drain.CordonedBy(full),
		},
		Spec: corev1.NodeSpec{ProviderID: full.Spec.ProviderID, Unschedulable: full.Spec.Unschedulable, Taints: full.Spec.Taints},
	}
	kept := []string{n.label, drain.ExcludeLabel, corev1.LabelInstanceTypeStable, corev1.LabelTopologyZone, corev1.LabelTopologyRegion}
	isNeeded := func(key string) bool { return strings.HasPrefix(key, kube.KeyPrefix) || slices.Contains(kept, key) }
	for key, value := range full.Labels {
		if isNeeded(key) {
			metav1.SetMetaDataLabel(&lean.ObjectMeta, key, value)
		}
	}
	for key, value := range full.Annotations {
		if isNeeded(key) {
			metav1.SetMetaDataAnnotation(&lean.ObjectMeta, key, value)
		}
	}
	lean.Status.NodeInfo.BootID, lean.Status.NodeInfo.SystemUUID = full.Status.NodeInfo.BootID, full.Status.NodeInfo.SystemUUID
	for _, c := range full.Status.Conditions {
		switch c.Type {
		case corev1.NodeReady:
			lean.Status.Conditions = append(lean.Status.Conditions, corev1.NodeCondition{Type: c.Type, Status: c.Status})
		case kube.Condition: // pkg/notify reads all of it.
			lean.Status.Conditions = append(lean.Status.Conditions, c)
		}
	}
	lean.Status.Addresses = full.Status.Addresses
	return lean, nil
}

// parse reads an object of the informer: a Node, or the last that was known of a deleted Node. It returns the zero value for nil.
func (n *nodes) parse(object any) node {
	if gone, isGone := object.(cache.DeletedFinalStateUnknown); isGone {
		object = gone.Obj
	}
	full, _ := object.(*corev1.Node)
	if full == nil {
		return node{}
	}
	kept := node{
		name: full.Name, uid: full.UID, instance: InstanceOf(full.Spec.ProviderID), silent: isSilent(full.Spec.ProviderID),
		group: full.Labels[n.label], bootID: full.Status.NodeInfo.BootID, machine: full.Status.NodeInfo.SystemUUID, unschedulable: full.Spec.Unschedulable,
		created: full.CreationTimestamp.Time, labeled: full.Labels[drain.ExcludeLabel] == n.lease, optedOut: drain.MayNotEvict(full),
	}
	kept.cordon, kept.hasOwnCordon = n.cordonOf(full.Annotations[drain.CordonAnnotation])
	if text := full.Annotations[markAnnotation]; text != "" {
		_ = json.Unmarshal([]byte(text), &kept.mark) // A mark that somebody has broken counts as none.
	}
	for _, c := range full.Status.Conditions {
		if c.Type == corev1.NodeReady {
			kept.ready = c.Status == corev1.ConditionTrue
		}
	}
	for _, a := range full.Status.Addresses {
		ip, err := netip.ParseAddr(a.Address)
		isIPv4 := err == nil && ip.Is4()
		if isIPv4 && a.Type == corev1.NodeInternalIP && kept.address == "" {
			kept.address = a.Address
		}
	}
	return kept
}

// cordonOf decodes the claim in a cordon annotation. own reports whether a leader of this Lease may have written the claim. A claim that somebody has
// broken names no writer, so it counts as own, as for pkg/drain.
func (n *nodes) cordonOf(text string) (claim drain.Claim, own bool) {
	if json.Unmarshal([]byte(text), &claim) != nil {
		claim = drain.Claim{}
	}
	return claim, text != "" && claim.OfWriter(n.lease)
}

// InstanceOf returns the instance in a provider ID such as aws:///eu-central-1a/i-0123456789abcdef0; "" if it has none.
func InstanceOf(providerID string) string {
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

// isSilent reports whether a Node with that provider ID may be of any EC2 instance. Distributions such as K3s and RKE2 set IDs of their own on any
// machine, so an unknown form says nothing. A Node with an ID of another cloud is not silent. Nor is one with an ID of AWS: that names an
// instance, or something else such as Fargate.
func isSilent(providerID string) bool {
	provider, _, _ := strings.Cut(providerID, "://")
	return !slices.Contains([]string{"aws", "eks-hybrid", "gce", "azure"}, provider)
}

// change patches a Node. patchFor returns the patch for the Node as the watch shows it; nil if nothing is to be written. If the watch is out of date,
// change reads the Node, and asks patchFor once more. written reports whether the Node has a patch now. A Node that is gone is no error.
func (f *Fleet) change(ctx context.Context, of node, precedence kube.Precedence, patchFor func(*corev1.Node) map[string]any) (written bool, err error) {
	now := f.nodes.watched(of)
	if f.opts.DryRun || now == nil {
		return false, nil
	}
	patch := patchFor(now)
	if patch == nil {
		return false, nil
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("patching node %q: %w", of.name, err)
		}
	}()
	leave, err := f.requests.Enter(ctx, precedence)
	if err != nil {
		return false, err
	}
	defer leave()
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	err = f.patch(ctx, now, patch)
	isOutdated := apierrors.IsConflict(err) || kube.NotFound(err)
	if !isOutdated {
		return err == nil, err
	}
	now, err = f.opts.Client.CoreV1().Nodes().Get(ctx, of.name, metav1.GetOptions{})
	isGone := kube.NotFound(err) || err == nil && now.UID != of.uid
	if isGone {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if patch = patchFor(now); patch == nil {
		return false, nil
	}
	err = f.patch(ctx, now, patch)
	return err == nil, err
}

// patch sends a patch for a Node. The API server refuses the patch if the Node has changed since it was seen.
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
