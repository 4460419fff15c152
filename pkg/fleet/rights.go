package fleet

import (
	"context"
	"fmt"

	apps "k8s.io/api/apps/v1"
	authorization "k8s.io/api/authorization/v1"
	coordination "k8s.io/api/coordination/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/nth-project/nth/pkg/apiserver"
)

// Extras are what is done beside a drain.
type Extras struct {
	// Condition keeps the Node's condition, Events writes Events, and Volumes tells the volumes of pods that stay from those
	// that are waited for.
	Condition, Events, Volumes bool
	// Delete deletes the Nodes of terminated instances.
	Delete bool
	// Restart restarts the workloads of pods that ask for it.
	Restart bool
}

// Rights lists what a drain of any node needs, for all nodes and in all namespaces, with its extras, and what a process needs in LeaseNamespace.
func Rights(extras Extras) []apiserver.Right {
	rights := on("nodes", "", "to know which node an instance is", "get", "list", "watch")
	rights = append(rights, on("nodes", "", "to claim, cordon, taint and uncordon a node", "patch")...)
	rights = append(rights, on("pods", "", "to know what is on a node", "list", "watch")...)
	for _, right := range on("leases", "", "to have a Lease, which its claims and its places go by", "get", "list", "create", "update", "delete") {
		right.Attributes.Group, right.Attributes.Namespace = coordination.GroupName, LeaseNamespace
		rights = append(rights, right)
	}
	rights = append(rights, on("pods", "eviction", "to move pods away", "create")...)
	rights = append(rights, on("pods", "", "to remove pods that resist until a hard deadline", "delete")...)
	needed := len(rights)
	if extras.Condition {
		rights = append(rights, on("nodes", "status", "to keep the node's condition", "patch")...)
	}
	if extras.Events {
		rights = append(rights, on("events", "", "to write Events", "create", "patch")...)
	}
	if extras.Volumes {
		const why = "to wait for no volume of a pod that stays"
		rights = append(rights, append(on("persistentvolumeclaims", "", why, "get"), on("persistentvolumes", "", why, "get")...)...)
	}
	if extras.Delete {
		rights = append(rights, on("nodes", "", "to delete the Nodes of terminated instances", "delete")...)
	}
	if extras.Restart {
		const why = "to restart the workloads of pods that ask for it"
		for _, right := range append(on("replicasets", "", why, "get"), append(on("deployments", "", why, "get", "patch"), on("statefulsets", "", why, "get", "patch")...)...) {
			right.Attributes.Group = apps.GroupName
			rights = append(rights, right)
		}
	}
	for i := range rights[needed:] {
		rights[needed+i].Optional = true
	}
	return rights
}

// on are the rights to do some things with a resource.
func on(resource, subresource, why string, verbs ...string) []apiserver.Right {
	rights := make([]apiserver.Right, len(verbs))
	for i, verb := range verbs {
		rights[i] = apiserver.Right{For: why, Attributes: authorization.ResourceAttributes{Verb: verb, Resource: resource, Subresource: subresource}}
	}
	return rights
}

// May asks the API server whether the client has a right.
func May(ctx context.Context, client kubernetes.Interface, r apiserver.Right) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	allowed, err := r.Allowed(ctx, client)
	if err != nil {
		return false, fmt.Errorf("asking whether it may %s: %w", r, err)
	}
	return allowed, nil
}
