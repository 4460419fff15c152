package fleet

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/retry"

	"github.com/nth-project/nth/pkg/event"
)

// Taints say which taints a node gets. They are extras: where they are refused, the drain goes on without.
type Taints struct {
	// Kinds taints a node by the kind of its event; Effect is the effect of that taint.
	Kinds  bool
	Effect TaintEffect
	// OutOfService taints a node whose instance is known not to run any more.
	OutOfService bool
}

// TaintEffect is what a taint does: NoSchedule, PreferNoSchedule or NoExecute.
type TaintEffect = corev1.TaintEffect

// outOfService tells Kubernetes that nothing runs on a node any more, so that volumes can be taken from it.
var outOfService = corev1.Taint{Key: corev1.TaintNodeOutOfService, Value: "nodeshutdown", Effect: corev1.TaintEffectNoExecute}

// longestValue is how long a taint's value may be.
const longestValue = 63

// wanted are the taints that an event brings.
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

// ours tells whether a taint is one that wanted may have brought.
func (t Taints) ours(taint corev1.Taint) bool {
	if t.OutOfService && taint.MatchTaint(&outOfService) && taint.Value == outOfService.Value {
		return true
	}
	return t.Kinds && slices.ContainsFunc(event.AllKinds(), func(k event.Kind) bool { return k.Info().Handler.Taint == taint.Key })
}

// taint puts taints on a node that has none of the same key.
func (f *Fleet) taint(ctx context.Context, name string, wanted []corev1.Taint) error {
	return f.changeTaints(ctx, name, func(taints []corev1.Taint) []corev1.Taint {
		for _, w := range wanted {
			if !slices.ContainsFunc(taints, func(there corev1.Taint) bool { return there.Key == w.Key }) {
				taints = append(taints, w)
			}
		}
		return taints
	})
}

// untaint takes our taints off a node.
func (f *Fleet) untaint(ctx context.Context, name string) error {
	return f.changeTaints(ctx, name, func(taints []corev1.Taint) []corev1.Taint {
		return slices.DeleteFunc(taints, f.opts.Taints.ours)
	})
}

// changeTaints changes the list of a node's taints, which can only be replaced as a whole.
func (f *Fleet) changeTaints(ctx context.Context, name string, change func([]corev1.Taint) []corev1.Taint) error {
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
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
