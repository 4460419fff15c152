package drain

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/nth-project/nth/pkg/kube"
	"github.com/nth-project/nth/pkg/state"
)

// patchTimeout bounds a patch of the Node.
func (g Goal) patchTimeout() time.Duration {
	if g.Hard.IsZero() {
		return kube.Write
	}
	return kube.WriteLimit(time.Until(g.Hard))
}

func (n *Node) rest() rest.Interface { return n.client.CoreV1().RESTClient() }

// enter waits for a place at the gate for Nodes. The requests that close a node go first, so that a node is closed soon once that was
// begun.
func (n *Node) enter(ctx context.Context, first bool) (leave func(), err error) {
	return n.opts.Requests.Enter(ctx, n.opts.Urgent, first)
}

func (n *Node) get(ctx context.Context, first bool) (*corev1.Node, error) {
	leave, err := n.enter(ctx, first)
	if err != nil {
		return nil, err
	}
	defer leave()
	node := &corev1.Node{}
	err = n.reads.Attempt(ctx, func(ctx context.Context) error {
		return n.rest().Get().Resource("nodes").Name(n.name).MaxRetries(0).Do(ctx).Into(node)
	})
	if err == nil && n.opts.UID != "" && node.UID != n.opts.UID {
		err = apierrors.NewNotFound(corev1.Resource("nodes"), n.name)
	}
	return node, err
}

// labelManager is the field manager of our other keys on a Node: to write them must not move the time that the API server has noted for the
// cordon (writtenAt).
func (n *Node) labelManager() string { return n.opts.Writer + "-label" }

// patch changes our other keys on the Node, and returns the new Node.
func (n *Node) patch(ctx context.Context, patch map[string]any) (*corev1.Node, error) {
	leave, err := n.enter(ctx, false)
	if err != nil {
		return nil, err
	}
	defer leave()
	return n.write(ctx, patch, n.labelManager())
}

// patchToEnd changes the cordon, with the writer as field manager. It is like patch, except that a request that was begun is not
// canceled with ctx: the API server might still carry it out, and whoever uncordons the node afterwards has to see it. calm ends with ctx, or
// when there is little time all at once.
func (n *Node) patchToEnd(ctx, calm context.Context, patch map[string]any, timeout time.Duration) (*corev1.Node, error) {
	leave, err := n.enter(ctx, true)
	if err != nil {
		return nil, err
	}
	defer leave()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	ctx, cancel := kube.Outlasting(calm, timeout)
	defer cancel()
	return n.write(ctx, patch, n.opts.Writer)
}

func (n *Node) write(ctx context.Context, patch map[string]any, manager string) (*corev1.Node, error) {
	body, err := json.Marshal(patch)
	if err != nil {
		return nil, fmt.Errorf("encoding patch: %w", err)
	}
	node := &corev1.Node{}
	err = n.rest().Patch(types.MergePatchType).Resource("nodes").Name(n.name).
		VersionedParams(&metav1.PatchOptions{FieldManager: manager}, scheme.ParameterCodec).
		Body(body).MaxRetries(0).Do(ctx).Into(node)
	return node, err
}

// remove makes one request for a pod's eviction, or for its deletion, which no disruption budget can refuse.
func (n *Node) remove(ctx context.Context, what state.TransitionKind, pod *corev1.Pod, options *metav1.DeleteOptions, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	request, body := n.rest().Delete(), runtime.Object(options)
	if what == state.PodEvicted {
		// The API server takes the dry run from the query only; proxies and webhooks may look at the body.
		request = n.rest().Post().SubResource("eviction").VersionedParams(&metav1.CreateOptions{DryRun: options.DryRun}, scheme.ParameterCodec)
		body = &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}, DeleteOptions: options}
	}
	// The answer has to be one of the API server's: a proxy may answer 200, too.
	_, err := request.Namespace(pod.Namespace).Resource("pods").Name(pod.Name).MaxRetries(0).Body(body).Do(ctx).Get()
	return err
}

// vanished tells whether an answer means that the pod is no longer on the node: the pod's own 404, a conflict over the UID, the node
// authorizer's 403 for an object to which the node has no relationship (any more), or NodeRestriction's for a pod that is not on this node
// (plugin/pkg/admission/noderestriction/admission.go of Kubernetes). An admission webhook may deny a request with any code, in its own words.
func vanished(err error, pod *corev1.Pod) bool {
	switch s := kube.Answer(err); s.Code {
	case http.StatusNotFound:
		return s.Details != nil && s.Details.Kind == "pods" && s.Details.Name == pod.Name
	case http.StatusConflict:
		return otherUID.MatchString(s.Message)
	case http.StatusForbidden:
		return noRelationship.MatchString(s.Message)
	}
	return false
}

// The API server's words: BeforeDelete in pkg/registry/rest/delete.go, and Preconditions.Check in pkg/storage/interfaces.go, of k8s.io/apiserver.
var otherUID = regexp.MustCompile(`^Operation cannot be fulfilled on .*UID in (the )?precondition`)

var noRelationship = regexp.MustCompile(`no relationship found between node|can only (evict|delete) pods with spec.nodeName set to itself`)

// heldBy returns the disruption budget that refuses an eviction. A 429 without that cause means that the API server is busy.
func heldBy(err error) (budget string, held bool) {
	cause, found := apierrors.StatusCause(err, policyv1.DisruptionBudgetCause)
	if !found {
		return "", false
	}
	if m := budgetName.FindStringSubmatch(cause.Message); m != nil {
		return m[1], true
	}
	return "a disruption budget", true
}

// The API server's words: "The disruption budget NAME needs N healthy pods and has M currently", or "... is still being
// processed by the server." (pkg/registry/core/pod/storage/eviction.go of Kubernetes).
var budgetName = regexp.MustCompile(`disruption budget (\S+)`)
