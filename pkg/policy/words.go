package policy

import (
	"fmt"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/state"
)

// undoReason says in words why the node is uncordoned for an entry. ending is "" if the entry's event still stands.
func (s Settings) undoReason(e state.Entry, ending state.Ending) string {
	if ending != "" {
		return ending.Text()
	}
	if action := s.plan(e).action; action != Cordon && action != Drain {
		return fmt.Sprintf("the settings have changed: the action for %s, now %q, needs no cordon", e.Event.Kind, action)
	}
	if e.Released() {
		return "someone has already uncordoned the node, so only the rest, such as the annotation, is removed"
	}
	if !e.RebootAt.IsZero() { // It has come, or has not come in time.
		return early(e.Event) + " was tried, but EC2 still lists the maintenance; nth will drain the node again before the scheduled time"
	}
	return "the event was moved to a later time"
}

// rebootsNext reports whether the machine is to be rebooted for an entry's event once the node is drained.
func (s Settings) rebootsNext(e state.Entry) bool {
	return s.Reboots(e.Event) && s.plan(e).action == Drain && e.RebootAt.IsZero()
}

// early names what nth does in place of EC2, ahead of the date of maintenance: for what is no reboot, nth-queue's settings choose.
func early(ev event.Event) string {
	if isReboot(ev) {
		return "nth's early reboot of the machine"
	}
	return "nth's early stop or replacement of the machine"
}

// Describe says in words what an entry's event announces, what will be done about it, and when.
func (s Settings) Describe(e state.Entry) string {
	text := e.Event.Summary()
	p, start := s.plan(e), s.start(Situation{Now: e.Changed, BootID: e.BootID}, e) // Changed stands for now, so that the text is the entry's alone.
	if !e.RebootAt.IsZero() {
		text += fmt.Sprintf("; %s was tried once, and will not be again", early(e.Event))
	}
	// Operators have uncordoned the node. Only a drain that was under way continues.
	releasedForGood := e.Released() && e.Phase != state.Draining
	done := e.Phase == state.Drained || p.action == Cordon && e.Phase == state.Cordoned
	switch {
	case p.action == Ignore || p.action == Notify:
		return text + "; nothing will be done"
	case e.LeftAlone:
		return text + "; the node is left alone because of its annotation"
	case e.Phase == state.Undoing:
		return text + "; the node is being uncordoned"
	case e.Phase == state.Drained && s.rebootsNext(e) && !releasedForGood:
		return text + "; the node is drained, and next comes " + early(e.Event)
	case releasedForGood || e.Phase == state.Closed:
		return text + "; nothing more will be done"
	case done:
		return fmt.Sprintf("%s; the node is %s, and nothing more will be done", text, e.Phase)
	case !e.Missing.IsZero() && !e.UnderWay():
		return text + "; it is not announced at present, so that nothing more is done"
	}
	moment := "now"
	if start.After(e.Changed) && !e.Acted() {
		moment = "begins at " + start.UTC().Format(event.TimeLayout)
	}
	if s.rebootsNext(e) {
		moment += ", then comes " + early(e.Event)
	}
	return fmt.Sprintf("%s; plan: %s %s", text, p.action, moment)
}
