package fleet

import (
	"cmp"
	"encoding/json"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
)

// Limits bound how many nodes are drained at once: Draining in all, and Group of those with the same value of the label
// Options.GroupLabel. 0 is no limit. What leaves no time to wait does not wait for them, but counts. Cordons are not limited.
type Limits struct{ Draining, Group int }

const (
	// places is how many drains are under way at once, whatever the limits, and urgentPlaces how many more if they leave no time: each
	// needs some 300 kB.
	places, urgentPlaces = 150, 50
	// urgentWithin is how close a deadline has to be for its event to leave no time. It does not any more when the deadline has been over
	// for as long: a machine that still runs then, such as one that is to be retired, may do so for days.
	urgentWithin = 3 * time.Minute
)

// isUrgent reports whether an event leaves no time to wait in. A spot interruption never does: its instance is gone, or about to go.
func isUrgent(ev event.Event) bool {
	if ev.Kind == event.SpotInterruption {
		return true
	}
	left := time.Until(ev.Deadline)
	return !ev.Deadline.IsZero() && left <= urgentWithin && left > -urgentWithin
}

// dispatch begins the drains that have a place within the limits, the most urgent first. A drain whose group is full holds up no other.
// Call it whenever a drain was enlisted or has freed its place. The term's mutex is held.
func (t *term) dispatch() {
	limits := t.rules.Load().Limits
	var line []*session
	all, counted, groups := 0, 0, map[string]int{}
	for _, in := range t.instances {
		s := in.drain
		switch {
		case s == nil, s.stage == ended: // It takes no place.
		case s.stage == waiting:
			s.prioritize()
			line = append(line, s)
		default:
			all++
			if !s.leftAlone() {
				counted++
				groups[s.node.group]++
			}
		}
	}
	slices.SortFunc(line, byPriority)
	for _, s := range line {
		limited := limits.Draining > 0 && counted >= limits.Draining || limits.Group > 0 && groups[s.node.group] >= limits.Group
		if full := all >= places; full && (!s.urgent.Load() || all >= places+urgentPlaces) || limited && !s.urgent.Load() {
			continue
		}
		all++
		counted++
		groups[s.node.group]++
		t.begin(s)
	}
}

// noDeadline is in the place of the deadline of events that have none: after all others.
var noDeadline = time.Unix(1<<40, 0)

// prioritize sets the urgency and the deadline of a drain that waits. The term's mutex is held.
func (s *session) prioritize() {
	urgent := s.goal.Action == policy.Uncordon
	s.deadline = noDeadline
	for _, ev := range s.open() {
		over := ev.State != event.Pending // What is to be taken back waits for nothing.
		urgent = urgent || over || isUrgent(ev.Event)
		if !ev.Deadline.IsZero() && ev.Deadline.Before(s.deadline) {
			s.deadline = ev.Deadline
		}
	}
	s.urgent.Store(urgent)
}

// byPriority compares two drains that wait: urgent ones come first, then the nearest deadline, then the longest wait.
func byPriority(a, b *session) int {
	return cmp.Or(trueFirst(a.urgent.Load(), b.urgent.Load()), a.deadline.Compare(b.deadline), a.since.Compare(b.since), cmp.Compare(a.node.name, b.node.name))
}

// trueFirst compares two booleans.
func trueFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// cordonWaiting cordons and taints the Node of a drain that waits for its turn. Otherwise pods of other nodes would move there, only to be
// evicted again. It returns when to try again; 0 if that is not needed. A Node stays as it is if it is cordoned already, if an operator has
// uncordoned it, or if it is opted out.
func (t *term) cordonWaiting(in *instance) time.Duration {
	t.mu.Lock()
	s := in.drain
	if s == nil || s.stage != waiting || t.opts.DryRun || s.goal.Action != policy.Drain && s.goal.Action != policy.Cordon {
		t.mu.Unlock()
		return 0
	}
	on, goal := s.node, s.goal
	t.mu.Unlock()
	patchFor := func(now *corev1.Node) map[string]any {
		claim, ours := t.nodes.cordonOf(now.Annotations[drain.CordonAnnotation])
		if now.Spec.Unschedulable || ours || claim.Names(goal.Event.ID) || drain.MayNotCordon(now) {
			return nil
		}
		text, _ := json.Marshal(drain.Claim{ // texts and a time always encode
			Writer: t.opts.Lease, Event: goal.Event.ID, Kind: string(goal.Event.Kind), Events: goal.Events,
			BootID: now.Status.NodeInfo.BootID, Since: time.Now().UTC(),
		})
		patch := annotation(drain.CordonAnnotation, string(text))
		spec := map[string]any{"unschedulable": true}
		if taints := t.opts.Taints.of(goal.Event); len(taints) > 0 {
			spec["taints"] = withTaints(now.Spec.Taints, taints)
		}
		patch["spec"] = spec
		return patch
	}
	if err := t.change(t.ctx, on, s.urgent.Load, patchFor); err != nil {
		t.opts.Log.WithField(fieldNode, on.name).Warnf("cannot cordon a node that waits for its drain: %s; retrying", err)
		return firstPause
	}
	return 0
}
