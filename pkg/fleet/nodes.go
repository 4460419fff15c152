package fleet

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/nth-project/nth/pkg/drain"
)

// node is what is kept of a Node: some hundred bytes instead of many thousand.
type node struct {
	name, version, instance, dns string
	uid                          types.UID
	// silent is set if it may be of any instance, because its provider ID does not tell, and attached if it has an attached volume.
	silent, attached bool
	// group is the value of Options.GroupLabel, and claim the text of ClaimAnnotation.
	group, bootID, claim string
	// cordon is drain.CordonAnnotation; ours is set if nth-queue has written it.
	cordon drain.Claim
	ours   bool
	notes  notes
	// machine is its instance, or the one that it was found for by its DNS name if it does not tell its instance.
	machine string
	// readySince is since when it is Ready; zero if it is not.
	readySince time.Time
	// claimSeen is when that claim was first seen.
	claimSeen            time.Time
	ready, unschedulable bool
}

// seeClaim takes in the current text of the claim.
func (n *node) seeClaim(text string) {
	if text != n.claim {
		n.claim, n.claimSeen = text, time.Now()
	}
}

// nodes are all Nodes of the cluster, kept up to date by a watch.
type nodes struct {
	client kubernetes.Interface
	label  string
	known  chan struct{} // closed by listed, after the first list
	listed func()

	mu         sync.RWMutex
	byName     map[string]node
	byInstance map[string]string // name by instance
	silent     map[string]bool   // by name, those that do not tell their instance
	away       time.Time         // see awaySince
	version    string            // that the watch has reached
	changed    chan struct{}     // closed and replaced at every change
}

func newNodes(client kubernetes.Interface, label string) *nodes {
	known := make(chan struct{})
	return &nodes{
		client: client, label: label, known: known, listed: sync.OnceFunc(func() { close(known) }),
		byName: map[string]node{}, byInstance: map[string]string{}, silent: map[string]bool{}, changed: make(chan struct{}),
	}
}

// findInstance finds the node of an EC2 instance.
func (n *nodes) findInstance(id string) (node, bool) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	name, found := n.byInstance[id]
	return n.byName[name], found
}

func (n *nodes) find(name string) (node, bool) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	found, there := n.byName[name]
	return found, there
}

// findDNS finds the node with that private DNS name among those that do not tell their instance.
func (n *nodes) findDNS(name string) (node, bool) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	for silent := range n.silent {
		if found := n.byName[silent]; name != "" && (found.dns == name || found.name == name) {
			return found, true
		}
	}
	return node{}, false
}

// hasUnidentified reports whether there are nodes that do not tell their instance.
func (n *nodes) hasUnidentified() bool {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return len(n.silent) > 0
}

// identify notes the instance of a node that does not tell it.
func (n *nodes) identify(name, instance string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if known, there := n.byName[name]; there && known.instance == "" {
		known.machine = instance
		n.byName[name] = known
	}
}

// each calls do for every node, with the lock held.
func (n *nodes) each(do func(node)) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	for _, one := range n.byName {
		do(one)
	}
}

// changes returns a channel that is closed at the next change.
func (n *nodes) changes() <-chan struct{} {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.changed
}

// waitForVersion waits until the watch has reached a resource version, or the time is over, and reports whether it has. If versions cannot
// be compared, the time passes.
func (n *nodes) waitForVersion(ctx context.Context, version string, within time.Duration) bool {
	for until := time.Now().Add(within); ; {
		n.mu.RLock()
		news, told := n.changed, n.version
		n.mu.RUnlock()
		if order, err := resourceversion.CompareResourceVersion(told, version); err == nil && order >= 0 {
			return true
		}
		if left := time.Until(until); left <= 0 || !drain.Await(ctx, news, left) {
			return false
		}
	}
}

// watch keeps the nodes up to date until ctx ends. client-go's Reflector reconnects by itself.
func (n *nodes) watch(ctx context.Context) {
	silent := logr.Discard()
	ctx = klog.NewContext(ctx, silent)
	source := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list, err := n.client.CoreV1().Nodes().List(ctx, o)
			n.answered(err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			events, err := n.client.CoreV1().Nodes().Watch(ctx, o)
			n.answered(err)
			return events, err
		},
	}
	cache.NewReflectorWithOptions(source, &corev1.Node{}, n, cache.ReflectorOptions{Logger: &silent}).RunWithContext(ctx)
}

// answered notes whether the API server has answered a list or the start of a watch. A watch over a dead connection ends within a minute,
// so that the next request shows it.
func (n *nodes) answered(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case err == nil:
		n.away = time.Time{}
	case n.away.IsZero():
		n.away = time.Now()
	}
}

// awaySince is since when such requests have failed; zero if the last was answered.
func (n *nodes) awaySince() time.Time {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.away
}

// strip drops what is not needed as soon as a Node is received, so that not even the first list is in memory as a whole.
func (n *nodes) strip(object any) (any, error) {
	full, ok := object.(*corev1.Node)
	if !ok {
		return object, nil // A tombstone, for example.
	}
	lean := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: full.Name, UID: full.UID, ResourceVersion: full.ResourceVersion},
		Spec:       corev1.NodeSpec{ProviderID: full.Spec.ProviderID, Unschedulable: full.Spec.Unschedulable},
	}
	if group, there := full.Labels[n.label]; there {
		lean.Labels = map[string]string{n.label: group}
	}
	lean.Annotations = ownKeys(full.Annotations)
	lean.Status.NodeInfo.BootID = full.Status.NodeInfo.BootID
	lean.Status.VolumesAttached = slices.Clone(full.Status.VolumesAttached[:min(1, len(full.Status.VolumesAttached))])
	for _, c := range full.Status.Conditions {
		if c.Type == corev1.NodeReady {
			lean.Status.Conditions = []corev1.NodeCondition{{Type: c.Type, Status: c.Status, LastTransitionTime: c.LastTransitionTime}}
		}
	}
	for _, a := range full.Status.Addresses {
		if a.Type == corev1.NodeInternalDNS {
			lean.Status.Addresses = append(lean.Status.Addresses, a)
		}
	}
	return lean, nil
}

// ownKeys returns nth-queue's own annotations of a Node, by their current keys.
func ownKeys(all map[string]string) map[string]string {
	ours := map[string]string{}
	for _, key := range []string{drain.CordonAnnotation, ClaimAnnotation, NotesAnnotation} {
		if value, there := drain.KeyValue(all, key); there {
			ours[key] = value
		}
	}
	return ours
}

func (n *nodes) parse(full *corev1.Node) node {
	ours := ownKeys(full.Annotations)
	kept := node{
		name: full.Name, version: full.ResourceVersion, uid: full.UID, attached: len(full.Status.VolumesAttached) > 0,
		instance: instanceOf(full.Spec.ProviderID), silent: silent(full.Spec.ProviderID),
		group: full.Labels[n.label], bootID: full.Status.NodeInfo.BootID, unschedulable: full.Spec.Unschedulable,
		notes: notesOf(ours[NotesAnnotation]),
	}
	kept.cordon, kept.ours = cordonOf(ours[drain.CordonAnnotation])
	kept.machine = cmp.Or(kept.instance, kept.notes.machine())
	for _, c := range full.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
			kept.ready, kept.readySince = true, c.LastTransitionTime.Time
		}
	}
	for _, a := range full.Status.Addresses {
		if a.Type == corev1.NodeInternalDNS {
			kept.dns = a.Address
		}
	}
	return kept
}

// cordonOf decodes a cordon annotation, and reports whether nth-queue has written it.
func cordonOf(text string) (claim drain.Claim, ours bool) {
	ours = text != "" && json.Unmarshal([]byte(text), &claim) == nil && claim.OfWriter(drain.Queue)
	return claim, ours
}

// instanceOf returns the instance in a provider ID such as aws:///eu-central-1a/i-0123456789abcdef0; "" if it has none.
func instanceOf(providerID string) string {
	rest, ours := strings.CutPrefix(providerID, "aws://")
	if !ours {
		return ""
	}
	id := rest[strings.LastIndexByte(rest, '/')+1:]
	if !strings.HasPrefix(id, "i-") {
		return ""
	}
	return id
}

// silent reports whether a node with that provider ID may be of any EC2 instance. An unknown form says little, because distributions such
// as K3s use one of their own on any machine. An ID of another cloud, or one of AWS that is not an instance, such as Fargate's, excludes
// it.
func silent(providerID string) bool {
	provider, _, _ := strings.Cut(providerID, "://")
	switch provider {
	case "aws", "eks-hybrid", "gce", "azure":
		return false
	}
	return true
}

var errNotANode = errors.New("not a Node")

// isNewer reports whether a later version of a Node is known than the given one.
func (n node) isNewer(full *corev1.Node) bool {
	order, err := resourceversion.CompareResourceVersion(n.version, full.ResourceVersion)
	return err == nil && order > 0 && n.uid == full.UID
}

// learn takes in a Node from an answer of the API server, before the watch shows it. Older versions in the watch are ignored then.
func (n *nodes) learn(full *corev1.Node) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if before, there := n.byName[full.Name]; there && before.uid == full.UID && !before.isNewer(full) {
		n.put(n.following(full, before))
		n.notify()
	}
}

// following returns what is kept of a Node, given what was kept of its last version.
func (n *nodes) following(full *corev1.Node, before node) node {
	kept := n.parse(full)
	kept.claim, kept.claimSeen = before.claim, before.claimSeen
	kept.seeClaim(ownKeys(full.Annotations)[ClaimAnnotation])
	if kept.machine == "" && kept.uid == before.uid {
		kept.machine = before.machine
	}
	return kept
}

// put adds or replaces a node. n.mu is held.
func (n *nodes) put(kept node) {
	n.forget(kept.name)
	n.byName[kept.name] = kept
	if kept.instance != "" {
		n.byInstance[kept.instance] = kept.name
	}
	if kept.silent {
		n.silent[kept.name] = true
	}
}

// forget removes a node. n.mu is held.
func (n *nodes) forget(name string) {
	if old, there := n.byName[name]; there && n.byInstance[old.instance] == name {
		delete(n.byInstance, old.instance)
	}
	delete(n.byName, name)
	delete(n.silent, name)
}

// notify wakes those who wait for a change. n.mu is held.
func (n *nodes) notify() {
	close(n.changed)
	n.changed = make(chan struct{})
}

// The Reflector fills nodes by these interfaces.
var (
	_ cache.ReflectorStore    = (*nodes)(nil)
	_ cache.TransformingStore = (*nodes)(nil)

	_ cache.ResourceVersionUpdater = (*nodes)(nil)
)

// Transformer implements cache.TransformingStore.
func (n *nodes) Transformer() cache.TransformFunc { return n.strip }

// Add implements cache.ReflectorStore.
func (n *nodes) Add(object any) error {
	full, ok := object.(*corev1.Node)
	if !ok {
		return errNotANode
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if before := n.byName[full.Name]; !before.isNewer(full) {
		n.put(n.following(full, before))
		n.notify()
	}
	return nil
}

// Update implements cache.ReflectorStore.
func (n *nodes) Update(object any) error { return n.Add(object) }

// Delete implements cache.ReflectorStore.
func (n *nodes) Delete(object any) error {
	full, ok := object.(*corev1.Node)
	if !ok {
		return errNotANode
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.forget(full.Name)
	n.notify()
	return nil
}

// Replace implements cache.ReflectorStore. It gets the complete list.
func (n *nodes) Replace(objects []any, version string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.version = version
	before := n.byName
	n.byName = make(map[string]node, len(objects))
	clear(n.byInstance)
	clear(n.silent)
	for _, object := range objects {
		full, ok := object.(*corev1.Node)
		if known := before[full.GetName()]; ok && known.isNewer(full) {
			n.put(known)
		} else if ok {
			n.put(n.following(full, known))
		}
	}
	n.notify()
	n.listed()
	return nil
}

// UpdateResourceVersion implements cache.ResourceVersionUpdater: the watch has reached that version.
func (n *nodes) UpdateResourceVersion(version string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.version = version
	n.notify()
}

// Resync implements cache.ReflectorStore.
func (n *nodes) Resync() error { return nil }
