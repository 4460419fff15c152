package fleet

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/kube"
	"github.com/nth-project/nth/pkg/state"
)

// Taints says which taints nodes get, as part of a cordon. A failure to taint does not affect the drain.
type Taints struct {
	// Kinds adds a taint for the kind of the event, with that Effect.
	Kinds  bool
	Effect TaintEffect
	// OutOfService adds the taint out-of-service once EC2 says that the instance has stopped.
	OutOfService bool
}

// TaintEffect is what a taint does: NoSchedule, PreferNoSchedule or NoExecute.
type TaintEffect = corev1.TaintEffect

// outOfService tells Kubernetes that nothing runs on the node any more, so that its volumes can be detached.
var outOfService = corev1.Taint{Key: corev1.TaintNodeOutOfService, Value: "nodeshutdown", Effect: corev1.TaintEffectNoExecute}

// longestValue is the longest value that a taint can have.
const longestValue = 63

// of returns the taint for the kind of an event; nil if the settings ask for no taints, or the kind has none.
func (t Taints) of(ev event.Event) []corev1.Taint {
	key := ev.Kind.Info().Handler.Taint
	if key == "" || !t.Kinds {
		return nil
	}
	return []corev1.Taint{{Key: key, Value: ev.ID[:min(len(ev.ID), longestValue)], Effect: t.Effect}}
}

// isOwn reports whether a taint is one that nth-queue sets with these settings. A taint for a kind is known by its key, whatever its effect: the
// setting may have changed since. The taint out-of-service has to match completely, as operators set its key, too.
func (t Taints) isOwn(taint corev1.Taint) bool {
	if taint.MatchTaint(&outOfService) {
		return t.OutOfService && taint.Value == outOfService.Value
	}
	return t.Kinds && slices.ContainsFunc(event.AllKinds(), func(k event.Kind) bool { return k.Info().Handler.Taint == taint.Key })
}

// taints returns the taints that the Node is to have for the entries of its record. Only an entry for which the node is cordoned asks for taints.
func (s *session) taints(entries []state.Entry) (wanted []corev1.Taint) {
	s.term.mu.Lock()
	stoppedBy, started := s.instance.stoppedBy, s.instance.started
	s.term.mu.Unlock()
	for _, e := range entries {
		wasCordoned := !e.CordonedAt.IsZero() && e.Acted()
		noLonger := e.Phase == state.Undoing || e.Released() || e.LeftAlone // The cordon is being taken back, or operators have ended it.
		if !wasCordoned || noLonger {
			continue
		}
		wanted = append(wanted, s.term.opts.Taints.of(e.Event)...)
		runsAgain := started.After(announcedAt(e))
		if s.term.opts.Taints.OutOfService && e.Event.ID == stoppedBy && !runsAgain {
			wanted = append(wanted, outOfService)
		}
	}
	return wanted
}

// withTaints returns the taints of a Node, and the wanted ones whose keys the Node does not have.
func withTaints(taints, wanted []corev1.Taint) []corev1.Taint {
	all := slices.Clone(taints)
	for _, w := range wanted {
		if !slices.ContainsFunc(all, func(t corev1.Taint) bool { return t.Key == w.Key }) {
			all = append(all, w)
		}
	}
	return all
}

// tidyOpened takes nth-queue's taints and the label of this Lease off a Node that others have uncordoned. Their uncordon leaves these, and the claim,
// on the Node. tidyOpened returns when to try again; 0 if that is not needed.
func (t *term) tidyOpened(on node) time.Duration {
	if t.opts.DryRun || !on.hasOwnCordon && !on.labeled {
		return 0
	}
	patchFor := func(now *corev1.Node) map[string]any {
		if now.Spec.Unschedulable {
			return nil
		}
		patch := map[string]any{}
		taints := slices.DeleteFunc(slices.Clone(now.Spec.Taints), t.opts.Taints.isOwn)
		if now.Labels[drain.ExcludeLabel] == t.opts.Lease {
			patch["metadata"] = map[string]any{"labels": map[string]any{drain.ExcludeLabel: nil}}
		}
		if len(taints) < len(now.Spec.Taints) {
			patch["spec"] = map[string]any{"taints": taints}
		}
		if len(patch) == 0 {
			return nil
		}
		return patch
	}
	if _, err := t.change(t.ctx, on, kube.InTurn, patchFor); err != nil {
		t.opts.Log.WithField(fieldNode, on.name).Warnf("cannot remove nth-queue's taints and label from the node, which someone uncordoned: %s; retrying", err)
		return firstPause
	}
	return 0
}
