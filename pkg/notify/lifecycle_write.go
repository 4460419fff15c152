package notify

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Kubernetes knows no owner of a lifecycle condition, so that whoever writes one sees to it that nobody else's is lost. Whose a
// condition is, is what the API server remembers of who has set its fields (metadata.managedFields), and every write is for the Node
// as it was seen: one that comes between makes it be looked at again.

// lifecycleAttempts is how many times a write is made anew that others come before, without a pause. A kubelet writes every few
// seconds at most.
const lifecycleAttempts = 5

// keepLifecycle makes the lifecycle conditions true to the record, as far as they are ours, and returns when to look again; zero for
// never.
func (k *Kubernetes) keepLifecycle(ctx context.Context, id Identity) (again time.Time, err error) {
	for range lifecycleAttempts {
		now := time.Now()
		var holds lifecycle
		holds, again = lifecycleOf(k.opts.Entries(), k.opts.Rules(), now)
		if err = k.writeLifecycle(ctx, id, holds, now); !apierrors.IsConflict(err) {
			return again, err
		}
	}
	return again, err
}

func (k *Kubernetes) writeLifecycle(ctx context.Context, id Identity, holds lifecycle, now time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	node, err := id.Client.CoreV1().Nodes().Get(ctx, id.Node, metav1.GetOptions{})
	if err != nil {
		return err
	}
	mine := conditionsOf(node, k.opts.Writer)
	var changes []corev1.NodeCondition
	for _, group := range lifecycleGroups {
		changes = append(changes, changesOf(group, node, mine, holds, now)...)
	}
	if len(changes) == 0 {
		return nil
	}
	patch, err := conditionPatch(node.ResourceVersion, changes...)
	if err == nil {
		_, err = id.Client.CoreV1().Nodes().PatchStatus(ctx, id.Node, patch)
	}
	return err
}

// changesOf returns the conditions of a group that have to be written. Where nothing of it holds, what is ours is made False, and
// nothing else is touched. Where something does, all of the group are written, but for what somebody else says is False already. If one is
// somebody else's that says otherwise, what is ours and True no longer is made False, and nothing else.
func changesOf(
	group lifecycleGroup, node *corev1.Node, mine map[corev1.NodeConditionType]bool, holds lifecycle, now time.Time,
) []corev1.NodeCondition {
	state, active := holds.state(group)
	var changes []corev1.NodeCondition
	necessary, theirs := false, false
	for _, of := range group.types {
		there, ours := conditionIn(node, of), mine[of]
		_, holding := holds[of]
		if untouched(there, ours, holding, active) {
			continue
		}
		if there != nil && !ours && (!holding || !free(*there, state.since)) {
			theirs = true
			continue
		}
		wanted := stated(of, holding, state, now)
		if ours && there != nil && there.Status == wanted.Status {
			wanted.LastTransitionTime = there.LastTransitionTime
		}
		changes = append(changes, wanted)
		necessary = necessary || there == nil || !sameWords(*there, wanted)
	}
	switch {
	case !necessary:
		return nil
	case theirs:
		return slices.DeleteFunc(changes, func(c corev1.NodeCondition) bool { return !ends(c, conditionIn(node, c.Type), mine[c.Type]) })
	}
	return changes
}

// untouched tells whether nothing is to be said of a condition: it is not there, or somebody else's, and as it should be.
func untouched(there *corev1.NodeCondition, ours, holding, active bool) bool {
	switch {
	case there == nil:
		return !active
	case ours:
		return false
	}
	return !active || !holding && there.Status == corev1.ConditionFalse
}

// ends tells whether a change makes a condition of ours False.
func ends(change corev1.NodeCondition, there *corev1.NodeCondition, ours bool) bool {
	return change.Status != corev1.ConditionTrue && there != nil && ours && there.Status != change.Status
}

// sameWords tells whether two conditions say the same, but for their times.
func sameWords(a, b corev1.NodeCondition) bool {
	return a.Status == b.Status && a.Reason == b.Reason && a.Message == b.Message
}

// stated is a condition that has just become so.
func stated(of corev1.NodeConditionType, holding bool, state observed, now time.Time) corev1.NodeCondition {
	c := corev1.NodeCondition{
		Type: of, Status: corev1.ConditionFalse, Reason: state.reason, Message: cut(state.message),
		LastHeartbeatTime: metav1.NewTime(now), LastTransitionTime: metav1.NewTime(now),
	}
	if holding {
		c.Status = corev1.ConditionTrue
	}
	return c
}

// free tells whether somebody else's condition may be taken for a state that has held since then: they have made it False before
// that, so they are done with it. What they made False later is their word about this very state.
func free(theirs corev1.NodeCondition, since time.Time) bool {
	at := latest(theirs.LastTransitionTime.Time, theirs.LastHeartbeatTime.Time)
	return theirs.Status == corev1.ConditionFalse && !at.IsZero() && at.Before(since.Truncate(time.Second))
}

func conditionIn(node *corev1.Node, of corev1.NodeConditionType) *corev1.NodeCondition {
	for i := range node.Status.Conditions {
		if node.Status.Conditions[i].Type == of {
			return &node.Status.Conditions[i]
		}
	}
	return nil
}

// conditionsOf are the Node's conditions of which a writer has set all that they say, as the API server remembers it. Of one that it has
// set to what was there, another one is remembered.
func conditionsOf(node *corev1.Node, writer string) map[corev1.NodeConditionType]bool {
	mine := map[corev1.NodeConditionType]bool{}
	for _, m := range node.ManagedFields {
		var fields struct {
			Status struct {
				Conditions map[string]map[string]json.RawMessage `json:"f:conditions"`
			} `json:"f:status"`
		}
		if m.FieldsV1 == nil || json.Unmarshal(m.FieldsV1.GetRawBytes(), &fields) != nil {
			continue
		}
		for key, set := range fields.Status.Conditions {
			var id struct{ Type corev1.NodeConditionType }
			text, keyed := strings.CutPrefix(key, "k:")
			delete(set, ".") // That there is one at all, and of which type, is whose it was first.
			delete(set, "f:type")
			if !keyed || json.Unmarshal([]byte(text), &id) != nil || len(set) == 0 {
				continue
			}
			others, known := mine[id.Type]
			mine[id.Type] = m.Manager == writer && (!known || others)
		}
	}
	return mine
}
