package identity

import (
	"context"
	"fmt"

	authorization "k8s.io/api/authorization/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nth-project/nth/pkg/kube"
)

// Rights lists the rights that nth needs in the cluster, each with its purpose. "nth check" asks for each of them.
func (id Identity) Rights() []kube.Right {
	own := &authorization.FieldSelectorAttributes{Requirements: []meta.FieldSelectorRequirement{
		{Key: "spec.nodeName", Operator: meta.FieldSelectorOpIn, Values: []string{id.Node}},
	}}
	of := func(verb, resource, subresource, name string) authorization.ResourceAttributes {
		return authorization.ResourceAttributes{Verb: verb, Version: "v1", Resource: resource, Subresource: subresource, Name: name}
	}
	list, watch := of("list", "pods", "", ""), of("watch", "pods", "", "")
	list.FieldSelector, watch.FieldSelector = own, own
	return []kube.Right{
		{For: "to see whether the node is cordoned, and by whom", Attributes: of("get", "nodes", "", id.Node)},
		{For: "to cordon and uncordon it", Attributes: of("patch", "nodes", "", id.Node)},
		{For: "to find its pods", Attributes: list},
		{For: "to see that they are gone", Attributes: watch},
		{For: "to evict them", Attributes: of("create", "pods", "eviction", "")},
		{For: "to delete what cannot be evicted in time", Attributes: of("delete", "pods", "", "")},
		{For: "to keep the node's condition", Optional: true, Attributes: of("patch", "nodes", "status", id.Node)},
		{For: "to write Events", Optional: true, Attributes: of("create", "events", "", "")},
	}
}

// CheckPermission asks the API server whether the identity has a right. Even if it has, an admission controller may refuse a request.
func (id Identity) CheckPermission(ctx context.Context, r kube.Right) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, kube.Read)
	defer cancel()
	allowed, err := r.Allowed(ctx, id.Client)
	if err != nil {
		return false, fmt.Errorf("asking %s for the right to %s: %w", id.Server, r, err)
	}
	return allowed, nil
}
