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
	// right describes one right. subresource and name may be "", which means the resource itself, and objects of any name.
	right := func(verb, resource, subresource, name string) authorization.ResourceAttributes {
		return authorization.ResourceAttributes{Verb: verb, Version: "v1", Resource: resource, Subresource: subresource, Name: name}
	}
	list, watch := right("list", "pods", "", ""), right("watch", "pods", "", "")
	list.FieldSelector, watch.FieldSelector = own, own
	return []kube.Right{
		{For: "to see whether the node is cordoned, and by whom", Attributes: right("get", "nodes", "", id.Node)},
		{For: "to cordon and uncordon it", Attributes: right("patch", "nodes", "", id.Node)},
		{For: "to find its pods", Attributes: list},
		{For: "to see that they are gone", Attributes: watch},
		{For: "to evict them", Attributes: right("create", "pods", "eviction", "")},
		{For: "to delete what cannot be evicted in time", Attributes: right("delete", "pods", "", "")},
		{For: "to keep the node's condition", Optional: true, Attributes: right("patch", "nodes", "status", id.Node)},
		{For: "to write Events", Optional: true, Attributes: right("create", "events", "", "")},
	}
}

// CheckPermission asks the API server whether the identity has a right. allowed is false if it has not, or if the API server does not say: then
// the error says why. An admission controller may refuse a request in spite of the right.
func (id Identity) CheckPermission(ctx context.Context, r kube.Right) (allowed bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, kube.Read)
	defer cancel()
	allowed, err = r.Allowed(ctx, id.Client)
	if err != nil {
		return false, fmt.Errorf("asking the API server %s whether nth may %s: %w", id.Server, r, err)
	}
	return allowed, nil
}
