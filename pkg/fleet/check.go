package fleet

import (
	"context"
	"fmt"
	"strings"

	authentication "k8s.io/api/authentication/v1"
	authorization "k8s.io/api/authorization/v1"
	coordination "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/nth-project/nth/pkg/kube"
)

// User asks the API server for the name of the user whose credential the client has. It returns "" if the server is older than 1.28, and cannot say.
func User(ctx context.Context, client kubernetes.Interface) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	review, err := client.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authentication.SelfSubjectReview{}, metav1.CreateOptions{})
	if apierrors.IsNotFound(err) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("asking the API server which user nth-queue's credential belongs to: %w", err)
	}
	return review.Status.UserInfo.Username, nil
}

// NodeCount is how many Nodes the cluster has.
type NodeCount struct {
	// All counts all Nodes. Silent counts those that do not name their instance, and Elsewhere those that are not EC2 instances.
	All, Silent, Elsewhere int
	// Instances are the IDs of some of the instances that Nodes name.
	Instances []string
}

// someInstances is how many instances NodeCount has at most, and how many Nodes are listed by one request.
const someInstances = 200

// CountNodes counts the Nodes of the cluster.
func CountNodes(ctx context.Context, client kubernetes.Interface) (NodeCount, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*attemptTimeout) // for all pages together
	defer cancel()
	var found NodeCount
	for next := ""; ; {
		list, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{Limit: someInstances, Continue: next})
		if err != nil {
			return NodeCount{}, fmt.Errorf("listing the nodes: %w", err)
		}
		for i := range list.Items {
			found.All++
			provider := list.Items[i].Spec.ProviderID
			if id := InstanceOf(provider); isSilent(provider) {
				found.Silent++
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

// Rights lists the rights in the cluster that draining any node needs, and those on the Lease. With condition and events, it also lists those that
// the Node's condition and Events need. "nth-queue check" asks for them.
func Rights(condition, events bool) []kube.Right {
	var rights []kube.Right
	const needed, optional = false, true
	add := func(optional bool, why, resource string, of authorization.ResourceAttributes, verbs ...string) {
		of.Resource, of.Subresource, _ = strings.Cut(resource, "/")
		for _, verb := range verbs {
			of.Verb = verb
			rights = append(rights, kube.Right{For: why, Attributes: of, Optional: optional})
		}
	}
	var core authorization.ResourceAttributes
	add(needed, "to know which node an instance is", "nodes", core, "get", "list", "watch")
	add(needed, "to cordon, taint and uncordon a node", "nodes", core, "patch")
	add(needed, "to know what is on a node", "pods", core, "list", "watch")
	add(needed, "to know who leads, and to lead", "leases",
		authorization.ResourceAttributes{Group: coordination.GroupName, Namespace: LeaseNamespace}, "get", "create", "update")
	add(needed, "to move pods away", "pods/eviction", core, "create")
	add(needed, "to remove pods that resist until a hard deadline", "pods", core, "delete")
	if condition {
		add(optional, "to keep the node's condition", "nodes/status", core, "patch")
	}
	if events {
		add(optional, "to write Events", "events", core, "create")
	}
	const volumes = "to know which volumes belong to pods that stay"
	add(optional, volumes, "persistentvolumeclaims", core, "get")
	add(optional, volumes, "persistentvolumes", core, "get")
	return rights
}
