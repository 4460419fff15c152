package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/nth-project/nth/pkg/drain"
)

// ClaimAnnotation on a Node says which nth-queue is draining it, as the JSON of a claim.
const ClaimAnnotation = drain.KeyPrefix + "queue"

// manager is the name under which nth-queue writes.
const manager = "nth-queue"

// claim is the value of ClaimAnnotation. It is written once, and stands as long as the Lease of its process does.
type claim struct {
	// Holder is the name of the process, and of its Lease.
	Holder string `json:"holder"`
	// Version is that of the Node that was claimed: of two claims of a process, one is not taken for the other.
	Version string `json:"version,omitempty"`
	// Until is in claims of versions that had no Leases, and wrote them again and again.
	Until time.Time `json:"until,omitzero"`
}

const (
	// unleasedLife is for how long a claim holds, after it has been seen to change, whose process has no Lease.
	unleasedLife = 30 * time.Second
	// attemptTimeout bounds one request.
	attemptTimeout = 8 * time.Second
)

func readClaim(text string) (claim, bool) {
	var c claim
	if text == "" || json.Unmarshal([]byte(text), &c) != nil || c.Holder == "" {
		return claim{}, false
	}
	return c, true
}

func (c claim) text() string {
	text, _ := json.Marshal(c) // a struct of strings and a time always encodes
	return string(text)
}

// requestsAtOnce is how many requests about Nodes are under way at once, and as many that are urgent: enough to keep an API server busy,
// and little enough for it to answer each in time.
const requestsAtOnce = 50

// claims makes and ends the claims of this process.
type claims struct {
	client kubernetes.Interface
	nodes  *nodes
	leases *leases
	gate   *drain.Gate
}

// enter waits until something may be asked of a Node or written to it. It returns the context in which that is to be answered, whose
// time begins only then, and how to end it. urgent, if not nil, tells whether it waits behind nothing that is not. The error is ctx's.
func (c claims) enter(ctx context.Context, urgent func() bool) (asking context.Context, leave func(), err error) {
	left, err := c.gate.Enter(ctx, urgent, false)
	if err != nil {
		return nil, nil, err // it is that of ctx
	}
	asking, cancel := context.WithTimeout(ctx, attemptTimeout)
	return asking, func() { cancel(); left() }, nil
}

// errClaimed says that another process drains the node, and when that is worth another look.
type errClaimed struct {
	holder string
	look   time.Duration
}

func (e errClaimed) Error() string { return e.holder + " drains it already" }

// errClaimLost says that a claim is no longer ours.
var errClaimLost = errors.New("the claim on the node is no longer ours")

// take claims a node for a process, and returns the Node as it is then. What is known of it may be behind: the API server refuses the claim
// then, and the Node is read anew.
func (c claims) take(ctx context.Context, process string, known node, urgent func() bool) (*corev1.Node, error) {
	if err := c.free(process, known); err != nil {
		return nil, err // Nobody else is to wait for that.
	}
	ctx, leave, err := c.enter(ctx, urgent)
	if err != nil {
		return nil, err
	}
	defer leave()
	if now, there := c.nodes.find(known.name); there {
		known = now
	}
	for tries := 0; ; tries++ {
		if err := c.free(process, known); err != nil {
			return nil, err
		}
		claimed, err := c.patch(ctx, known.name, types.MergePatchType, annotationPatch(known.version, map[string]any{
			ClaimAnnotation: claim{Holder: process, Version: known.version}.text(), drain.OldKey(ClaimAnnotation): nil,
		}))
		if err == nil {
			return claimed, nil
		}
		if apierrors.IsConflict(err) && tries < 5 {
			var fresh *corev1.Node
			if fresh, err = c.client.CoreV1().Nodes().Get(ctx, known.name, metav1.GetOptions{}); err == nil {
				text, _ := drain.KeyValue(fresh.Annotations, ClaimAnnotation)
				known.seeClaim(text)
				known.version = fresh.ResourceVersion
				continue
			}
		}
		return nil, fmt.Errorf("claiming node %q: %w", known.name, err)
	}
}

// free tells whether the claim on a node leaves it to a process: the error is errClaimed if not. How long the claim of a
// process without a Lease has stood is measured here, from when it was first seen: its clock and ours may be an hour apart,
// and a node is neither drained twice for that nor left alone.
func (c claims) free(process string, n node) error {
	other, there := readClaim(n.claim)
	switch {
	case !there || other.Holder == process:
		return nil
	case !other.Until.IsZero():
		if left := unleasedLife - time.Since(n.claimSeen); left > 0 {
			return errClaimed{other.Holder, left}
		}
		return nil
	case c.leases.hasEnded(other.Holder):
		return nil
	}
	return errClaimed{other.Holder, dispatchInterval}
}

// claimPath is where the annotation is, for a JSON patch.
var claimPath = "/metadata/annotations/" + strings.ReplaceAll(ClaimAnnotation, "/", "~1")

// release takes the claim off the node if it still has that text.
func (c claims) release(ctx context.Context, name, text string) error {
	ctx, leave, err := c.enter(ctx, nil)
	if err != nil {
		return err
	}
	defer leave()
	_, err = c.patch(ctx, name, types.JSONPatchType, []map[string]any{
		{"op": "test", "path": claimPath, "value": text}, {"op": "remove", "path": claimPath},
	})
	if apierrors.IsInvalid(err) || apierrors.IsNotFound(err) {
		return nil // It is not there any more, or another's.
	}
	return err
}

// removeForeign takes the claim of this process off a node if that still has the version that is known.
func (c claims) removeForeign(ctx context.Context, known node) error {
	ctx, leave, err := c.enter(ctx, nil)
	if err != nil {
		return err
	}
	defer leave()
	_, err = c.patch(ctx, known.name, types.MergePatchType, annotationPatch(known.version, map[string]any{
		ClaimAnnotation: nil, drain.OldKey(ClaimAnnotation): nil,
	}))
	return err
}

// orphanGrace is how long nothing must have been drained under a claim for it to be ended: the watch may be behind.
const orphanGrace = 5 * time.Second

// endOrphans ends the claims of this process under which it drains nothing: one could not be ended with its drain, or was written when nobody
// waited for that any more. They would keep others from the nodes, and take places in the ceilings, for as long as this process lives.
func (f *Fleet) endOrphans(t *leaseTerm) {
	f.mu.Lock()
	defer f.mu.Unlock()
	there := map[string]time.Time{}
	f.nodes.each(func(n node) {
		if c, claimed := readClaim(n.claim); !claimed || c.Holder != t.process || f.sessions[n.name] != nil {
			return
		}
		since, known := t.orphans[n.name]
		switch {
		case !known:
			since = time.Now()
		case time.Since(since) >= orphanGrace:
			since = time.Now()
			t.sessions.Go(func() {
				if err := f.claims.removeForeign(t.ctx, n); err != nil {
					f.opts.Log.WithField(fieldNode, n.name).Debugf("ending a claim that was left: %s", err)
				}
			})
		}
		there[n.name] = since
	})
	t.orphans = there
}

func (c claims) patch(ctx context.Context, name string, kind types.PatchType, patch any) (*corev1.Node, error) {
	body, err := json.Marshal(patch)
	if err != nil {
		return nil, err
	}
	written, err := c.client.CoreV1().Nodes().Patch(ctx, name, kind, body, metav1.PatchOptions{FieldManager: manager})
	if err == nil {
		c.nodes.learn(written)
	}
	return written, err
}

// annotationPatch is a merge patch of the annotations of a Node that still has that version.
func annotationPatch(version string, annotations map[string]any) map[string]any {
	return map[string]any{"metadata": map[string]any{"resourceVersion": version, "annotations": annotations}}
}

// change reads a Node and applies the merge patch that is made for it, which holds for that version of the Node; nil is no patch.
func (c claims) change(ctx context.Context, name string, urgent func() bool, patchFor func(*corev1.Node) map[string]any) error {
	ctx, leave, err := c.enter(ctx, urgent)
	if err != nil {
		return err
	}
	defer leave()
	node, err := c.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if patch := patchFor(node); patch != nil {
		_, err = c.patch(ctx, name, types.MergePatchType, patch)
	}
	return err
}

// persistently tries something up to five times, as kubelets and others write to Nodes at any time.
func persistently(ctx context.Context, try func() error) (err error) {
	for range 5 {
		if err = try(); err == nil || !drain.Await(ctx, nil, firstPause/4) {
			break
		}
	}
	return err
}
