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

// ClaimAnnotation on a Node says which nth-queue process is draining it, as the JSON of a claim.
const ClaimAnnotation = drain.KeyPrefix + "queue"

// manager is the field manager of all writes.
const manager = "nth-queue"

// claim is the value of ClaimAnnotation. It is written once, and is valid as long as the Lease of its process exists.
type claim struct {
	// Holder is the name of the process, and of its Lease.
	Holder string `json:"holder"`
	// Version is the version of the Node that was claimed. It distinguishes two claims of the same process.
	Version string `json:"version,omitempty"`
	// Until is set in claims by versions that had no Leases and renewed each claim instead.
	Until time.Time `json:"until,omitzero"`
}

const (
	// unleasedLife is how long a claim without a Lease is respected after it was last seen to change.
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

// requestsAtOnce is how many requests about Nodes are made at the same time, and as many urgent ones. It keeps an API server busy, but
// lets it answer each in time.
const requestsAtOnce = 50

// claims writes and removes the claims of this process.
type claims struct {
	client kubernetes.Interface
	nodes  *nodes
	leases *leases
	gate   *drain.Gate
}

// enter waits for a turn to make requests about a Node. It returns a context with a timeout that begins only then. urgent, if not nil,
// reports whether to go before requests that are not urgent. The error is that of ctx.
func (c claims) enter(ctx context.Context, urgent func() bool) (asking context.Context, leave func(), err error) {
	left, err := c.gate.Enter(ctx, urgent, false)
	if err != nil {
		return nil, nil, err // it is that of ctx
	}
	asking, cancel := context.WithTimeout(ctx, attemptTimeout)
	return asking, func() { cancel(); left() }, nil
}

// errClaimed means that another process drains the node, and when to look again.
type errClaimed struct {
	holder string
	look   time.Duration
}

func (e errClaimed) Error() string { return e.holder + " drains it already" }

// errClaimLost means that another claim is on the Node, or none.
var errClaimLost = errors.New("the claim on the node is no longer ours")

// take claims a node for a process and returns the Node. If what is known of the Node is outdated, the API server refuses the claim, and
// the Node is read again. The error is errClaimed if another process drains it.
func (c claims) take(ctx context.Context, process string, known node, urgent func() bool) (*corev1.Node, error) {
	if err := c.free(process, known); err != nil {
		return nil, err // Without waiting for a turn.
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

// free returns errClaimed if another process has claimed the node. A claim without a Lease expires some time after it was first seen: the
// clocks of two hosts may be an hour apart, and the node must neither be drained twice nor be left alone for that.
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

// claimPath is the annotation's path in a JSON patch.
var claimPath = "/metadata/annotations/" + strings.ReplaceAll(ClaimAnnotation, "/", "~1")

// release removes a claim from a node if it still has that text.
func (c claims) release(ctx context.Context, name, text string) error {
	ctx, leave, err := c.enter(ctx, nil)
	if err != nil {
		return err
	}
	defer leave()
	_, err = c.patch(ctx, name, types.JSONPatchType, []map[string]any{
		{"op": "test", "path": claimPath, "value": text}, {"op": "remove", "path": claimPath},
	})
	if apierrors.IsInvalid(err) || drain.NotFound(err) {
		return nil // The claim is gone, or is another process's.
	}
	return err
}

// removeOrphan removes the claim of this process from a node, if the Node still has the version that is known.
func (c claims) removeOrphan(ctx context.Context, known node) error {
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

// orphanGrace is how long a claim must have been without a session before it is removed, because the watch may be behind.
const orphanGrace = 5 * time.Second

// endOrphans removes the claims of this process that have no session: one that could not be removed at the end of a drain, or whose
// request had succeeded after it was given up. They would keep other processes from these nodes and count as drains for as long as this
// process runs.
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
				if err := f.claims.removeOrphan(t.ctx, n); err != nil {
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

// annotationPatch returns a merge patch for the annotations of a Node, which fails with a conflict if the Node has another version.
func annotationPatch(version string, annotations map[string]any) map[string]any {
	return map[string]any{"metadata": map[string]any{"resourceVersion": version, "annotations": annotations}}
}

// change reads a Node and applies the merge patch that patchFor returns for it, if any.
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

// persistently tries a change of a Node up to five times: kubelets and others write to it, too.
func persistently(ctx context.Context, try func() error) (err error) {
	for range 5 {
		if err = try(); err == nil || !drain.Await(ctx, nil, firstPause/4) {
			break
		}
	}
	return err
}
