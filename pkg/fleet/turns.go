package fleet

import (
	"cmp"
	"encoding/json"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/kube"
	"github.com/nth-project/nth/pkg/policy"
)

// Limits bound how many nodes are drained at once: Draining in all, and Group of those with the same value of the label
// Options.GroupLabel. 0 is no limit. An urgent session counts, but does not wait for the limits. Cordons are not limited.
type Limits struct{ Draining, Group int }

const (
	// places is how many sessions may run at once, whatever the limits, and urgentPlaces how many urgent ones in addition: each needs some 300 kB.
	places, urgentPlaces = 150, 50
	// urgentWithin is how close the deadline of an urgent event is. An event is not urgent any more when its deadline has been over for as long: a
	// machine that still runs then, such as one that is to be retired, may run for days.
	urgentWithin = 3 * time.Minute
)

// isUrgent reports whether an event leaves no time to wait for a turn. A spot interruption always is urgent: its instance is gone, or about to go.
func isUrgent(ev event.Event) bool {
	if ev.Kind == event.SpotInterruption {
		return true
	}
	left := time.Until(ev.Deadline)
	return !ev.Deadline.IsZero() && left <= urgentWithin && left > -urgentWithin
}

// dispatch begins the sessions that have a place within the limits, urgent ones first. A session whose group is full holds up no other. Nodes without
// Options.GroupLabel are one group. dispatch is called whenever a session was enlisted or has freed its place. The term's mutex is held.
func (t *term) dispatch() {
	limits := t.opts.Limits
	var line []*session // those that wait
	all := 0            // sessions that run
	counted := 0        // those that count for the limits: operators may have opted out the nodes of the others
	groups := map[string]int{}
	turns := map[string]string{} // by group, as far as they are needed
	for _, inst := range t.instances {
		s := inst.drain
		switch {
		case s == nil, s.stage == ended: // The instance takes no place.
		case s.stage == waiting:
			line = append(line, s)
		default:
			all++
			if !s.leftAlone() {
				counted++
				groups[s.node.group]++
			}
		}
	}
	if all >= places+urgentPlaces || t.ctx.Err() != nil { // No session has a place, or the term has ended.
		return
	}
	for _, s := range line {
		s.prioritize() // Time has passed.
	}
	slices.SortFunc(line, byPriority)
	for _, s := range line {
		isFull := limits.Draining > 0 && counted >= limits.Draining
		groupIsFull := limits.Group > 0 && groups[s.node.group] >= limits.Group
		var mustWait bool
		switch {
		case s.urgent.Load():
			mustWait = all >= places+urgentPlaces
			s.takesTurn = false // It does not wait for the turn, and takes the turn when a request is made.
		case all >= places || isFull || groupIsFull:
			mustWait = true
		case s.takesTurn:
			if _, known := turns[s.node.group]; !known {
				turns[s.node.group] = t.turn(s.node.group)
			}
			turns[s.node.group] = cmp.Or(turns[s.node.group], string(s.node.uid)) // If nobody has it, this session takes it.
			mustWait = turns[s.node.group] != string(s.node.uid)
		}
		if mustWait {
			continue
		}
		all++
		counted++
		groups[s.node.group]++
		t.begin(s)
	}
}

// noDeadline stands for the deadline of a session whose events have none: after all others.
var noDeadline = time.Unix(1<<40, 0)

// prioritize sets the urgency and the deadline of a session that waits. A session that takes back a cordon is urgent. So is one with
// an urgent event among those of its goal: another one is only reported, or is over. The term's mutex is held.
func (s *session) prioritize() {
	urgent := s.goal.Action == policy.Uncordon
	s.deadline = noDeadline
	for _, ev := range s.events {
		if ev.rests {
			continue
		}
		urgent = urgent || isUrgent(ev.Event) && slices.Contains(s.goal.Events, ev.ID)
		if !ev.Deadline.IsZero() && ev.Deadline.Before(s.deadline) {
			s.deadline = ev.Deadline
		}
	}
	s.urgent.Store(urgent)
}

// byPriority compares two sessions that wait: urgent ones come first, then the nearest deadline, then the longest wait.
func byPriority(a, b *session) int {
	return cmp.Or(trueFirst(a.urgent.Load(), b.urgent.Load()), a.deadline.Compare(b.deadline), a.since.Compare(b.since), cmp.Compare(a.node.name, b.node.name))
}

// trueFirst compares two booleans for a sort: true comes before false.
func trueFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// cordonWaiting cordons and taints the Node of a session that waits for its turn: otherwise pods of other nodes would move to the Node, only to be
// evicted again. It returns when to try again; 0 if that is not needed. A Node stays as it is if it is cordoned already, if it is opted
// out, or if a claim without a cordon shows that an operator has uncordoned it.
func (t *term) cordonWaiting(inst *instance) time.Duration {
	t.mu.Lock()
	s := inst.drain
	isWaiting := s != nil && s.stage == waiting
	wantsCordon := isWaiting && (s.goal.Action == policy.Drain || s.goal.Action == policy.Cordon)
	if !wantsCordon || s.takesTurn || t.opts.DryRun { // A node that waits for the turn of its group still takes pods.
		t.mu.Unlock()
		return 0
	}
	on, goal := s.node, s.goal
	t.mu.Unlock()
	patchFor := func(now *corev1.Node) map[string]any {
		claim, isOwn := t.nodes.cordonOf(now.Annotations[drain.CordonAnnotation])
		wasUncordoned := isOwn || claim.Names(goal.Event.ID) // An open Node with a claim of nth-queue's, or for this event.
		if now.Spec.Unschedulable || wasUncordoned || drain.MayNotCordon(now) {
			return nil
		}
		text, _ := json.Marshal(drain.Claim{ // Texts and a time always encode.
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
	precedence := kube.InTurn
	if s.urgent.Load() {
		precedence = kube.Urgent
	}
	if _, err := t.change(t.ctx, on, precedence, patchFor); err != nil {
		t.opts.Log.WithField(fieldNode, on.name).Warnf("cannot cordon the node: %s; retrying; its drain will cordon the node, too", err)
		return firstPause
	}
	return 0
}
