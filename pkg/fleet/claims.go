package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// ClaimAnnotation on a Node says which nth-queue is draining it, as the JSON of a claim.
const ClaimAnnotation = "nth/queue"

// claim is the value of ClaimAnnotation.
type claim struct {
	Holder string `json:"holder"`
	// Until is when the claim ends unless it is renewed, by the holder's clock. It tells one claim from the next, and
	// people when to wonder; nobody counts on it, as clocks differ.
	Until time.Time `json:"until"`
}

const (
	// claimLife is how long a claim holds after it has been seen to change: as long as it takes at most until others go
	// on where a process was killed.
	claimLife = 30 * time.Second
	// renewal is how often a claim is renewed: twice may fail.
	renewal = 9 * time.Second
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
	text, _ := json.Marshal(c) //nolint:errchkjson // a struct of a string and a time always encodes
	return string(text)
}

// claims makes and ends this process's claims.
type claims struct {
	client kubernetes.Interface
	holder string
	dead   func(holder string) bool // may be nil
}

// errClaimed says that another process drains the node, and for how long it may unless it renews its claim.
type errClaimed struct {
	holder string
	left   time.Duration
}

func (e errClaimed) Error() string {
	return fmt.Sprintf("%s drains it already, for %s at least", e.holder, e.left.Round(time.Second))
}

// errLost says that a claim is no longer ours.
var errLost = errors.New("the claim on the node is no longer ours")

// take claims a node, as it is known, for this process, and returns the Node as it is then. What is known may be behind;
// the API server then says so, and the Node is read anew.
func (c claims) take(ctx context.Context, known node) (*corev1.Node, error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	if err := c.free(known); err != nil {
		return nil, err
	}
	claimed, err := c.write(ctx, known.name, known.version)
	for tries := 0; apierrors.IsConflict(err) && tries < 5; tries++ {
		var fresh *corev1.Node
		if fresh, err = c.client.CoreV1().Nodes().Get(ctx, known.name, metav1.GetOptions{}); err != nil {
			break
		}
		known.seeClaim(fresh.Annotations[ClaimAnnotation])
		if err := c.free(known); err != nil {
			return nil, err
		}
		claimed, err = c.write(ctx, known.name, fresh.ResourceVersion)
	}
	if err != nil {
		return nil, fmt.Errorf("claiming node %q: %w", known.name, err)
	}
	return claimed, nil
}

// free tells whether the claim on a node leaves it to us. How long another process's claim has stood is measured here,
// from when it was first seen: its clock and ours may be an hour apart, and a node is neither drained twice for that nor
// left alone.
func (c claims) free(n node) error {
	other, there := readClaim(n.claim)
	if !there || other.Holder == c.holder || c.dead != nil && c.dead(other.Holder) {
		return nil
	}
	if left := claimLife - time.Since(n.claimSeen); left > 0 {
		return errClaimed{other.Holder, left}
	}
	return nil
}

func (c claims) next() claim {
	return claim{Holder: c.holder, Until: time.Now().Add(claimLife).UTC()}
}

// write sets the claim if the Node still has that version.
func (c claims) write(ctx context.Context, name, version string) (*corev1.Node, error) {
	patch := map[string]any{"metadata": map[string]any{
		"resourceVersion": version, "annotations": map[string]any{ClaimAnnotation: c.next().text()},
	}}
	return c.patch(ctx, name, types.MergePatchType, patch)
}

// renew extends the claim that has that text, and returns the new text. The error is errLost if another claim, or none,
// stands there.
func (c claims) renew(ctx context.Context, name, text string) (string, error) {
	next := c.next().text()
	_, err := c.swap(ctx, name, text, map[string]any{"op": "replace", "path": claimPath, "value": next})
	if err != nil {
		return text, err
	}
	return next, nil
}

// release takes the claim off the node if it still has that text.
func (c claims) release(ctx context.Context, name, text string) error {
	_, err := c.swap(ctx, name, text, map[string]any{"op": "remove", "path": claimPath})
	if errors.Is(err, errLost) {
		return nil
	}
	return err
}

// claimPath is where the annotation is, for a JSON patch.
const claimPath = "/metadata/annotations/nth~1queue"

func (c claims) swap(ctx context.Context, name, text string, change map[string]any) (*corev1.Node, error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	patch := []map[string]any{{"op": "test", "path": claimPath, "value": text}, change}
	node, err := c.patch(ctx, name, types.JSONPatchType, patch)
	if apierrors.IsInvalid(err) || apierrors.IsNotFound(err) {
		return nil, errLost
	}
	return node, err
}

func (c claims) patch(ctx context.Context, name string, kind types.PatchType, patch any) (*corev1.Node, error) {
	body, err := json.Marshal(patch)
	if err != nil {
		return nil, err
	}
	return c.client.CoreV1().Nodes().Patch(ctx, name, kind, body, metav1.PatchOptions{FieldManager: "nth-queue"})
}
