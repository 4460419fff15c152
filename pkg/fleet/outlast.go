package fleet

import (
	"context"
	"encoding/json"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/record"
)

// lasting tells whether a node stays closed for an entry whose message has come to its end: until people or the event's own end say
// otherwise, unlike a cordon with a time to live. f.mu is held.
func (f *Fleet) lasting(e record.Entry) bool {
	done := e.Phase == record.Drained || e.Phase == record.Cordoned || e.Phase == record.Incomplete || e.LeftAlone
	return done && e.OnNode && !e.Reopened && !f.passing(e.Event.Kind)
}

// passing tells whether a kind's cordon has a time to live.
func (f *Fleet) passing(kind event.Kind) bool {
	rule := f.policy()[kind]
	return rule.Action == policy.Cordon && rule.CordonFor > 0
}

// revocable tells whether EC2 may yet say that a kind's event is over, so that its cordon is lifted.
func revocable(kind event.Kind) bool {
	return kind == event.ScheduledMaintenance || kind == event.StatusCheck
}

// handOver gives a cordon that has a time to live, or that is lifted when EC2 says so, to the event that the node was drained or cordoned for
// meanwhile. Nobody else remembers that one once its message is gone, and the node would be opened when the time to live is over.
func (s *session) handOver(ctx context.Context) error {
	f := s.fleet
	f.mu.Lock()
	to := s.lasting
	f.mu.Unlock()
	if to.ID == "" || f.opts.DryRun {
		return nil
	}
	ctx, leave, err := f.claims.enter(ctx, false)
	if err != nil {
		return err
	}
	defer leave()
	node, err := f.opts.Client.CoreV1().Nodes().Get(ctx, s.node, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err //nolint:wrapcheck // it says which Node
	}
	text, _ := drain.KeyValue(node.Annotations, drain.CordonAnnotation)
	var claim drain.Claim
	if !node.Spec.Unschedulable || json.Unmarshal([]byte(text), &claim) != nil || !claim.OfWriter(drain.Queue) || claim.Event == to.ID {
		return nil
	}
	if kind := event.Kind(claim.Kind); !f.passing(kind) && (!revocable(kind) || revocable(to.Kind)) {
		return nil
	}
	claim.Event, claim.Kind, claim.BootID = to.ID, string(to.Kind), node.Status.NodeInfo.BootID
	claim.Events = append(claim.Events, to.ID)
	next, err := json.Marshal(claim)
	if err != nil {
		return err //nolint:wrapcheck // a struct of strings and a time always encodes
	}
	// If anything has changed on the Node since, the cordon may be another's now.
	_, err = f.claims.patch(ctx, s.node, types.MergePatchType, map[string]any{"metadata": map[string]any{
		"resourceVersion": node.ResourceVersion, "annotations": drain.KeyPatch(node.Annotations, drain.CordonAnnotation, string(next)),
	}})
	return err
}

// keepClosed hands the cordon over, and tries again a few times: kubelets write to their Nodes at any time.
func (s *session) keepClosed(ctx context.Context) {
	var err error
	for range 5 {
		if err = s.handOver(ctx); err == nil || !drain.Await(ctx, nil, firstPause/4) {
			break
		}
	}
	if err != nil {
		s.fleet.opts.Log.WithField(fieldNode, s.node).Warnf("the node may be opened before its time: %s", err)
	}
}
