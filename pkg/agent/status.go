package agent

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
)

// status keeps the one sentence current that "systemctl status nth" shows, and the board.
func (a *Agent) status() {
	if a.cfg.Service == nil && a.cfg.Board == nil {
		return
	}
	sentence := a.fullSentence()
	if a.cfg.Service != nil {
		a.cfg.Service.Status("%s", sentence)
	}
	a.show(sentence)
}

// fullSentence is the sentence with what holds beside it.
func (a *Agent) fullSentence() string {
	sentence := a.sentence()
	if since := a.outage(); !since.IsZero() {
		sentence += fmt.Sprintf("; metadata service unreachable since %s", since.Format("15:04:05"))
	}
	if a.cfg.DryRun {
		sentence += " (dry run)"
	}
	return sentence
}

func (a *Agent) sentence() string {
	if a.busy() {
		return a.workSentence()
	}
	if a.node == "" || a.waiting != nil {
		why := "watching; waiting for the kubelet's credential"
		if a.waiting != nil {
			why += ": " + a.waiting.Error()
		}
		return why
	}
	if e, ok := a.mainEntry(); ok && (e.Phase == state.Seen || e.Reopened || e.LeftAlone) {
		return fmt.Sprintf("watching node %s: %s", a.node, a.cfg.Policy.Describe(e))
	} else if ok {
		text := fmt.Sprintf("node %s is %s for %s", a.node, e.Phase, e.Event.Kind)
		if e.Phase == state.Drained && a.work != nil && a.left > 0 {
			text += fmt.Sprintf("; %d pods have come since%s", a.left, a.holders())
		}
		return text
	}
	return fmt.Sprintf("watching; nothing is announced for node %s", a.node)
}

// busy tells whether something is being done to the node that is not done yet. A guard that only stands is not busy.
func (a *Agent) busy() bool { return a.work != nil && (a.work.guard == nil || len(a.unfinished()) > 0) }

// workSentence is the sentence while something is being done.
func (a *Agent) workSentence() string {
	goal := a.work.goal
	node := "the node"
	if a.node != "" {
		node = "node " + a.node
	}
	left := ""
	if deadline := a.deadline(goal); !deadline.IsZero() {
		left = fmt.Sprintf(", %d s left", int(max(deadline.Sub(a.now()), 0).Seconds()))
	}
	text := fmt.Sprintf("draining %s for %s", node, a.first().Event.Kind)
	switch {
	case goal.Action != policy.Drain:
		text = fmt.Sprintf("%sing %s: %s", goal.Action, node, goal.Reason)
	case a.total > 0:
		text += fmt.Sprintf(": %d of %d pods gone%s%s", a.total-a.left, a.total, left, a.holders())
	default:
		text += left
	}
	if a.pending.targets != "" {
		text += "; " + a.pending.targets
	}
	if a.waiting != nil {
		text += "; waiting for the kubelet's credential: " + a.waiting.Error()
	}
	return text
}

// pending is what is waited for at present, as far as the status names it.
type pending struct {
	// held says what holds pods back, by their names, and targets what load balancers are waited for; empty if none are.
	held    map[string]string
	targets string
}

// OnTransition implements Listener.
func (p *pending) OnTransition(t state.Transition) {
	switch t.Kind { // For the others nobody waits.
	case state.PodHeld:
		p.held[t.Pod] = t.Detail
		if t.Outcome != state.Refused {
			p.held[t.Pod] = "PDB " + t.Detail
		}
	case state.PodOverdue:
		p.held[t.Pod] = t.Detail
	case state.PodRestarting:
		p.held[t.Pod] = "the restart of " + t.Detail
	case state.PodEvicted, state.PodDeleted, state.PodGone:
		delete(p.held, t.Pod)
	case state.TargetsLeft:
		p.targets = t.Detail
	case state.TargetsOut:
		p.targets = ""
	}
}

// holders names what holds pods back now, in an order that does not jump.
func (a *Agent) holders() string {
	by := map[string]bool{}
	for _, holder := range a.pending.held {
		by[holder] = true
	}
	if len(by) == 0 {
		return ""
	}
	return ", held by " + strings.Join(slices.Sorted(maps.Keys(by)), ", ")
}

// mainEntry is the entry that matters most while nothing is being done: the last one acted upon, else the last one seen.
func (a *Agent) mainEntry() (state.Entry, bool) {
	var best state.Entry
	found := false
	for _, e := range a.cfg.Record.Entries() {
		if e.Phase == state.Closed {
			continue
		}
		if !found || e.Acted() && !best.Acted() || e.Acted() == best.Acted() && e.Changed.After(best.Changed) {
			best, found = e, true
		}
	}
	return best, found
}

// outage is since when the metadata service has not answered for any kind; zero if it does for one.
func (a *Agent) outage() time.Time {
	var since time.Time
	for _, kind := range event.PolledKinds() {
		t, bad := a.trouble[kind]
		if _, known := a.known[kind]; known && (!bad || !t.over.IsZero()) {
			return time.Time{}
		}
		if !bad {
			continue
		}
		if since.IsZero() || t.since.Before(since) {
			since = t.since
		}
	}
	return since
}

// StatusWriter shows how the daemon stands. Show must not block, and must not change what the status refers to.
type StatusWriter interface {
	Show(state.Status)
}

// The board is for people who look now and then: what has changed is shown at most once in a tick, and what has not,
// which are the times of the last looks, so often that a board which is much older belongs to a daemon that hangs.
const refresh = 10 * time.Second

// shown is what the board shows.
type shown struct {
	at     time.Time // with its monotonic reading
	status state.Status
}

// show brings the board up to date, if it is time to. The loop comes by in every tick.
func (a *Agent) show(sentence string) {
	if a.cfg.Board == nil || time.Since(a.shown.at) < tick {
		return
	}
	status := a.buildStatus(sentence)
	if time.Since(a.shown.at) < refresh && alikeStatus(status, a.shown.status) {
		return
	}
	a.showStatus(status)
}

// showStopped leaves word that the daemon has stopped as it was asked to.
func (a *Agent) showStopped() {
	if a.cfg.Board == nil {
		return
	}
	status := a.buildStatus(a.fullSentence())
	status.Stopped = a.now()
	a.showStatus(status)
}

// showStatus puts a status on the board.
func (a *Agent) showStatus(status state.Status) {
	a.shown.at, a.shown.status = time.Now(), status
	a.cfg.Board.Show(status)
}

// alikeStatus tells whether two statuses differ in nothing but times that go on by themselves.
func alikeStatus(x, y state.Status) bool {
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

// buildStatus is the status as far as the agent knows it. It shares nothing with the agent.
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
		PodsTotal: a.total, PodsLeft: a.left, HeldBy: maps.Clone(a.pending.held), Targets: a.pending.targets,
	}
}

// documents tells of the kinds that are looked for from time to time. A shutdown is not: it is announced.
func (a *Agent) documents() []state.DocumentStatus {
	all := []state.DocumentStatus{}
	for _, kind := range event.Kinds() {
		good, looked := a.looked[kind]
		trouble, bad := a.trouble[kind]
		if kind.Local() || !looked && !bad {
			continue
		}
		document := state.DocumentStatus{Kind: kind, LastGood: good}
		if bad && trouble.over.IsZero() {
			document.Trouble, document.Since = trouble.err, trouble.since.Round(0)
		}
		all = append(all, document)
	}
	return all
}
