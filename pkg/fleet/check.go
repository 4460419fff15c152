package fleet

import (
	"context"
	"fmt"
	"time"

	apps "k8s.io/api/apps/v1"
	authentication "k8s.io/api/authentication/v1"
	authorization "k8s.io/api/authorization/v1"
	coordination "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/nth-project/nth/pkg/apiserver"
)

// User asks the API server who the client is. One that is older than 1.28 does not say; that is "".
func User(ctx context.Context, client kubernetes.Interface) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	review, err := client.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authentication.SelfSubjectReview{}, metav1.CreateOptions{})
	if apierrors.IsNotFound(err) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("asking whose credential it is: %w", err)
	}
	return review.Status.UserInfo.Username, nil
}

// NodeCount is how many Nodes the cluster has, how many of them may be of any EC2 instance for what they say, and how many are of none.
type NodeCount struct {
	All, Anonymous, Elsewhere int
	// Instances are some of those that the others tell.
	Instances []string
}

// someInstances is how many instances a census names, at most.
const someInstances = 200

// CountNodes counts the Nodes of the cluster.
func CountNodes(ctx context.Context, client kubernetes.Interface) (NodeCount, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*attemptTimeout)
	defer cancel()
	var found NodeCount
	for next := ""; ; {
		list, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{Limit: page, Continue: next})
		if err != nil {
			return NodeCount{}, fmt.Errorf("listing the nodes: %w", err)
		}
		for i := range list.Items {
			found.All++
			provider := list.Items[i].Spec.ProviderID
			if id := instanceOf(provider); silent(provider) {
				found.Anonymous++
			} else if id == "" {
				found.Elsewhere++
			} else if len(found.Instances) < someInstances {
				found.Instances = append(found.Instances, id)
			}
		}
		if next = list.Continue; next == "" {
			return found, nil
		}
	}
}

// RetryWindow is how long a message is tried again and again whose work fails each time, until it has been received so
// often.
func RetryWindow(receives int) time.Duration {
	var pauses time.Duration
	for n := range receives {
		pauses += retryPause(n + 1)
	}
	return pauses
}

// UrgentReceives is how often a message is received whose work fails each time, from so long before its deadline until then.
func UrgentReceives(notice time.Duration) int {
	receives := 0
	for left := notice; left > 0; receives++ {
		left -= pauseBefore(left, retryPause(receives+1))
	}
	return receives
}

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
