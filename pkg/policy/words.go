package policy

import (
	"cmp"
	"fmt"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/state"
)

// Reason says in words why something is done about an entry's event.
func (s Settings) Reason(e state.Entry) string { return reason(e.Event) }

// reason is Reason for an event.
func reason(ev event.Event) string {
	at := ""
	if !ev.Deadline.IsZero() { // EC2's time, not the rule's limit.
		at = " at " + formatTime(ev.Deadline)
	}
	switch ev.Kind {
	case event.SpotInterruption:
		return fmt.Sprintf("EC2 will %s this spot instance%s", cmp.Or(ev.Code, "interrupt"), at)
	case event.RebalanceRecommendation:
		return "EC2 recommends rebalancing: this spot instance is at elevated risk of interruption"
	case event.ScheduledMaintenance:
		return fmt.Sprintf("EC2 has scheduled %s%s", cmp.Or(ev.Code, "maintenance"), at)
	case event.ASGTermination:
		if ev.Code != "" {
			at = " (" + ev.Code + ")" + at
		}
		return "the Auto Scaling group takes this instance out of service" + at
	case event.Shutdown:
		return "the system is shutting down"
	case event.Hibernation:
		return "the system is going to sleep"
	case event.ReservationEnd:
		return fmt.Sprintf("the %s reservation of this instance ends%s", ev.Code, at)
	case event.StateChange:
		return "EC2 says that the instance is " + ev.Code
	case event.StatusCheck:
		return fmt.Sprintf("EC2's %s status check of this instance fails", ev.Code)
	case event.Manual:
		return "an operator has asked for it with nth drain"
	}
	return string(ev.Kind) // such as "label", which drain.Node.Claim makes up
}

// undoReason says in words why the work for an entry is taken back.
func (s Settings) undoReason(e state.Entry, ending state.Ending) string {
	switch ending {
	case state.Withdrawn:
		return "the event was withdrawn"
	case state.Canceled:
		return "the event was canceled"
	case state.Completed:
		return "the event is over"
	case state.Rebooted:
		return "the machine is back after its reboot"
	case state.Expired:
		return "the cordon's time to live expired"
	case state.Ignored:
		return "the settings ignore this kind of event"
	}
	if action := s.plan(e).action; action != Cordon && action != Drain {
		return "the settings ask for no more than to " + string(action)
	}
	return "the event was moved to a later time"
}

// Describe says in words what is announced, what will be done about it, and when.
func (s Settings) Describe(e state.Entry) string {
	text := reason(e.Event)
	p := s.plan(e)
	switch {
	case p.action == Ignore || p.action == Notify:
		return text + "; nothing will be done"
	case e.LeftAlone:
		return text + "; the node is left alone because of its annotation"
	case e.Phase == state.Undoing:
		return text + "; the node is being opened again"
	case e.Phase == state.Drained, e.Released() && e.Phase != state.Draining, p.action == Cordon && e.Phase == state.Cordoned:
		return text + "; nothing more will be done"
	case !e.Missing.IsZero() && !e.UnderWay():
		return text + "; it is not announced at present, so that nothing more is done"
	case p.start.After(e.Changed) && !e.Acted():
		return fmt.Sprintf("%s; %s begins at %s", text, p.action, formatTime(p.start))
	}
	return fmt.Sprintf("%s; %s now", text, p.action)
}

func formatTime(t time.Time) string { return t.UTC().Format("15:04:05 UTC on 2 Jan 2006") }
