package drain

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// The requests are made by hand, with MaxRetries(0). The typed client would repeat them by itself: up to ten times, and
// after as many seconds as a Retry-After says, deaf to the deadline; or a second after a broken connection, which is
// long for a cordon. This package repeats what is worth repeating, at its own pace.

// attemptTimeout bounds one request. It is long enough for slow admission webhooks and short enough to try again within
// the two minutes of a spot notice when a connection hangs.
const attemptTimeout = 8 * time.Second

// fieldManager is the name under which the API server remembers our changes.
const fieldManager = "nth"

func (n *Node) get(ctx context.Context) (*corev1.Node, error) {
	node := &corev1.Node{}
	err := n.rest().Get().Resource("nodes").Name(n.name).MaxRetries(0).Do(ctx).Into(node)
	return node, err
}

func (n *Node) patch(ctx context.Context, patch map[string]any) error {
	body, err := json.Marshal(patch)
	if err != nil {
		return fmt.Errorf("encoding patch: %w", err)
	}
	return n.rest().Patch(types.MergePatchType).Resource("nodes").Name(n.name).
		VersionedParams(&metav1.PatchOptions{FieldManager: fieldManager}, scheme.ParameterCodec).
		Body(body).MaxRetries(0).Do(ctx).Into(&corev1.Node{})
}

// listPods lists the pods on the node. A list that may be behind (version 0, the API server's cache) could lack a pod,
// so the newest is asked for.
func (n *Node) listPods(ctx context.Context, o metav1.ListOptions) (*corev1.PodList, error) {
	if o.ResourceVersion == "0" {
		o.ResourceVersion = ""
	}
	list := &corev1.PodList{}
	err := n.pods(o).Do(ctx).Into(list)
	return list, err
}

func (n *Node) pods(o metav1.ListOptions) *rest.Request {
	o.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", n.name).String()
	return n.rest().Get().Resource("pods").VersionedParams(&o, scheme.ParameterCodec).MaxRetries(0)
}

func (n *Node) rest() rest.Interface { return n.client.CoreV1().RESTClient() }
