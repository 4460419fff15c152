package fleet

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/nth-project/nth/pkg/event"
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

func (t Taints) any() bool { return t.Kinds || t.OutOfService }

// of returns the taints for an event.
func (t Taints) of(ev event.Event, stopped bool) []corev1.Taint {
	var taints []corev1.Taint
	if key := ev.Kind.Info().Handler.Taint; key != "" && t.Kinds {
		taints = append(taints, corev1.Taint{Key: key, Value: ev.ID[:min(len(ev.ID), longestValue)], Effect: t.Effect})
	}
	if stopped && t.OutOfService {
		taints = append(taints, outOfService)
	}
	return taints
}

// ours reports whether a taint may be one of ours.
func (t Taints) ours(taint corev1.Taint) bool {
	if taint.MatchTaint(&outOfService) {
		return t.OutOfService && taint.Value == outOfService.Value
	}
	return t.Kinds && slices.ContainsFunc(event.AllKinds(), func(k event.Kind) bool { return k.Info().Handler.Taint == taint.Key })
}

// ofNoted reports whether a taint is for a kind of events that EC2 lists as long as they stand.
func ofNoted(taint corev1.Taint) bool {
	return slices.ContainsFunc(event.AllKinds(), func(k event.Kind) bool { return isNoted(k) && k.Info().Handler.Taint == taint.Key })
}

// keepTaints sets the taints of the events for which nth-queue has cordoned the node, and takes back those of events whose cordon was lifted,
// until ctx ends. A cordon of somebody else's counts as one: it is part of the goal, too.
func (s *session) keepTaints(ctx context.Context) {
	t := s.term
	var before []corev1.Taint
	for {
		wanted, lifted := s.taints()
		if !slices.Equal(wanted, before) || lifted {
			err := t.taint(t.ctx, s.node, wanted, s.untainted(wanted, lifted))
			if err == nil {
				before = wanted
			} else if t.ctx.Err() == nil {
				t.opts.Log.WithField(fieldNode, s.node.name).Warn(err)
			}
		}
		select {
		case <-ctx.Done():
			if again, nowLifted := s.taints(); nowLifted && !lifted || !slices.Equal(again, before) {
				_ = t.taint(t.ctx, s.node, again, s.untainted(again, nowLifted)) // It was the last step of the drain.
			}
			return
		case <-s.record.changed:
		}
	}
}

// taints returns the taints that the record asks for, and whether the cordon of an event was lifted.
func (s *session) taints() (wanted []corev1.Taint, lifted bool) {
	t := s.term
	for _, e := range s.record.Entries() {
		switch {
		case e.Phase == state.Closed || e.Phase == state.Undoing || e.Released():
			lifted = true
		case !e.CordonedAt.IsZero() && !e.LeftAlone && e.Acted():
			wanted = append(wanted, t.opts.Taints.of(e.Event, s.isStopped(e.Event.ID))...)
		}
	}
	return wanted, lifted
}

// isStopped reports whether EC2 says that the instance of an event has stopped.
func (s *session) isStopped(id string) bool {
	s.term.mu.Lock()
	defer s.term.mu.Unlock()
	for _, h := range s.instance.hints {
		if h.Event.ID == id && h.stopped {
			return true
		}
	}
	return false
}

// untainted returns which taints are taken back: all of ours, once the cordon of the last event is lifted.
func (s *session) untainted(wanted []corev1.Taint, lifted bool) func(corev1.Taint) bool {
	if !lifted || len(wanted) > 0 {
		return nil
	}
	return s.term.opts.Taints.ours
}

// taint adds taints to a Node and takes back those that lifted, if not nil, reports. The list can only be replaced as a whole.
func (t *term) taint(ctx context.Context, on node, wanted []corev1.Taint, lifted func(corev1.Taint) bool) error {
	if !t.opts.Taints.any() {
		return nil
	}
	return t.change(ctx, on, func(now *corev1.Node) map[string]any {
		taints := slices.Clone(now.Spec.Taints)
		if lifted != nil {
			taints = slices.DeleteFunc(taints, lifted)
		}
		taints = with(taints, wanted)
		if slices.Equal(taints, now.Spec.Taints) {
			return nil
		}
		return map[string]any{"spec": map[string]any{"taints": taints}}
	})
}

// with returns the taints with those that are wanted, except where one has the same key.
func with(taints, wanted []corev1.Taint) []corev1.Taint {
	all := slices.Clone(taints)
	for _, w := range wanted {
		if !slices.ContainsFunc(all, func(t corev1.Taint) bool { return t.Key == w.Key }) {
			all = append(all, w)
		}
	}
	return all
}
