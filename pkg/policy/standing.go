package policy

import (
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/record"
)

// Stands tells whether an entry's event still holds, and with it what is done about it.
func (s Settings) Stands(sit Situation, e record.Entry) bool {
	ending, _ := s.standing(sit, e)
	return ending == "" && !s.rescheduled(sit, e)
}

// standing tells whether an entry's event still holds. If it does not, ending says why; if it does only for now,
// revisit says until when.
func (s Settings) standing(sit Situation, e record.Entry) (ending record.Ending, revisit time.Time) {
	switch {
	case e.Phase == record.Closed:
		return e.Ending, time.Time{}
	case e.Event.State == event.Canceled:
		return record.Canceled, time.Time{}
	case e.Event.State == event.Completed:
		return record.Completed, time.Time{}
	case sit.survived(e):
		return record.Rebooted, time.Time{}
	}
	rule := s[e.Event.Kind]
	// While it is being lifted, the cordon is as old as it was.
	cordoned := e.Phase == record.Cordoned || e.Phase == record.Undoing
	if cordoned && rule.CordonFor > 0 && s.plan(e).action == Cordon {
		end := e.CordonedAt.Add(rule.CordonFor)
		if !sit.Now.Before(end) {
			return record.Expired, time.Time{}
		}
		revisit = end
	}
	if !e.Missing.IsZero() {
		end := e.Missing.Add(rule.WithdrawnAfter)
		if !sit.lastWord(e.Event.Kind).Before(end) {
			return record.Withdrawn, time.Time{}
		}
		if end.After(sit.Now) {
			revisit = soonest(revisit, end)
		}
	}
	return "", revisit
}

// lastWord is until when a kind's source has answered for what it last said: now, unless it cannot be asked. It is zero
// while nothing has been heard of it.
func (sit Situation) lastWord(kind event.Kind) time.Time {
	if good, failing := sit.Failing[kind]; failing {
		return good
	}
	if _, known := sit.Known[kind]; known {
		return sit.Now
	}
	return time.Time{}
}

// asked tells whether a kind has been looked at since the start, with or without success.
func (sit Situation) asked(kind event.Kind) bool {
	_, known := sit.Known[kind]
	_, failing := sit.Failing[kind]
	return known || failing
}

// survived tells whether the machine has been through what the entry's event announced, and is back. The boot ID proves
// the reboot; whether it was the announced one depends on the kind.
func (sit Situation) survived(e record.Entry) bool {
	if e.BootID == sit.BootID {
		return false
	}
	switch {
	case e.Event.Kind == event.Shutdown:
		return true
	case !e.Acted():
		return false
	case endsWithReboot(e.Event):
		// Acted upon, then rebooted: also if the event is still listed, since EC2's list lags behind.
		return true
	case e.Event.Deadline.IsZero():
		return false
	}
	// A stop, a retirement or a spot interruption ends with the machine started again after its time. While the
	// document still lists it, it is not over. A document that cannot be read does not keep the node cordoned, unless it
	// has listed the event since the reboot: what was known then stands.
	return sit.Now.After(e.Event.Deadline) && sit.asked(e.Event.Kind) && !sit.stillListed(e)
}

// stillListed tells whether the last good look of this boot, which may have been an earlier process's, found the event.
func (sit Situation) stillListed(e record.Entry) bool {
	if _, known := sit.Known[e.Event.Kind]; known {
		return sit.listed(e.Event)
	}
	return e.ListedIn == sit.BootID && e.Missing.IsZero()
}

// announced tells whether an entry's event is well enough attested to act upon it now. What has disappeared is not, but
// what is already under way goes on until it counts as withdrawn. Before the first look, the record's word is good
// enough, unless the machine has been rebooted and the announced time is over: then it may have been that reboot.
func (sit Situation) announced(e record.Entry) bool {
	sameBoot := e.BootID == sit.BootID
	if _, known := sit.Known[e.Event.Kind]; !known {
		return e.Missing.IsZero() && (sameBoot || e.Event.Deadline.After(sit.Now))
	}
	underWay := e.Phase == record.Cordoning || e.Phase == record.Draining
	return sit.listed(e.Event) || underWay && sameBoot
}

func (sit Situation) listed(ev event.Event) bool {
	for _, known := range sit.Known[ev.Kind] {
		if known.ID == ev.ID {
			return true
		}
	}
	return false
}

// endsWithReboot tells whether what is announced is over once the machine has rebooted.
func endsWithReboot(ev event.Event) bool {
	return ev.Kind == event.ScheduledMaintenance && (ev.Code == "system-reboot" || ev.Code == "instance-reboot")
}

// rescheduled tells whether an entry's event was moved to a later time after the node was acted upon, so far that it is
// not due any more. A clock that was set back does not count: the document must say so.
func (s Settings) rescheduled(sit Situation, e record.Entry) bool {
	return e.Acted() && !e.ActedFor.IsZero() && e.Event.Deadline.After(e.ActedFor) && s.plan(e).start.After(sit.Now)
}

// soonest returns the earlier of two times, where zero means never.
func soonest(a, b time.Time) time.Time {
	if a.IsZero() || (!b.IsZero() && b.Before(a)) {
		return b
	}
	return a
}
