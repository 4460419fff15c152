package notify

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"iter"
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

// wantedCondition derives the condition from the record, without times: True while an event is open that is not ignored,
// with the reason of the one whose deadline is nearest.
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

// openEntries returns the entries that are neither closed nor ignored, the nearest deadline first, those without one
// last, and then in the usual order of their kinds.
func openEntries(entries []state.Entry, rules policy.Settings) []state.Entry {
	open := slices.DeleteFunc(slices.Clone(entries), func(e state.Entry) bool {
		return e.Phase == state.Closed || rules.Ignores(e)
	})
	never := func(e state.Entry) int {
		if e.Event.Deadline.IsZero() {
			return 1
		}
		return 0
	}
	order := func(e state.Entry) int { return e.Event.Kind.Precedence() }
	slices.SortStableFunc(open, func(a, b state.Entry) int {
		return cmp.Or(cmp.Compare(never(a), never(b)), a.Event.Deadline.Compare(b.Event.Deadline), cmp.Compare(order(a), order(b)))
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

// describeEntry says what is announced, what is done about it and how far that is. It has no counts and no time left,
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

// updateCondition makes the node's condition what it should be, and returns when to check it again; zero for never. It
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
		// nth-queue has heard of an interruption that the machine does not tell of: its word stands, with our heartbeat.
		wanted, version = *existing, node.ResourceVersion
	}
	switch {
	case !k.beat.has(wanted) && (existing == nil || existing.Status != corev1.ConditionTrue):
		return time.Time{}, nil // Where nothing was ever announced, there is no condition.
	case existing != nil && sameContent(*existing, wanted) && !k.beat.due(*existing, now):
		return k.beat.next(*existing, now), nil
	case !isChange(existing, wanted) && !k.beat.alive():
		return now.Add(silence), nil
	}
	wanted.LastHeartbeatTime, wanted.LastTransitionTime = metav1.NewTime(now), metav1.NewTime(now)
	if existing != nil && existing.Status == wanted.Status {
		wanted.LastTransitionTime = existing.LastTransitionTime
	}
	k.beat.draw()
	return k.beat.next(wanted, now), patchConditions(ctx, id, version, wanted)
}

// sameContent reports whether two conditions say the same, but for their times.
func sameContent(a, b corev1.NodeCondition) bool {
	return a.Status == b.Status && a.Reason == b.Reason && a.Message == b.Message
}

// patchConditions sends a strategic merge patch: the API server merges conditions by their type, so it contains ours
// alone, and what the kubelet writes at the same time stays. With a resourceVersion, a Node that has changed since is a
// conflict.
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

// The node lifecycle conditions, by which those who look after nodes inform each other (KEP-5683):
// https://kubernetes.io/docs/reference/node/node-lifecycle-conditions/
const (
	drainInProgress       corev1.NodeConditionType = "DrainInProgress"
	nodeDrained           corev1.NodeConditionType = "Drained"
	maintenancePlanned    corev1.NodeConditionType = "MaintenancePlanned"
	maintenanceInProgress corev1.NodeConditionType = "MaintenanceInProgress"
)

// lifecycleGroup is a set of conditions that are written together: nobody is to see a drain that is both in progress and
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

// lifecycleState is what a condition says.
type lifecycleState struct {
	reason, message string
	since           time.Time // by this machine's clock
}

// lifecycle has each condition that is True.
type lifecycle map[corev1.NodeConditionType]lifecycleState

// lifecycleOf derives the lifecycle from the record, and returns when that changes without news; zero for never. If there
// are several events, the nearest one gives the texts.
func lifecycleOf(entries []state.Entry, rules policy.Settings, now time.Time) (l lifecycle, refresh time.Time) {
	l = lifecycle{}
	for _, e := range openEntries(entries, rules) {
		l.addEntry(e, rules, now)
		if at := e.Event.Deadline; at.After(now) && (refresh.IsZero() || at.Before(refresh)) {
			refresh = at
		}
	}
	if _, draining := l[drainInProgress]; draining {
		delete(l, nodeDrained) // It was, before another event came.
	}
	return l, refresh
}

func (l lifecycle) addEntry(e state.Entry, rules policy.Settings, now time.Time) {
	kind, why := e.Event.Kind.Info().Reason, rules.Reason(e)
	switch {
	case isDraining(e):
		reason, prefix, since := drainStarted, "", e.Changed
		if e.Phase == state.Incomplete { // The drain began before that phase did.
			reason, prefix, since = drainOutOfTime, "the drain ran out of time, and goes on; ", startedAt(e)
		}
		l.add(drainInProgress, lifecycleState{reason, prefix + why, since})
		l.add(maintenanceInProgress, lifecycleState{kind, why, startedAt(e)})
	case e.Phase == state.Drained && !e.LeftAlone && !e.Reopened:
		l.add(nodeDrained, lifecycleState{drainCompleted, "no pod is left that a drain evicts; " + why, e.Changed})
		l.add(maintenanceInProgress, lifecycleState{kind, why, startedAt(e)})
	case isOver(e):
	case isDue(e, now):
		l.add(maintenanceInProgress, lifecycleState{kind, why, latest(e.FirstSeen, e.Event.Deadline)})
	case !e.Event.Deadline.IsZero():
		l.add(maintenancePlanned, lifecycleState{kind, why, e.FirstSeen})
	}
}

// isDraining reports whether the node is being drained for an entry's event. A drain that runs out of time goes on.
func isDraining(e state.Entry) bool {
	return !e.LeftAlone && (e.Phase == state.Draining || e.Phase == state.Incomplete && !e.Reopened)
}

// isOver reports whether the entry is being undone because its event is over, and not because it was put off.
func isOver(e state.Entry) bool {
	return e.Phase == state.Undoing && (e.Event.State != event.Pending || !e.Missing.IsZero())
}

// isDue reports whether an entry's event has reached its date, or is local and so needs none.
func isDue(e state.Entry, now time.Time) bool {
	return e.Event.Kind.Local() || !e.Event.Deadline.IsZero() && !e.Event.Deadline.After(now)
}

// startedAt is when work on the node began for an entry's event.
func startedAt(e state.Entry) time.Time {
	if !e.CordonedAt.IsZero() {
		return e.CordonedAt
	}
	return e.Changed
}

// add adds a condition that is True. What is in progress for several events has the first one's texts and the earliest
// start.
func (l lifecycle) add(t corev1.NodeConditionType, s lifecycleState) {
	known, found := l[t]
	switch {
	case !found:
		l[t] = s
	case (t == drainInProgress || t == maintenanceInProgress) && s.since.Before(known.since):
		known.since = s.since
		l[t] = known
	}
}

// state is the one of a group that is True, or else the group's none.
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

// Kubernetes knows no owner of a lifecycle condition, so every writer has to spare those of others. Ownership is what the
// API server remembers of who has set a condition's fields (metadata.managedFields), and every write is conditional on
// the Node that was read: if another write comes between, the Node is read again.

// lifecycleAttempts is how many times a conflicting write is repeated without a pause. A kubelet writes every few seconds
// at most.
const lifecycleAttempts = 5

// updateLifecycle makes those lifecycle conditions that are ours what they should be, and returns when to check them
// again; zero for never.
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
	state, active := wanted.state(group)
	var changes []corev1.NodeCondition
	necessary, contested := false, false
	for _, t := range group.types {
		existing, ours := findCondition(node, t), owned[t]
		_, isTrue := wanted[t]
		if canStay(existing, ours, isTrue, active) {
			continue
		}
		if existing != nil && !ours && (!isTrue || !isReleased(*existing, state.since)) {
			contested = true
			continue
		}
		change := lifecycleCondition(t, isTrue, state, now)
		if ours && existing != nil && existing.Status == change.Status {
			change.LastTransitionTime = existing.LastTransitionTime
		}
		changes = append(changes, change)
		necessary = necessary || existing == nil || !sameContent(*existing, change)
	}
	switch {
	case !necessary:
		return nil
	case contested:
		return slices.DeleteFunc(changes, func(c corev1.NodeCondition) bool { return !clears(c, findCondition(node, c.Type), owned[c.Type]) })
	}
	return changes
}

// canStay reports whether a condition needs no change: it is absent or somebody else's, and as it should be.
func canStay(existing *corev1.NodeCondition, ours, isTrue, active bool) bool {
	switch {
	case existing == nil:
		return !active
	case ours:
		return false
	}
	return !active || !isTrue && existing.Status == corev1.ConditionFalse
}

// clears reports whether a change makes a condition of ours False.
func clears(change corev1.NodeCondition, existing *corev1.NodeCondition, ours bool) bool {
	return change.Status != corev1.ConditionTrue && existing != nil && ours && existing.Status != change.Status
}

func lifecycleCondition(t corev1.NodeConditionType, isTrue bool, state lifecycleState, now time.Time) corev1.NodeCondition {
	c := corev1.NodeCondition{
		Type: t, Status: corev1.ConditionFalse, Reason: state.reason, Message: truncate(state.message),
		LastHeartbeatTime: metav1.NewTime(now), LastTransitionTime: metav1.NewTime(now),
	}
	if isTrue {
		c.Status = corev1.ConditionTrue
	}
	return c
}

// isReleased reports whether somebody else's condition may be taken over for a state that began at since: they have made
// it False before that, so they are done with it. If they made it False later, that is what they say about this state.
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
// that the writer has set to the value that it had stays another one's.
func ownedConditions(node *corev1.Node, writer string) map[corev1.NodeConditionType]bool {
	owned := map[corev1.NodeConditionType]bool{}
	for manager, set := range conditionFields(node) {
		for t, fields := range set {
			delete(fields, ".") // The condition's existence and its type belong to whoever created it.
			delete(fields, "f:type")
			if len(fields) == 0 {
				continue
			}
			others, known := owned[t]
			owned[t] = manager == writer && (!known || others)
		}
	}
	return owned
}

// setByOthers reports whether a condition is True on the Node though a writer does not want that, somebody else has made it so, and none of
// what it says is the writer's.
func setByOthers(node *corev1.Node, wanted corev1.NodeCondition, writer string) bool {
	t := wanted.Type
	if c := findCondition(node, t); wanted.Status == corev1.ConditionTrue || c == nil || c.Status != corev1.ConditionTrue {
		return false
	}
	others := false
	for manager, set := range conditionFields(node) {
		_, status := set[t]["f:status"]
		_, reason := set[t]["f:reason"]
		_, message := set[t]["f:message"]
		if manager == writer && (status || reason || message) {
			return false
		}
		others = others || status
	}
	return others
}

// conditionFields has each writer, and the fields of the Node's conditions that it has set, as the API server remembers it.
func conditionFields(node *corev1.Node) iter.Seq2[string, map[corev1.NodeConditionType]map[string]json.RawMessage] {
	return func(yield func(string, map[corev1.NodeConditionType]map[string]json.RawMessage) bool) {
		for _, m := range node.ManagedFields {
			var fields struct {
				Status struct {
					Conditions map[string]map[string]json.RawMessage `json:"f:conditions"`
				} `json:"f:status"`
			}
			if m.FieldsV1 == nil || json.Unmarshal(m.FieldsV1.GetRawBytes(), &fields) != nil {
				continue
			}
			set := map[corev1.NodeConditionType]map[string]json.RawMessage{}
			for key, of := range fields.Status.Conditions {
				var id struct{ Type corev1.NodeConditionType }
				if text, keyed := strings.CutPrefix(key, "k:"); keyed && json.Unmarshal([]byte(text), &id) == nil {
					set[id.Type] = of
				}
			}
			if !yield(m.Manager, set) {
				return
			}
		}
	}
}
