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

// StatusWriter shows the status. Show must not block, and must not change what the status refers to.
type StatusWriter interface {
	Show(state.Status)
}

// sentence says in one line what nth is doing, for "systemctl status": the work under way or what is announced, and what nth waits for.
func (a *Agent) sentence() string {
	said := a.doing()
	if a.waiting != nil {
		said += "; waiting for the kubelet's credential: " + a.waiting.Error()
	} else if a.node == "" {
		said += "; waiting for the kubelet's credential"
	}
	for _, d := range a.documents() {
		if d.Trouble != "" {
			said += fmt.Sprintf("; cannot read %s since %s", d.Kind, d.Since.Format("15:04:05"))
		}
	}
	if a.cfg.DryRun {
		said += " (dry run)"
	}
	return said
}

// doing says what is being done to the node, or else what is announced.
func (a *Agent) doing() string {
	e, announced := a.mainEntry()
	switch {
	case a.busy():
		return a.currentWork()
	case !announced && a.node == "":
		return "watching"
	case !announced:
		return "watching; nothing is announced for node " + a.node
	case e.Phase == state.Drained, e.Phase == state.Cordoned && !e.Released() && !e.LeftAlone:
		return fmt.Sprintf("node %s is %s for %s", a.node, e.Phase, e.Event.Kind)
	}
	said := fmt.Sprintf("watching node %s: %s", a.node, a.cfg.Policy.Describe(e))
	if e.Error != "" {
		said += "; the last attempt failed: " + e.Error
	}
	return said
}

// busy reports whether something is being done to the node: an uncordon, or a guard that still has an event to work for.
func (a *Agent) busy() bool {
	return a.work != nil && (a.work.task == nil || a.first().Phase == state.Incomplete || len(a.unfinished()) > 0)
}

// currentWork says what a guard or an uncordon is doing, how far it is, how much time it has, and what holds it up.
func (a *Agent) currentWork() string {
	goal, first := a.work.goal, a.first()
	node := "the node"
	if a.node != "" {
		node = "node " + a.node
	}
	said := fmt.Sprintf("%sing %s: %s", goal.Action, node, goal.Reason)
	if goal.Action == policy.Drain {
		said = fmt.Sprintf("draining %s for %s", node, first.Event.Kind)
		if a.total > 0 {
			said += fmt.Sprintf(": %d of %s gone", a.total-a.left, text.Pods(a.total))
		}
		if left := deadline(goal).Sub(a.now()); left > 0 {
			said += fmt.Sprintf(", %d s left", int(left.Seconds()))
		}
		if by := slices.Compact(slices.Sorted(maps.Values(a.heldBy()))); len(by) > 0 {
			said += ", held by " + strings.Join(by, ", ")
		}
	}
	for _, trouble := range []string{cmp.Or(first.Error, a.work.state.Trouble), a.work.targets} {
		if trouble != "" {
			said += "; " + trouble
		}
	}
	return said
}

// deadline is the one to show for a goal: the hard one if there is one, else the soft one.
func deadline(goal policy.Goal) time.Time { return cmp.Or(goal.Hard, goal.Soft) }

// heldBy says for pods of a drain, as "namespace/name", what holds them back.
func (a *Agent) heldBy() map[string]string {
	if a.work.task == nil {
		return nil
	}
	return a.work.task.Result().HeldBy
}

// mainEntry is the entry to show while nothing is being done: the most urgent one, of those that were acted upon, if there are any.
func (a *Agent) mainEntry() (e state.Entry, found bool) {
	open := slices.DeleteFunc(a.cfg.Record.Entries(), func(e state.Entry) bool { return e.Phase == state.Closed })
	if slices.ContainsFunc(open, state.Entry.Acted) {
		open = slices.DeleteFunc(open, func(e state.Entry) bool { return !e.Acted() })
	}
	if len(open) == 0 {
		return state.Entry{}, false
	}
	return slices.MinFunc(open, a.cfg.Policy.Urgency), true
}

// show updates the status, for the service manager and on Config.Board. stopped is when the daemon has stopped; zero while it runs.
func (a *Agent) show(stopped time.Time) {
	sentence := a.sentence()
	if a.cfg.Service != nil {
		a.cfg.Service.Status("%s", sentence)
	}
	if a.cfg.Board == nil {
		return
	}
	status := state.Status{
		Version: state.StatusVersion, Started: a.began, Updated: a.now(), Stopped: stopped,
		DryRun: a.cfg.DryRun, Node: a.node, Sentence: sentence,
		Step: a.stepStatus(), Events: []state.EventStatus{}, Documents: a.documents(), Off: []state.OffStatus{},
	}
	if a.waiting != nil {
		status.Identity.Trouble = a.waiting.Error()
	}
	for _, e := range a.cfg.Record.Entries() {
		if e.Phase != state.Closed {
			status.Events = append(status.Events, e.Status(a.cfg.Policy.Describe(e)))
		}
	}
	a.cfg.Board.Show(status)
}

// stepStatus describes the step under way; nil if there is none.
func (a *Agent) stepStatus() *state.StepStatus {
	if !a.busy() {
		return nil
	}
	goal, first := a.work.goal, a.first()
	reason := goal.Reason
	if goal.Action == policy.Drain {
		reason = first.Event.Summary()
	}
	return &state.StepStatus{
		Action: string(goal.Action), Event: first.Event.ID, Kind: first.Event.Kind, Reason: reason,
		Began: a.work.began.Round(0), Deadline: deadline(goal), Hard: !goal.Hard.IsZero(),
		PodsTotal: a.total, PodsLeft: a.left, HeldBy: a.heldBy(), Targets: a.work.targets,
	}
}

// documents returns how polling goes for each kind that is looked for, apart from those that the machine itself announces.
func (a *Agent) documents() []state.DocumentStatus {
	all := []state.DocumentStatus{}
	for _, kind := range event.Kinds() {
		good, looked := a.looked[kind]
		trouble, bad := a.trouble[kind]
		if kind.Local() || !looked && !bad { // The machine announces it, or there was no look yet.
			continue
		}
		document := state.DocumentStatus{Kind: kind, LastGood: good}
		if a.failing(kind) {
			document.Trouble, document.Since = trouble.err, trouble.since
		}
		all = append(all, document)
	}
	return all
}
