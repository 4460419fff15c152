package agent

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/text"
)

// status updates the sentence that "systemctl status nth" shows, and the status that Config.Board shows.
func (a *Agent) status() {
	if a.cfg.Service == nil && a.cfg.Board == nil {
		return
	}
	sentence := a.sentence()
	if a.cfg.Service != nil {
		a.cfg.Service.Status("%s", sentence)
	}
	a.show(sentence)
}

// sentence says in one line what nth is doing, for "systemctl status".
func (a *Agent) sentence() string {
	sentence := a.activity()
	if since := a.outage(); !since.IsZero() {
		sentence += fmt.Sprintf("; metadata service unreachable since %s", since.Format("15:04:05"))
	}
	if a.cfg.DryRun {
		sentence += " (dry run)"
	}
	return sentence
}

// activity is the first part of sentence: what nth is doing now, or what it waits for.
func (a *Agent) activity() string {
	if a.busy() {
		return a.currentWork()
	}
	if a.node == "" || a.waiting != nil {
		why := "watching; waiting for the kubelet's credential"
		if a.waiting != nil {
			why += ": " + a.waiting.Error()
		}
		return why
	}
	e, ok := a.mainEntry()
	if !ok {
		if unread := a.unread(); len(unread) > 0 && a.outage().IsZero() { // An outage of all sources is reported anyhow.
			return fmt.Sprintf("watching node %s; not known whether there is: %s", a.node, strings.Join(unread, ", "))
		}
		return fmt.Sprintf("watching; nothing is announced for node %s", a.node)
	}
	if e.Phase == state.Seen || e.Released() || e.LeftAlone || e.LeftOpen() {
		return fmt.Sprintf("watching node %s: %s", a.node, a.cfg.Policy.Describe(e))
	}
	return a.pastWork(e)
}

// unread returns the kinds for which every look since the start has failed.
func (a *Agent) unread() []string {
	var kinds []string
	for _, kind := range event.Kinds() {
		_, known := a.known[kind]
		if _, bad := a.trouble[kind]; bad && !known {
			kinds = append(kinds, string(kind))
		}
	}
	return kinds
}

// pastWork is activity while no event has work left (busy): it says what was done for e, the most urgent entry. A guard (Agent.work) may still
// wait for pods then.
func (a *Agent) pastWork(e state.Entry) string {
	said := fmt.Sprintf("node %s is %s for %s", a.node, e.Phase, e.Event.Kind)
	switch e.Phase {
	case state.Undoing:
		return fmt.Sprintf("node %s, cordoned for %s, is to be uncordoned%s", a.node, e.Event.Kind, lastError(e))
	case state.Cordoning, state.Draining: // For example, the machine has rebooted, and its document cannot be read.
		return fmt.Sprintf("node %s is to be %sed for %s, once that is confirmed", a.node, actions[e.Phase], e.Event.Kind)
	case state.Incomplete:
		said = fmt.Sprintf("node %s was not drained in time for %s", a.node, e.Event.Kind)
		if a.work != nil {
			said += "; still draining"
		}
		if a.work != nil && a.total > 0 {
			said += fmt.Sprintf(": %d of %s gone%s", a.total-a.left, text.Pods(a.total), a.work.holders())
		}
	case state.Drained:
		if a.work != nil && a.left > 0 {
			said += fmt.Sprintf("; not gone yet: %s%s", text.Pods(a.left), a.work.holders())
		}
	case state.Seen, state.Cordoned, state.Closed:
	}
	return said
}

// lastError says why the last attempt for an entry failed; empty if it did not.
func lastError(e state.Entry) string {
	if e.Error == "" {
		return ""
	}
	return "; the last attempt failed: " + e.Error
}

// busy reports whether something is being done to the node: an uncordon, or a guard that still has an event to work for.
func (a *Agent) busy() bool { return a.work != nil && (a.work.task == nil || len(a.unfinished()) > 0) }

// currentWork is activity while a guard or an uncordon is at work.
func (a *Agent) currentWork() string {
	goal, first := a.work.goal, a.first()
	node := "the node"
	if a.node != "" {
		node = "node " + a.node
	}
	left := ""
	if deadline := a.deadline(goal); !deadline.IsZero() {
		left = fmt.Sprintf(", %d s left", int(max(deadline.Sub(a.now()), 0).Seconds()))
	}
	said := fmt.Sprintf("draining %s for %s", node, first.Event.Kind)
	switch {
	case goal.Action == policy.Drain && first.Error != "": // Without a hard deadline, no pod is evicted before the cordon is set.
		said = fmt.Sprintf("%s is to be drained for %s%s", node, first.Event.Kind, left)
	case goal.Action != policy.Drain:
		said = fmt.Sprintf("%sing %s: %s", goal.Action, node, goal.Reason)
	case a.total > 0:
		said += fmt.Sprintf(": %d of %s gone%s%s", a.total-a.left, text.Pods(a.total), left, a.work.holders())
	default:
		said += left
	}
	said += lastError(first)
	if trouble := a.work.state.Trouble; trouble != "" && first.Error == "" {
		said += "; " + trouble
	}
	if a.work.targets != "" {
		said += "; " + a.work.targets
	}
	if a.waiting != nil {
		said += "; waiting for the kubelet's credential: " + a.waiting.Error()
	}
	return said
}

// holders returns a clause that names what holds back pods, each holder once; empty if nothing does.
func (w *work) holders() string {
	by := slices.Compact(slices.Sorted(maps.Values(w.held)))
	if len(by) == 0 {
		return ""
	}
	return ", held by " + strings.Join(by, ", ")
}

// mainEntry is the entry to show while nothing is being done: the most urgent one, of those that were acted upon and whose cordon
// nobody has lifted, if there are any.
func (a *Agent) mainEntry() (state.Entry, bool) {
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

// outage is since when all looks at the metadata service fail, whatever the reason; zero if there was a good look for any kind since. A kind that
// is not looked for on this instance had its only good look at the start.
func (a *Agent) outage() time.Time {
	var since, good time.Time
	for _, kind := range event.PolledKinds() {
		switch t, bad := a.trouble[kind]; {
		case !bad || !t.over.IsZero():
			if a.looked[kind].After(good) {
				good = a.looked[kind]
			}
		case since.IsZero() || t.since.Before(since):
			since = t.since
		}
	}
	if !good.IsZero() && !good.Before(since) {
		return time.Time{}
	}
	return since
}

// StatusWriter shows the status. Show must not block, and must not change what the status refers to.
type StatusWriter interface {
	Show(state.Status)
}

// refresh is how often the board is updated when nothing has changed but times: a board that is much older belongs to a daemon
// that hangs. Changes are shown at most once per tick.
const refresh = 10 * time.Second

// show updates Config.Board if something has changed or refresh has passed, but no more than once per tick.
func (a *Agent) show(sentence string) {
	if a.cfg.Board == nil || time.Since(a.shownAt) < tick {
		return
	}
	status := a.buildStatus(sentence)
	if time.Since(a.shownAt) < refresh && sameStatus(status, a.shown) {
		return
	}
	a.shownAt, a.shown = time.Now(), status
	a.cfg.Board.Show(status)
}

// showStopped shows that the daemon has stopped as it was asked to.
func (a *Agent) showStopped() {
	if a.cfg.Board == nil {
		return
	}
	status := a.buildStatus(a.sentence())
	status.Stopped = a.now()
	a.cfg.Board.Show(status)
}

// sameStatus reports whether two statuses differ in nothing but the times that always change.
func sameStatus(x, y state.Status) bool {
	timeless := func(s state.Status) state.Status {
		s.Updated = time.Time{}
		s.Documents = slices.Clone(s.Documents)
		for i := range s.Documents {
			s.Documents[i].LastGood = time.Time{}
		}
		return s
	}
	return reflect.DeepEqual(timeless(x), timeless(y))
}

// buildStatus returns the status as far as the agent knows it. It shares no memory with the agent.
func (a *Agent) buildStatus(sentence string) state.Status {
	status := state.Status{
		Version: state.StatusVersion, Started: a.began.Round(0), Updated: a.now(),
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
	return status
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
		if bad && trouble.over.IsZero() {
			document.Trouble, document.Since = trouble.err, trouble.since
		}
		all = append(all, document)
	}
	return all
}
