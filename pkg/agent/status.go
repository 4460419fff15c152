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

// sentence says in one line what nth is doing, for "systemctl status": the work under way, what nth waits for, or what is announced.
func (a *Agent) sentence() string {
	var said string
	e, announced := a.mainEntry()
	switch {
	case a.busy():
		said = a.currentWork()
	case a.node == "" || a.waiting != nil:
		said = "watching"
	case !announced:
		said = "watching; nothing is announced for node " + a.node
	case e.Phase == state.Incomplete && a.work != nil: // Its time is over, so it is not busy, but the guard still evicts.
		said = fmt.Sprintf("node %s was not drained in time for %s; still draining%s", a.node, e.Event.Kind, a.podsGone())
	case e.Phase == state.Drained, e.Phase == state.Cordoned && !e.Released() && !e.LeftAlone:
		said = fmt.Sprintf("node %s is %s for %s", a.node, e.Phase, e.Event.Kind)
	default:
		said = fmt.Sprintf("watching node %s: %s", a.node, a.cfg.Policy.Describe(e))
		if e.Error != "" {
			said += "; the last attempt failed: " + e.Error
		}
	}
	if a.waiting != nil {
		said += "; waiting for the kubelet's credential: " + a.waiting.Error()
	} else if a.node == "" {
		said += "; waiting for the kubelet's credential"
	}
	if kinds, since := a.unread(); len(kinds) > 0 {
		said += fmt.Sprintf("; cannot read %s since %s", strings.Join(kinds, ", "), since.Format("15:04:05"))
	}
	if a.cfg.DryRun {
		said += " (dry run)"
	}
	return said
}

// unread returns the kinds for which looks fail, and since when the first of them do.
func (a *Agent) unread() (kinds []string, since time.Time) {
	for _, kind := range event.Kinds() {
		if !a.failing(kind) {
			continue
		}
		kinds = append(kinds, string(kind))
		if t := a.trouble[kind]; since.IsZero() || t.since.Before(since) {
			since = t.since
		}
	}
	return kinds, since
}

// busy reports whether something is being done to the node: an uncordon, or a guard that still has an event to work for.
func (a *Agent) busy() bool { return a.work != nil && (a.work.task == nil || len(a.unfinished()) > 0) }

// currentWork says what a guard or an uncordon is doing.
func (a *Agent) currentWork() string {
	goal, first := a.work.goal, a.first()
	node := "the node"
	if a.node != "" {
		node = "node " + a.node
	}
	said := fmt.Sprintf("%sing %s: %s", goal.Action, node, goal.Reason)
	if goal.Action == policy.Drain {
		said = fmt.Sprintf("draining %s for %s%s", node, first.Event.Kind, a.podsGone())
	}
	if first.Error != "" {
		said += "; the last attempt failed: " + first.Error
	} else if trouble := a.work.state.Trouble; trouble != "" {
		said += "; " + trouble
	}
	if a.work.targets != "" {
		said += "; " + a.work.targets
	}
	return said
}

// podsGone says, after a colon, how far a drain is, how much time it has, and what holds back pods, each holder once.
func (a *Agent) podsGone() string {
	said := ""
	if a.total > 0 {
		said = fmt.Sprintf(": %d of %s gone", a.total-a.left, text.Pods(a.total))
	}
	if deadline := a.deadline(a.work.goal); deadline.After(a.now()) {
		said += fmt.Sprintf(", %d s left", int(deadline.Sub(a.now()).Seconds()))
	}
	if by := slices.Compact(slices.Sorted(maps.Values(a.work.held))); len(by) > 0 {
		said += ", held by " + strings.Join(by, ", ")
	}
	return said
}

// mainEntry is the entry to show while nothing is being done: the most urgent one, of those that were acted upon and whose cordon
// nobody has lifted, if there are any.
func (a *Agent) mainEntry() (e state.Entry, found bool) {
	open := slices.DeleteFunc(a.cfg.Record.Entries(), func(e state.Entry) bool { return e.Phase == state.Closed })
	if len(open) == 0 {
		return state.Entry{}, false
	}
	rank := func(e state.Entry) int {
		switch {
		case !e.Acted():
			return 2
		case e.Released():
			return 1
		}
		return 0
	}
	return slices.MinFunc(open, func(x, y state.Entry) int {
		return cmp.Or(cmp.Compare(rank(x), rank(y)), a.cfg.Policy.Urgency(x, y))
	}), true
}

// show updates Config.Board. stopped is when the daemon has stopped as it was asked to; zero while it runs.
func (a *Agent) show(stopped time.Time) {
	if a.cfg.Board == nil {
		return
	}
	status := state.Status{
		Version: state.StatusVersion, Started: a.began.Round(0), Updated: a.now(), Stopped: stopped,
		DryRun: a.cfg.DryRun, Node: a.node, Sentence: a.sentence(),
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
	deadline, reason := a.deadline(goal), goal.Reason
	if goal.Action == policy.Drain {
		reason = a.cfg.Policy.Reason(first)
	}
	return &state.StepStatus{
		Action: string(goal.Action), Event: first.Event.ID, Kind: first.Event.Kind, Reason: reason,
		Began: a.work.began.Round(0), Deadline: deadline, Hard: !goal.Hard.IsZero() && deadline.Equal(goal.Hard),
		PodsTotal: a.total, PodsLeft: a.left, HeldBy: maps.Clone(a.work.held), Targets: a.work.targets,
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
