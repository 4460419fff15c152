package agent

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/text"
)

// StatusWriter shows the status to operators.
type StatusWriter interface {
	// Show must not block, except for the last status, and must not change what the status refers to.
	Show(state.Status)
}

// sentence says in one line what nth is doing, for "systemctl status": the work in progress or what is announced, and what nth waits for.
func (a *Agent) sentence() string {
	said := a.doing()
	if a.noCredential != nil {
		said += "; cannot drain the node until the kubelet's credential is confirmed: " + a.noCredential.Error()
	} else if a.node == "" {
		said += "; waiting for the kubelet's credential"
	}
	for _, d := range a.documents() {
		if d.Trouble != "" {
			said += fmt.Sprintf("; cannot check for %s events since %s", d.Kind, d.Since.Format("15:04:05"))
		}
	}
	if a.cfg.DryRun {
		said += " (dry run)"
	}
	return said
}

// doing says what is being done to the node, or else how far nth came with the most urgent event.
func (a *Agent) doing() string {
	if a.busy() {
		return a.currentWork()
	}
	e, found := a.mainEntry()
	staysCordoned := e.Phase == state.Cordoned && !e.Released() && !e.LeftAlone
	switch {
	case !found && a.node == "":
		return "watching"
	case !found:
		return "watching; nothing is announced for node " + a.node
	case e.Phase == state.Drained && !e.Released() || staysCordoned:
		return fmt.Sprintf("%s is %s for %s", a.nodeInWords(), e.Phase, e.Event.Kind)
	}
	said := fmt.Sprintf("watching %s: %s", a.nodeInWords(), a.cfg.Policy.Describe(e))
	if e.Error != "" {
		said += "; the last attempt failed: " + e.Error
	}
	return said
}

// nodeInWords names the node in a sentence, with its name if that is known.
func (a *Agent) nodeInWords() string {
	if a.node == "" {
		return "the node"
	}
	return "node " + a.node
}

// busy reports whether something is being done to the node: an uncordon, or a guard that does more than keep the node cordoned.
func (a *Agent) busy() bool {
	if a.work == nil {
		return false
	}
	if a.work.task == nil { // This is an uncordon.
		return true
	}
	return len(a.unfinished()) > 0 || a.first().Phase == state.Incomplete // A drain that ran out of time continues.
}

// currentWork says what the work in progress is, how far it has come, how much time is left, and what holds it up.
func (a *Agent) currentWork() string {
	goal, first, node := a.work.goal, a.first(), a.nodeInWords()
	said := fmt.Sprintf("%sing %s: %s", goal.Action, node, goal.Reason) // cordoning or uncordoning
	if goal.Action == policy.Drain {
		said = fmt.Sprintf("draining %s for %s", node, first.Event.Kind)
		if a.total > 0 {
			said += fmt.Sprintf(": %d of %s gone", a.total-a.left, text.Pods(a.total))
		}
		if left := deadline(goal).Sub(a.now()); left > 0 { // Not so without a deadline, which is zero.
			said += fmt.Sprintf(", %d s left", int(left.Seconds()))
		}
		if holders := slices.Compact(slices.Sorted(maps.Values(a.heldBy()))); len(holders) > 0 {
			said += ", held by " + strings.Join(holders, ", ")
		}
	}
	for _, trouble := range []string{cmp.Or(first.Error, a.work.state.Trouble), a.work.targets} {
		if trouble != "" {
			said += "; " + trouble
		}
	}
	return said
}

// deadline returns the deadline to show for a goal: Hard, or else Soft; zero if there is none.
func deadline(goal policy.Goal) time.Time { return cmp.Or(goal.Hard, goal.Soft) }

// heldBy says for pods of a drain, as "namespace/name", what holds them back. It returns nil during an uncordon.
func (a *Agent) heldBy() map[string]string {
	if a.work.task == nil {
		return nil
	}
	return a.work.task.Result().HeldBy
}

// mainEntry returns the entry to show while nothing is being done: that of the event for which a guard keeps the node as it is, or else the most
// urgent entry that was acted upon, or else the most urgent of all that are not closed. found is false if all are closed.
func (a *Agent) mainEntry() (e state.Entry, found bool) {
	if a.work != nil {
		return a.entry(a.work.goal.Event.ID), true
	}
	open := slices.DeleteFunc(a.cfg.Record.Entries(), func(e state.Entry) bool { return e.Phase == state.Closed })
	if slices.ContainsFunc(open, state.Entry.Acted) {
		open = slices.DeleteFunc(open, func(e state.Entry) bool { return !e.Acted() })
	}
	if len(open) == 0 {
		return state.Entry{}, false
	}
	return slices.MinFunc(open, a.cfg.Policy.Urgency), true
}

// show updates the status that the service manager shows, and the status on Config.Board.
func (a *Agent) show() {
	sentence := a.sentence()
	if a.cfg.Service != nil {
		a.cfg.Service.Status("%s", sentence)
	}
	if a.cfg.Board == nil {
		return
	}
	status := state.Status{
		Version: state.StatusVersion, Started: a.began, Updated: a.now(), Stopped: a.stopped,
		DryRun: a.cfg.DryRun, Node: a.node, Sentence: sentence,
		Step: a.stepStatus(), Events: []state.EventStatus{}, Documents: a.documents(), Off: []state.OffStatus{},
	}
	if a.noCredential != nil {
		status.Identity.Trouble = a.noCredential.Error()
	}
	for _, e := range a.cfg.Record.Entries() {
		if e.Phase != state.Closed {
			status.Events = append(status.Events, e.Status(a.cfg.Policy.Describe(e)))
		}
	}
	a.cfg.Board.Show(status)
}

// stepStatus describes the work in progress; nil if nothing is being done.
func (a *Agent) stepStatus() *state.StepStatus {
	if !a.busy() {
		return nil
	}
	goal, first := a.work.goal, a.first()
	reason := goal.Reason
	if goal.Action == policy.Drain { // The status is about the most urgent event, and goal.Reason about goal.Event, which prefers one that is not released.
		reason = first.Event.Summary()
	}
	return &state.StepStatus{
		Action: string(goal.Action), Event: first.Event.ID, Kind: first.Event.Kind, Reason: reason,
		Began: a.work.began, Deadline: deadline(goal), Hard: !goal.Hard.IsZero(),
		PodsTotal: a.total, PodsLeft: a.left, HeldBy: a.heldBy(), Targets: a.work.targets,
	}
}

// documents says for each kind of event that the metadata service announces whether its documents can be read.
func (a *Agent) documents() []state.DocumentStatus {
	all := []state.DocumentStatus{}
	for _, kind := range event.PolledKinds() {
		lastGood, hasAnswered := a.lastGood[kind]
		if !hasAnswered && !a.lastLookFailed(kind) { // No look has ended yet.
			continue
		}
		document := state.DocumentStatus{Kind: kind, LastGood: lastGood}
		if a.lastLookFailed(kind) {
			document.Trouble, document.Since = a.outages[kind].err, a.outages[kind].since
		}
		all = append(all, document)
	}
	return all
}
