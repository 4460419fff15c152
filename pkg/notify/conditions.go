package notify

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
)

// ConditionType is the type of nth's own condition.
const ConditionType = "InterruptionPending"

// nothingPending is the reason of a condition that is False.
const nothingPending = "NothingPending"

// wantedCondition derives the condition from the record, without times. It is True while there are open entries, with the reason
// of the first.
func wantedCondition(entries []state.Entry, rules policy.Settings) corev1.NodeCondition {
	open := openEntries(entries, rules)
	if len(open) == 0 {
		return corev1.NodeCondition{
			Type: ConditionType, Status: corev1.ConditionFalse,
			Reason: nothingPending, Message: "nothing is announced for this machine",
		}
	}
	sentences := make([]string, len(open))
	for i, e := range open {
		sentences[i] = describeEntry(e, rules)
	}
	return corev1.NodeCondition{
		Type: ConditionType, Status: corev1.ConditionTrue,
		Reason:  open[0].Event.Kind.Info().Reason,
		Message: truncate(strings.Join(sentences, ". Also: ")),
	}
}

// openEntries returns the entries that are neither closed nor ignored, by their deadlines, entries without a deadline
// last, and then by the precedence of their kinds.
func openEntries(entries []state.Entry, rules policy.Settings) []state.Entry {
	open := slices.DeleteFunc(slices.Clone(entries), func(e state.Entry) bool {
		return e.Phase == state.Closed || rules.Ignores(e)
	})
	never := time.Unix(1<<40, 0)
	deadline := func(e state.Entry) time.Time { return cmp.Or(e.Event.Deadline, never) }
	slices.SortStableFunc(open, func(a, b state.Entry) int {
		return cmp.Or(deadline(a).Compare(deadline(b)), cmp.Compare(a.Event.Kind.Precedence(), b.Event.Kind.Precedence()))
	})
	return open
}

// phaseTexts say how far nth has come with an event.
var phaseTexts = map[state.Phase]string{
	state.Cordoning:  "the node is being cordoned",
	state.Cordoned:   "the node is cordoned",
	state.Draining:   "the node is being drained",
	state.Drained:    "the node is drained",
	state.Incomplete: "the drain ran out of time",
	state.Undoing:    "what was done is being undone",
}

// describeEntry says what is announced, what is done about it and how far that is. It contains no counts and no remaining time,
// so that it changes only when something happens.
func describeEntry(e state.Entry, rules policy.Settings) string {
	var notes []string
	switch text := phaseTexts[e.Phase]; {
	case e.LeftAlone, e.LeftOpen(): // Describe says so.
	case e.Reopened && (e.Phase == state.Cordoned || e.Phase == state.Drained):
		notes = append(notes, "someone uncordoned the node")
	case text != "":
		notes = append(notes, text)
	}
	if !e.Missing.IsZero() {
		notes = append(notes, "it is no longer announced")
	}
	text := rules.Describe(e)
	if len(notes) > 0 {
		text += " (" + strings.Join(notes, "; ") + ")"
	}
	return text
}

// updateCondition brings the node's condition up to date, and returns when to check it again; zero for never. It
// reads the Node first, so that the condition is written only if it has to change.
func (k *Kubernetes) updateCondition(ctx context.Context, id Identity) (refresh time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	wanted := dryRunCondition()
	if !k.opts.DryRun {
		wanted = wantedCondition(k.opts.Entries(), k.opts.Rules())
	}
	node, err := id.Client.CoreV1().Nodes().Get(ctx, id.Node, metav1.GetOptions{})
	if err != nil {
		return k.beat.next(wanted, time.Now()), err
	}
	now := time.Now()
	existing := findCondition(node, ConditionType)
	version := ""
	if setByOthers(node, wanted, k.opts.Writer) {
		if k.opts.Heartbeat == 0 {
			return time.Time{}, nil
		}
		// nth-queue knows of an interruption that the machine does not: its condition stays, with our heartbeat.
		wanted, version = *existing, node.ResourceVersion
	}
	switch {
	case !k.beat.has(wanted) && (existing == nil || existing.Status != corev1.ConditionTrue):
		return time.Time{}, nil // Where nothing was ever announced, there is no condition.
	case existing != nil && sameContent(*existing, wanted) && !k.beat.due(*existing, now):
		return k.beat.next(*existing, now), nil
	case !isChange(existing, wanted) && !k.alive():
		return now.Add(silence), nil
	}
	wanted.LastHeartbeatTime, wanted.LastTransitionTime = metav1.NewTime(now), metav1.NewTime(now)
	if existing != nil && existing.Status == wanted.Status {
		wanted.LastTransitionTime = existing.LastTransitionTime
	}
	k.beat.draw()
	return k.beat.next(wanted, now), patchConditions(ctx, id, version, wanted)
}

// sameContent reports whether two conditions are equal but for their times.
func sameContent(a, b corev1.NodeCondition) bool {
	return a.Status == b.Status && a.Reason == b.Reason && a.Message == b.Message
}

// patchConditions sends a strategic merge patch: the API server merges conditions by their type, so the patch contains only ours,
// and what the kubelet writes at the same time stays. With a resourceVersion, it is a conflict if the Node has changed since.
func patchConditions(ctx context.Context, id Identity, resourceVersion string, conditions ...corev1.NodeCondition) error {
	content := map[string]any{"status": map[string]any{"conditions": conditions}}
	if resourceVersion != "" {
		content["metadata"] = map[string]any{"resourceVersion": resourceVersion}
	}
	patch, err := json.Marshal(content)
	if err != nil {
		return fmt.Errorf("encoding conditions: %w", err)
	}
	_, err = id.Client.CoreV1().Nodes().PatchStatus(ctx, id.Node, patch)
	return err
}

// The node lifecycle conditions, by which programs that manage nodes inform each other (KEP-5683):
// https://kubernetes.io/docs/reference/node/node-lifecycle-conditions/
const (
	drainInProgress       corev1.NodeConditionType = "DrainInProgress"
	nodeDrained           corev1.NodeConditionType = "Drained"
	maintenancePlanned    corev1.NodeConditionType = "MaintenancePlanned"
	maintenanceInProgress corev1.NodeConditionType = "MaintenanceInProgress"
)

// lifecycleGroup is a set of conditions that are written together, so that nobody sees a drain that is both in progress and
// done.
type lifecycleGroup struct {
	types []corev1.NodeConditionType
	none  lifecycleState // if none of them is True
}

var lifecycleGroups = []lifecycleGroup{
	{[]corev1.NodeConditionType{drainInProgress, nodeDrained}, lifecycleState{reason: "NotDraining", message: "the node is not being drained"}},
	{[]corev1.NodeConditionType{maintenancePlanned}, lifecycleState{reason: "NothingPlanned", message: "no maintenance is to come"}},
	{[]corev1.NodeConditionType{maintenanceInProgress}, lifecycleState{reason: "NothingInProgress", message: "no maintenance is in progress"}},
}

// The reasons of the conditions about a drain. Those about maintenance have the reasons of the interruption.
const (
	drainStarted   = "DrainStarted"
	drainOutOfTime = "DrainOutOfTime"
	drainCompleted = "DrainCompleted"
)

// lifecycleState is the content of a condition.
type lifecycleState struct {
	reason, message string
	since           time.Time // by this machine's clock
}

// lifecycle has the conditions that are True.
type lifecycle map[corev1.NodeConditionType]lifecycleState

// lifecycleOf derives the lifecycle from the record, and returns when it changes by itself; zero for never. Of several
// events, the one with the nearest deadline gives the texts.
func lifecycleOf(entries []state.Entry, rules policy.Settings, now time.Time) (l lifecycle, refresh time.Time) {
	l = lifecycle{}
	for _, e := range openEntries(entries, rules) {
		l.addEntry(e, rules, now)
		if at := e.Event.Deadline; at.After(now) && (refresh.IsZero() || at.Before(refresh)) {
			refresh = at
		}
	}
	if _, draining := l[drainInProgress]; draining {
		delete(l, nodeDrained) // It was drained before another event came.
	}
	return l, refresh
}

func (l lifecycle) addEntry(e state.Entry, rules policy.Settings, now time.Time) {
	kind, why := e.Event.Kind.Info().Reason, rules.Reason(e)
	started := cmp.Or(e.CordonedAt, e.Changed) // the work on the node
	switch {
	case e.Phase == state.Draining && !e.LeftAlone:
		l.add(drainInProgress, lifecycleState{drainStarted, why, e.Changed})
		l.add(maintenanceInProgress, lifecycleState{kind, why, started})
	case e.Phase == state.Incomplete && !e.LeftAlone && !e.Reopened: // The drain began before that phase did, and goes on.
		l.add(drainInProgress, lifecycleState{drainOutOfTime, "the drain ran out of time, and goes on; " + why, started})
		l.add(maintenanceInProgress, lifecycleState{kind, why, started})
	case e.Phase == state.Drained && !e.LeftAlone && !e.Reopened:
		l.add(nodeDrained, lifecycleState{drainCompleted, "no pod is left that a drain evicts; " + why, e.Changed})
		l.add(maintenanceInProgress, lifecycleState{kind, why, started})
	case isOver(e):
	case isDue(e, now):
		l.add(maintenanceInProgress, lifecycleState{kind, why, latest(e.FirstSeen, e.Event.Deadline)})
	case !e.Event.Deadline.IsZero():
		l.add(maintenancePlanned, lifecycleState{kind, why, e.FirstSeen})
	}
}

// isOver reports whether an entry is being undone because its event is over, and not because the event was put off.
func isOver(e state.Entry) bool {
	return e.Phase == state.Undoing && (e.Event.State != event.Pending || !e.Missing.IsZero())
}

// isDue reports whether an entry's event has reached its date, or is local and needs none.
func isDue(e state.Entry, now time.Time) bool {
	return e.Event.Kind.Local() || !e.Event.Deadline.IsZero() && !e.Event.Deadline.After(now)
}

// add adds a condition that is True. What is in progress for several events has the first one's texts and the earliest
// start.
func (l lifecycle) add(t corev1.NodeConditionType, s lifecycleState) {
	if known, found := l[t]; found {
		inProgress := t == drainInProgress || t == maintenanceInProgress
		if !inProgress || !s.since.Before(known.since) {
			return
		}
		s.reason, s.message = known.reason, known.message
	}
	l[t] = s
}

// state returns the state of the condition of a group that is True, or else the group's none.
func (l lifecycle) state(group lifecycleGroup) (s lifecycleState, active bool) {
	for _, t := range group.types {
		if s, active = l[t]; active {
			return s, true
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

// Lifecycle conditions have no owner in Kubernetes, so every writer must leave those of others alone. A condition is ours if
// metadata.managedFields says that we have set its fields. Every write names the version of the Node that was read; after a
// conflict, the Node is read again.

// lifecycleAttempts is how many times a conflicting write is tried without a pause. A kubelet writes every few seconds
// at most.
const lifecycleAttempts = 5

// updateLifecycle brings our lifecycle conditions up to date, and returns when to check them again; zero for never.
func (k *Kubernetes) updateLifecycle(ctx context.Context, id Identity) (refresh time.Time, err error) {
	for range lifecycleAttempts {
		now := time.Now()
		var wanted lifecycle
		wanted, refresh = lifecycleOf(k.opts.Entries(), k.opts.Rules(), now)
		if err = k.writeLifecycle(ctx, id, wanted, now); !apierrors.IsConflict(err) {
			return refresh, err
		}
	}
	return refresh, err
}

func (k *Kubernetes) writeLifecycle(ctx context.Context, id Identity, wanted lifecycle, now time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	node, err := id.Client.CoreV1().Nodes().Get(ctx, id.Node, metav1.GetOptions{})
	if err != nil {
		return err
	}
	owned := ownedConditions(node, k.opts.Writer)
	var changes []corev1.NodeCondition
	for _, group := range lifecycleGroups {
		changes = append(changes, groupChanges(group, node, owned, wanted, now)...)
	}
	if len(changes) == 0 {
		return nil
	}
	return patchConditions(ctx, id, node.ResourceVersion, changes...)
}

// groupChanges returns the conditions of a group that have to be written. If none is to be True, ours are made False, and
// nothing else is touched. If one is, all of the group are written, except those that somebody else has set to False
// already. If somebody else says otherwise in one of them, only ours that are no longer True are made False.
func groupChanges(
	group lifecycleGroup, node *corev1.Node, owned map[corev1.NodeConditionType]bool, wanted lifecycle, now time.Time,
) []corev1.NodeCondition {
	text, active := wanted.state(group)
	var changes, clearing []corev1.NodeCondition
	necessary, contested := false, false
	for _, t := range group.types {
		existing := findCondition(node, t)
		ours, theirs := existing, existing
		if owned[t] {
			theirs = nil
		} else {
			ours = nil
		}
		_, isTrue := wanted[t]
		switch {
		case canStay(ours, theirs, isTrue, active):
			continue
		case theirs != nil && (!isTrue || !isReleased(*theirs, text.since)):
			contested = true
			continue
		}
		change := lifecycleCondition(t, isTrue, text, ours, now)
		changes = append(changes, change)
		if ours != nil && !isTrue && ours.Status != change.Status {
			clearing = append(clearing, change)
		}
		necessary = necessary || existing == nil || !sameContent(*existing, change)
	}
	switch {
	case !necessary:
		return nil
	case contested:
		return clearing
	}
	return changes
}

// canStay reports whether a condition needs no change: it is absent or somebody else's, and as it should be.
func canStay(ours, theirs *corev1.NodeCondition, isTrue, active bool) bool {
	if theirs != nil && !isTrue && theirs.Status == corev1.ConditionFalse {
		return true
	}
	return ours == nil && !active
}

// lifecycleCondition returns a condition that takes the place of ours, which is nil if there is none.
func lifecycleCondition(t corev1.NodeConditionType, isTrue bool, text lifecycleState, ours *corev1.NodeCondition, now time.Time) corev1.NodeCondition {
	c := corev1.NodeCondition{
		Type: t, Status: corev1.ConditionFalse, Reason: text.reason, Message: truncate(text.message),
		LastHeartbeatTime: metav1.NewTime(now), LastTransitionTime: metav1.NewTime(now),
	}
	if isTrue {
		c.Status = corev1.ConditionTrue
	}
	if ours != nil && ours.Status == c.Status {
		c.LastTransitionTime = ours.LastTransitionTime
	}
	return c
}

// isReleased reports whether somebody else's condition may be taken over for a state that began at since: it may if they made it False
// before that, as they are done with it then. If they made it False later, that is their word about this very state.
func isReleased(theirs corev1.NodeCondition, since time.Time) bool {
	at := latest(theirs.LastTransitionTime.Time, theirs.LastHeartbeatTime.Time)
	return theirs.Status == corev1.ConditionFalse && !at.IsZero() && at.Before(since.Truncate(time.Second))
}

func findCondition(node *corev1.Node, t corev1.NodeConditionType) *corev1.NodeCondition {
	for i := range node.Status.Conditions {
		if node.Status.Conditions[i].Type == t {
			return &node.Status.Conditions[i]
		}
	}
	return nil
}

// ownedConditions are the Node's conditions of which a writer has set all fields, as the API server remembers it. A field
// that the writer has set to the value that it already had belongs to somebody else still.
func ownedConditions(node *corev1.Node, writer string) map[corev1.NodeConditionType]bool {
	owned := map[corev1.NodeConditionType]bool{}
	for t, fields := range fieldManagers(node) {
		delete(fields, ".") // The condition's existence and its type belong to whoever created it.
		delete(fields, "f:type")
		managers := slices.Concat(slices.Collect(maps.Values(fields))...)
		owned[t] = len(managers) > 0 && !slices.ContainsFunc(managers, func(m string) bool { return m != writer })
	}
	return owned
}

// setByOthers reports whether a condition is True on the Node although a writer does not want that, and neither its status nor its
// texts are the writer's.
func setByOthers(node *corev1.Node, wanted corev1.NodeCondition, writer string) bool {
	c := findCondition(node, wanted.Type)
	if wanted.Status == corev1.ConditionTrue || c == nil || c.Status != corev1.ConditionTrue {
		return false
	}
	fields := fieldManagers(node)[wanted.Type]
	return len(fields["f:status"]) > 0 && !slices.Contains(slices.Concat(fields["f:status"], fields["f:reason"], fields["f:message"]), writer)
}

// fieldManagers has who has set each field of each of the Node's conditions, as the API server remembers it.
func fieldManagers(node *corev1.Node) map[corev1.NodeConditionType]map[string][]string {
	managers := map[corev1.NodeConditionType]map[string][]string{}
	for _, m := range node.ManagedFields {
		var set struct {
			Status struct {
				Conditions map[string]map[string]json.RawMessage `json:"f:conditions"`
			} `json:"f:status"`
		}
		if m.FieldsV1 == nil || json.Unmarshal(m.FieldsV1.GetRawBytes(), &set) != nil {
			continue
		}
		for key, fields := range set.Status.Conditions {
			var id struct{ Type corev1.NodeConditionType }
			text, keyed := strings.CutPrefix(key, "k:")
			if !keyed || json.Unmarshal([]byte(text), &id) != nil {
				continue
			}
			if managers[id.Type] == nil {
				managers[id.Type] = map[string][]string{}
			}
			for field := range fields {
				managers[id.Type][field] = append(managers[id.Type][field], m.Manager)
			}
		}
	}
	return managers
}
