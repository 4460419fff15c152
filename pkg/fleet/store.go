package fleet

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
)

// The methods by which the Reflector fills the nodes.
var (
	_ cache.ReflectorStore    = (*nodes)(nil)
	_ cache.TransformingStore = (*nodes)(nil)

	_ cache.ResourceVersionUpdater = (*nodes)(nil)
)

// Transformer is what the Reflector asks when it streams the first list.
func (n *nodes) Transformer() cache.TransformFunc { return n.slim }

// Add takes in a Node that is there.
func (n *nodes) Add(object any) error {
	full, ok := object.(*corev1.Node)
	if !ok {
		return errNotANode
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if before := n.byName[full.Name]; !before.after(full) {
		n.put(n.following(full, before))
		n.happened()
	}
	return nil
}

// Update takes in a Node that changed.
func (n *nodes) Update(object any) error { return n.Add(object) }

// Delete takes in that a Node is gone.
func (n *nodes) Delete(object any) error {
	full, ok := object.(*corev1.Node)
	if !ok {
		return errNotANode
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.forget(full.Name)
	n.happened()
	return nil
}

// Replace takes in the complete list.
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
		if known := before[full.GetName()]; ok && known.after(full) {
			n.put(known)
		} else if ok {
			n.put(n.following(full, known))
		}
	}
	n.happened()
	if !n.synced {
		n.synced = true
		close(n.known)
	}
	return nil
}

// UpdateResourceVersion takes in up to which version everything has been told.
func (n *nodes) UpdateResourceVersion(version string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.version = version
	n.happened()
}

// Resync has nothing to do.
func (n *nodes) Resync() error { return nil }
