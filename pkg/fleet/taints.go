package fleet

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/retry"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
)

// Taints says which taints nodes get. A failure to taint does not affect the drain.
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

// wanted returns the taints for an event.
func (t Taints) wanted(ev event.Event, stopped bool) []corev1.Taint {
	var taints []corev1.Taint
	if key := ev.Kind.Info().Handler.Taint; key != "" && t.Kinds {
		taints = append(taints, corev1.Taint{Key: key, Value: ev.ID[:min(len(ev.ID), longestValue)], Effect: t.Effect})
	}
	if stopped && t.OutOfService {
		taints = append(taints, outOfService)
	}
	return taints
}

// ours reports whether a taint may be one that wanted has returned.
func (t Taints) ours(taint corev1.Taint) bool {
	if t.OutOfService && taint.MatchTaint(&outOfService) && taint.Value == outOfService.Value {
		return true
	}
	return t.Kinds && slices.ContainsFunc(event.AllKinds(), func(k event.Kind) bool { return k.Info().Handler.Taint == taint.Key })
}

// addTaints adds the taints of the session's events to the node. A failure does not affect the drain.
func (s *session) addTaints(ctx context.Context) {
	f := s.fleet
	var wanted []corev1.Taint
	f.mu.Lock()
	for _, t := range s.tasks {
		if ev := t.notice.Event; f.policy()[ev.Kind].Action != policy.Notify && ev.State == event.Pending && !t.lifts {
			wanted = append(wanted, f.opts.Taints.wanted(t.notice.Event, t.notice.Stopped)...)
		}
	}
	f.mu.Unlock()
	if len(wanted) == 0 || f.opts.DryRun {
		return
	}
	err := f.changeTaints(ctx, s.node, func(taints []corev1.Taint) []corev1.Taint {
		for _, w := range wanted {
			if !slices.ContainsFunc(taints, func(there corev1.Taint) bool { return there.Key == w.Key }) {
				taints = append(taints, w)
			}
		}
		return taints
	})
	if err != nil && ctx.Err() == nil {
		f.opts.Log.WithField(fieldNode, s.node).Warn(err)
	}
}

// untaint removes nth-queue's taints from a node.
func (f *Fleet) untaint(ctx context.Context, name string) error {
	return f.changeTaints(ctx, name, func(taints []corev1.Taint) []corev1.Taint {
		return slices.DeleteFunc(taints, f.opts.Taints.ours)
	})
}

// removeTaints removes nth-queue's taints from a node.
func (f *Fleet) removeTaints(ctx context.Context, name string) {
	if f.opts.DryRun {
		return
	}
	if err := f.untaint(ctx, name); err != nil && ctx.Err() == nil {
		f.opts.Log.WithField(fieldNode, name).Warn(err)
	}
}

// changeTaints changes the list of a node's taints, which can only be replaced as a whole.
func (f *Fleet) changeTaints(ctx context.Context, name string, change func([]corev1.Taint) []corev1.Taint) error {
	again := retry.DefaultRetry
	again.Steps = 11 // Others write to it all the time, and no later attempt follows.
	err := retry.RetryOnConflict(again, func() error {
		return f.claims.change(ctx, name, func() bool { return f.isUrgent(name) }, func(node *corev1.Node) map[string]any {
			taints := change(slices.Clone(node.Spec.Taints))
			if slices.Equal(keysOf(taints), keysOf(node.Spec.Taints)) {
				return nil
			}
			return map[string]any{
				"metadata": map[string]any{"resourceVersion": node.ResourceVersion},
				"spec":     map[string]any{"taints": taints},
			}
		})
	})
	if err != nil {
		return fmt.Errorf("tainting node %q: %w", name, err)
	}
	return nil
}

func keysOf(taints []corev1.Taint) []string {
	var keys []string
	for _, t := range taints {
		keys = append(keys, t.Key+":"+string(t.Effect))
	}
	return keys
}
