package agent

import (
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/sirupsen/logrus"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/record"
	"github.com/nth-project/nth/pkg/systemd"
)

// The words of the journal. Each message is one short sentence with the fields that make it findable.

func (a *Agent) say(id string) *logrus.Entry {
	l := a.cfg.Log.WithField(systemd.FieldMessageID, id)
	if a.node != "" {
		l = l.WithField(systemd.FieldNode, a.node)
	}
	return l
}

func (a *Agent) sayOf(id string, ev event.Event) *logrus.Entry {
	return a.say(id).WithField(systemd.FieldEventID, ev.ID).WithField(systemd.FieldEventKind, string(ev.Kind))
}

func (a *Agent) started() {
	mode := ""
	if a.cfg.DryRun {
		mode = ", as a dry run: nothing will be written to the cluster"
	}
	a.say(systemd.Started).Infof("watching for interruptions%s", mode)
}

func (a *Agent) stopped() {
	if a.cfg.Service != nil {
		a.say(systemd.Stopping).Info("stopped as asked; the node stays as it is")
	}
}

// put records an entry. A record that cannot be written is told, and work goes on: a drain matters more than its memory.
func (a *Agent) put(e record.Entry) {
	if err := a.cfg.Record.Put(e); err != nil {
		a.sayOf(systemd.StateTrouble, e.Event).WithError(err).
			Error("the record cannot be written; a restart now may forget what was done")
	}
}

// folded tells what Fold changed in the record.
func (a *Agent) folded(e record.Entry) {
	switch {
	case e.Phase == record.Closed:
		a.sayOf(systemd.EventWithdrawn, e.Event).Infof("%s: %s; nothing is left to undo", e.Event.Kind, e.Ending)
	case !e.Missing.IsZero():
		a.sayOf(systemd.EventWithdrawn, e.Event).Infof("%s: no longer announced; waiting to be sure before anything is undone", e.Event.Kind)
	case e.Phase == record.Seen:
		a.sayOf(systemd.EventSeen, e.Event).WithField(systemd.FieldPhase, string(e.Phase)).
			Warnf("%s: %s", e.Event.Kind, a.rules().Describe(e))
	default:
		a.sayOf(systemd.EventSeen, e.Event).WithField(systemd.FieldPhase, string(e.Phase)).
			Infof("%s: changed: %s", e.Event.Kind, a.rules().Describe(e))
	}
}

func (a *Agent) begun(step policy.Step) {
	switch step.Action {
	case policy.Drain:
		limit := "no deadline"
		if !step.Deadline.IsZero() {
			limit = fmt.Sprintf("%.0f s left", step.Deadline.Sub(a.now()).Seconds())
		}
		a.sayOf(systemd.DrainStarted, step.Event).WithField(systemd.FieldPhase, string(record.Draining)).
			Warnf("%s the node: %s (%s)", a.doing("draining"), step.Reason, limit)
	case policy.Uncordon:
		a.sayOf(systemd.EventWithdrawn, step.Event).WithField(systemd.FieldPhase, string(record.Undoing)).
			Infof("%s the node: %s", a.doing("uncordoning"), step.Reason)
	case policy.Cordon, policy.Ignore, policy.Notify, policy.Wait:
		// A cordon takes one request; its end is told.
	}
}

func (a *Agent) doing(what string) string {
	if a.cfg.DryRun {
		return "dry run: not " + what
	}
	return what
}

func (a *Agent) recalled(old, next policy.Step) {
	why := "its event no longer stands"
	if next.Action != policy.Wait && next.Event.ID != old.Event.ID {
		why = fmt.Sprintf("%s comes first", next.Event.Kind)
	}
	a.sayOf(systemd.EventWithdrawn, old.Event).Infof("stopping the %s for %s: %s", old.Action, old.Event.Kind, why)
}

// progressed tells one thing that happened during a drain.
func (a *Agent) progressed(p drain.Progress) {
	a.total, a.left = p.Total, p.Left
	if a.flight == nil {
		return
	}
	a.happenedThere(p)
	ev := a.flight.step.Event
	since := time.Since(a.flight.began).Round(time.Millisecond)
	of := func(id string) *logrus.Entry {
		l := a.sayOf(id, ev).WithField(systemd.FieldPhase, string(record.Draining))
		if p.Pod != "" {
			l = l.WithField(systemd.FieldPod, p.Pod)
		}
		return l
	}
	switch p.What {
	case drain.NodeCordoned:
		of(systemd.Cordoned).Warnf("%s after %s", a.did("cordoned the node"), since)
	case drain.NodeCordonFound, drain.NodeLeft, drain.NodeReopened:
		left(of(systemd.CordonForeign), p.What)
	case drain.NodeExcluded:
		of(systemd.Cordoned).Info("took the node out of external load balancers")
	case drain.Holding:
		of(systemd.DrainStarted).Infof("holding evictions back for %s", p.Detail)
	case drain.Found:
		of(systemd.DrainStarted).Infof("%d pods to evict", p.Total)
	case drain.Evicted:
		a.unheld(p.Pod)
		of(systemd.PodEvicted).Infof("%s %s", a.did("evicted"), p.Pod)
	case drain.Deleted:
		a.unheld(p.Pod)
		of(systemd.PodDeleted).Warnf("deleted %s, which could not be evicted in time", p.Pod)
	case drain.Held:
		a.held[p.Pod] = "PDB " + p.Detail
		of(systemd.PodHeld).Infof("disruption budget %s holds %s; asking again", p.Detail, p.Pod)
	case drain.Refused:
		a.refused(of(systemd.PodHeld), p)
	case drain.Overdue, drain.Returning, drain.LeftToReturn:
		a.resisted(of(systemd.PodHeld), p)
	case drain.Gone:
		a.unheld(p.Pod)
		of(systemd.PodGone).Infof("%s is gone, %d of %d left", p.Pod, p.Left, p.Total)
	case drain.Volumes:
		of(systemd.PodGone).Infof("waiting for volumes: %s still in use", p.Detail)
	}
}

func (a *Agent) did(what string) string {
	if a.cfg.DryRun {
		return "dry run: would have " + what
	}
	return what
}

func (a *Agent) refused(l *logrus.Entry, p drain.Progress) {
	if p.Pod == "" {
		l.Warn(p.Detail)
		return
	}
	a.held[p.Pod] = p.Detail
	l.Warnf("evicting %s was refused: %s; asking again", p.Pod, p.Detail)
}

// left tells why the node was left schedulable, or unschedulable, as it was found.
func left(l *logrus.Entry, what drain.What) {
	switch what { //nolint:exhaustive // the others are told elsewhere
	case drain.NodeCordonFound:
		l.Info("the node was cordoned already by somebody else; that cordon stays theirs")
	case drain.NodeLeft:
		l.Infof("the node's annotation %s asks for it to be left alone", drain.ActionAnnotation)
	case drain.NodeReopened:
		l.Info("somebody has lifted the cordon for this event; pods that came since are left alone")
	}
}

// resisted tells of what is accepted and still does not leave the node empty.
func (a *Agent) resisted(l *logrus.Entry, p drain.Progress) {
	switch p.What { //nolint:exhaustive // the others are told elsewhere
	case drain.Overdue:
		a.held[p.Pod] = p.Detail
		l.Warnf("%s has not ended within its grace period; critical pods no longer wait for it", p.Pod)
	case drain.Returning:
		l.Warnf("%s keeps bringing pods back to the cordoned node; evicting them ever more slowly", p.Detail)
	case drain.LeftToReturn:
		l.Warnf("%s keeps bringing pods back to the cordoned node; leaving them there", p.Detail)
	}
}

func (a *Agent) unheld(pod string) { delete(a.held, pod) }

func (a *Agent) clockSet(by time.Duration) {
	a.say(systemd.EventSeen).Warnf("the clock was set by %s; what is left until an announced time is counted anew", by.Round(time.Second))
}

func (a *Agent) foundClaim(e record.Entry) {
	a.sayOf(systemd.EventSeen, e.Event).Warn("the node bears a cordon of ours that the record does not know; taking it over")
}

// identified tells when the credential comes, goes or changes.
func (a *Agent) identified(n identity) {
	switch {
	case n.err == nil && (a.waiting != nil || a.node != n.node):
		a.node = n.node
		if a.cfg.Service == nil {
			break // Whose part it is knows.
		}
		a.say(systemd.IdentityFound).Infof("acting for node %s", n.node)
	case n.err != nil && (a.waiting == nil || !alike(a.waiting.Error(), n.err.Error())):
		a.say(systemd.IdentityWaiting).Warnf("waiting for the kubelet's credential: %s", n.err)
	}
	a.waiting = n.err
}

func (a *Agent) troubled(n lookFailed) {
	known := a.trouble[n.kind]
	if known.since.IsZero() {
		known.since = time.Now()
	}
	known.over = time.Time{}
	if text := n.err.Error(); !alike(text, known.err) {
		known.err = text
		a.say(systemd.SourceTrouble).WithField(systemd.FieldEventKind, string(n.kind)).
			Warnf("cannot tell about %s: %s; what was last known stands", n.kind, text)
	}
	a.trouble[n.kind] = known
	a.happened(record.Happening{What: record.SourceLost, Entry: record.Entry{Event: event.Event{Kind: n.kind}}, Err: n.err})
}

// alike tells whether two errors differ in their numbers only. Ports and times change with every attempt.
func alike(a, b string) bool {
	digits := func(r rune) rune {
		if unicode.IsDigit(r) {
			return -1
		}
		return r
	}
	return strings.Map(digits, a) == strings.Map(digits, b)
}

// healed notes a good look of a kind. It is no end of the trouble yet: if a part of the document could not be read, the
// word of that comes right behind.
func (a *Agent) healed(kind event.Kind) {
	if t, was := a.trouble[kind]; was && t.over.IsZero() {
		t.over = time.Now()
		a.trouble[kind] = t
	}
}

// recovered tells of the kinds that have been well for a while.
func (a *Agent) recovered() {
	for kind, t := range a.trouble {
		if t.over.IsZero() || time.Since(t.over) < tick {
			continue
		}
		delete(a.trouble, kind)
		a.happened(record.Happening{What: record.SourceBack, Entry: record.Entry{Event: event.Event{Kind: kind}}})
		a.say(systemd.SourceRecovered).WithField(systemd.FieldEventKind, string(kind)).
			Infof("%s can be told again, after %s", kind, t.over.Sub(t.since).Round(time.Second))
	}
}
