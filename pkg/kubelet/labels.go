package kubelet

import (
	"context"
	"fmt"

	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Labels asks for the labels of the node.
func (id Identity) Labels(ctx context.Context) (map[string]string, error) {
	node, err := id.Client.CoreV1().Nodes().Get(ctx, id.Node, meta.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("reading the labels of node %q: %w", id.Node, err)
	}
	return node.Labels, nil
}
