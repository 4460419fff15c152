package agent

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/record"
)

// status keeps the one sentence current that "systemctl status nth" shows, and the board.
func (a *Agent) status() {
	if a.cfg.Service == nil && a.cfg.Board == nil {
		return
	}
	sentence := a.whole()
	if a.cfg.Service != nil {
		a.cfg.Service.Status("%s", sentence)
	}
	a.show(sentence)
}

// whole is the sentence with what holds beside it.
func (a *Agent) whole() string {
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
	if a.flight != nil {
		return a.inFlight()
	}
	if a.node == "" || a.waiting != nil {
		why := "watching; waiting for the kubelet's credential"
		if a.waiting != nil {
			why += ": " + a.waiting.Error()
		}
		return why
	}
	if e, ok := a.foremost(); ok && e.Phase == record.Seen {
		return fmt.Sprintf("watching node %s: %s", a.node, a.rules().Describe(e))
	} else if ok {
		return fmt.Sprintf("node %s is %s for %s", a.node, e.Phase, e.Event.Kind)
	}
	return fmt.Sprintf("watching; nothing is announced for node %s", a.node)
}

// inFlight is the sentence while a step is being taken.
func (a *Agent) inFlight() string {
	step := a.flight.step
	left := ""
	if !a.flight.ends.IsZero() {
		left = fmt.Sprintf(", %d s left", int(max(time.Until(a.flight.ends), 0).Seconds()))
	}
	node := "the node"
	if a.node != "" {
		node = "node " + a.node
	}
	text := fmt.Sprintf("draining %s for %s", node, step.Event.Kind)
	switch {
	case step.Action != policy.Drain:
		text = fmt.Sprintf("%sing %s: %s", step.Action, node, step.Reason)
	case a.total > 0:
		text += fmt.Sprintf(": %d of %d pods gone%s%s", a.total-a.left, a.total, left, a.holders())
	default:
		text += left
	}
	if a.waiting != nil {
		text += "; waiting for the kubelet's credential: " + a.waiting.Error()
	}
	return text
}

// holders names what holds pods back now, in an order that does not jump.
func (a *Agent) holders() string {
	by := map[string]bool{}
	for _, holder := range a.held {
		by[holder] = true
	}
	if len(by) == 0 {
		return ""
	}
	return ", held by " + strings.Join(slices.Sorted(maps.Keys(by)), ", ")
}

// foremost is the entry that matters most while nothing is being done: the last one acted upon, else the last one seen.
func (a *Agent) foremost() (record.Entry, bool) {
	var best record.Entry
	found := false
	for _, e := range a.cfg.Record.Entries() {
		if e.Phase == record.Closed {
			continue
		}
		if !found || e.Acted() && !best.Acted() || e.Acted() == best.Acted() && e.Changed.After(best.Changed) {
			best, found = e, true
		}
	}
	return best, found
}

// outage is since when the metadata service has not answered for any kind; zero if it does for one. A shutdown is
// announced by the system.
func (a *Agent) outage() time.Time {
	var since time.Time
	for kind := range a.known {
		if t, bad := a.trouble[kind]; kind != event.Shutdown && (!bad || !t.over.IsZero()) {
			return time.Time{}
		}
	}
	for kind, t := range a.trouble {
		if kind == event.Shutdown || !t.over.IsZero() {
			continue
		}
		if since.IsZero() || t.since.Before(since) {
			since = t.since
		}
	}
	return since
}
