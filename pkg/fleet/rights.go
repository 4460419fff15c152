package fleet

import (
	"context"
	"fmt"
	"strings"

	authorization "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// Right is something that nth-queue asks of the API server, for all nodes and in all namespaces.
type Right struct {
	// For says what it is needed for.
	For        string
	attributes authorization.ResourceAttributes
}

// String is the right in the words of kubectl auth can-i.
func (r Right) String() string {
	a := r.attributes
	if a.Subresource != "" {
		return strings.Join([]string{a.Verb, a.Resource + "/" + a.Subresource}, " ")
	}
	return a.Verb + " " + a.Resource
}

// Rights lists what a drain of any node needs.
func Rights() []Right {
	on := func(resource, subresource, why string, verbs ...string) []Right {
		var rights []Right
		for _, verb := range verbs {
			rights = append(rights, Right{why, authorization.ResourceAttributes{Verb: verb, Resource: resource, Subresource: subresource}})
		}
		return rights
	}
	rights := on("nodes", "", "to know which node an instance is", "get", "list", "watch")
	rights = append(rights, on("nodes", "", "to claim, cordon, taint and uncordon a node", "patch")...)
	rights = append(rights, on("pods", "", "to know what is on a node", "list", "watch")...)
	rights = append(rights, on("pods", "eviction", "to move pods away", "create")...)
	return append(rights, on("pods", "", "to remove pods that resist until a hard deadline", "delete")...)
}

// May asks the API server whether the client has a right.
func May(ctx context.Context, client kubernetes.Interface, r Right) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	review, err := client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorization.SelfSubjectAccessReview{
		Spec: authorization.SelfSubjectAccessReviewSpec{ResourceAttributes: &r.attributes},
	}, metav1.CreateOptions{})
	if err != nil {
		return false, fmt.Errorf("asking whether it may %s: %w", r, err)
	}
	return review.Status.Allowed, nil
}

// Census counts the Nodes of the cluster, and those that do not tell which EC2 instance they are.
func Census(ctx context.Context, client kubernetes.Interface) (all, anonymous int, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*attemptTimeout)
	defer cancel()
	const page = 500
	for next := ""; ; {
		list, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{Limit: page, Continue: next})
		if err != nil {
			return 0, 0, fmt.Errorf("listing the nodes: %w", err)
		}
		for i := range list.Items {
			all++
			if instanceOf(list.Items[i].Spec.ProviderID) == "" {
				anonymous++
			}
		}
		if next = list.Continue; next == "" {
			return all, anonymous, nil
		}
	}
}
