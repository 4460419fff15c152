package notify

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/record"
)

// The node's lifecycle conditions, by which Kubernetes lets those who look after nodes tell each other (KEP-5683):
// https://kubernetes.io/docs/reference/node/node-lifecycle-conditions/
const (
	drainInProgress       corev1.NodeConditionType = "DrainInProgress"
	nodeDrained           corev1.NodeConditionType = "Drained"
	maintenancePlanned    corev1.NodeConditionType = "MaintenancePlanned"
	maintenanceInProgress corev1.NodeConditionType = "MaintenanceInProgress"
)

// lifecycleGroup are conditions that are written together: nobody is to see a drain that goes on and is done.
type lifecycleGroup struct {
	types []corev1.NodeConditionType
	none  observed // is said where none of them holds
}

var lifecycleGroups = []lifecycleGroup{
	{[]corev1.NodeConditionType{drainInProgress, nodeDrained}, observed{reason: "NotDraining", message: "the node is not being drained"}},
	{[]corev1.NodeConditionType{maintenancePlanned}, observed{reason: "NothingPlanned", message: "no maintenance is to come"}},
	{[]corev1.NodeConditionType{maintenanceInProgress}, observed{reason: "NothingInProgress", message: "no maintenance is in progress"}},
}

// The reasons of the conditions about a drain. Those about maintenance have the reasons of the interruption.
const (
	drainStarted   = "DrainStarted"
	drainOutOfTime = "DrainOutOfTime"
	drainCompleted = "DrainCompleted"
)

// observed is a state of the node that holds.
type observed struct {
	reason, message string
	since           time.Time // by this machine's clock
}

// lifecycle is the node's life as the record has it: each state that holds.
type lifecycle map[corev1.NodeConditionType]observed

// lifecycleOf is what the record makes of the node's life now, and when to look again without news; zero for never. Of several
// events the nearest gives the words.
func lifecycleOf(entries []record.Entry, rules policy.Settings, now time.Time) (holds lifecycle, again time.Time) {
	holds = lifecycle{}
	open := slices.DeleteFunc(slices.Clone(entries), func(e record.Entry) bool {
		return e.Phase == record.Closed || rules.Ignores(e)
	})
	slices.SortStableFunc(open, nearest)
	for _, e := range open {
		holds.take(e, rules, now)
		if at := e.Event.Deadline; at.After(now) && (again.IsZero() || at.Before(again)) {
			again = at
		}
	}
	if _, draining := holds[drainInProgress]; draining {
		delete(holds, nodeDrained) // It was, before another event came.
	}
	return holds, again
}

// take notes what an entry that is open says of the node.
func (l lifecycle) take(e record.Entry, rules policy.Settings, now time.Time) {
	kind, why := cmp.Or(conditionReasons[e.Event.Kind], "Other"), rules.Reason(e)
	switch {
	case isDraining(e):
		reason, words, since := drainStarted, "", e.Changed
		if e.Phase == record.Incomplete { // It began before that.
			reason, words, since = drainOutOfTime, "the drain ran out of time, and goes on; ", begun(e)
		}
		l.note(drainInProgress, observed{reason, words + why, since})
		l.note(maintenanceInProgress, observed{kind, why, begun(e)})
	case e.Phase == record.Drained && !e.LeftAlone && !e.Reopened:
		l.note(nodeDrained, observed{drainCompleted, "no pod is left that a drain evicts; " + why, e.Changed})
		l.note(maintenanceInProgress, observed{kind, why, begun(e)})
	case isOver(e):
	case isDue(e, now):
		l.note(maintenanceInProgress, observed{kind, why, latest(e.FirstSeen, e.Event.Deadline)})
	case !e.Event.Deadline.IsZero():
		l.note(maintenancePlanned, observed{kind, why, e.FirstSeen})
	}
}

// isDraining tells whether the node is being drained for an entry's event. What runs out of time goes on.
func isDraining(e record.Entry) bool {
	return !e.LeftAlone && (e.Phase == record.Draining || e.Phase == record.Incomplete && !e.Reopened)
}

// isOver tells whether what was done for an entry's event is taken back since the event is over, and not since it was put off.
func isOver(e record.Entry) bool {
	return e.Phase == record.Undoing && (e.Event.State != event.Pending || !e.Missing.IsZero())
}

// isDue tells whether an entry's event has come to its date, or has none since it is there already.
func isDue(e record.Entry, now time.Time) bool {
	return e.Event.Kind.Local() || !e.Event.Deadline.IsZero() && !e.Event.Deadline.After(now)
}

// begun is when the node was taken for an entry's event.
func begun(e record.Entry) time.Time {
	if !e.CordonedAt.IsZero() {
		return e.CordonedAt
	}
	return e.Changed
}

// note notes a state that holds. Of what is in progress for several events the first one's words are kept, and the time since when it is.
func (l lifecycle) note(of corev1.NodeConditionType, o observed) {
	known, there := l[of]
	switch {
	case !there:
		l[of] = o
	case (of == drainInProgress || of == maintenanceInProgress) && o.since.Before(known.since):
		known.since = o.since
		l[of] = known
	}
}

// state is the one of a group that holds, if one does, and else what is said of all.
func (l lifecycle) state(group lifecycleGroup) (o observed, holds bool) {
	for _, of := range group.types {
		if o, holds = l[of]; holds {
			return o, true
		}
	}
	return group.none, false
}

func latest(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}
