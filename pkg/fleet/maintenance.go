package fleet

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/ec2"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/record"
	"github.com/nth-project/nth/pkg/sqs"
)

// standing are the events that EC2 tells of for a node.
func (f *Fleet) standing(n node, said ec2.Status) []event.Event {
	var all []event.Event
	for _, p := range said.Planned {
		ev := event.Event{
			ID: p.ID, Kind: event.ScheduledMaintenance, Code: p.Code, State: event.Pending, Description: p.Description,
			Deadline: p.NotBefore, Until: p.NotAfter, Instance: n.machine,
		}
		switch {
		case p.ID == "":
			continue
		case p.Canceled:
			ev.State = event.Canceled
		case p.Completed:
			ev.State = event.Completed
		}
		all = append(all, ev.Credible())
	}
	if ev, fails := f.failing(n, said); fails {
		all = append(all, ev)
	}
	return all
}

// failing is the event of a status check that has failed for long enough. While the node is closed for one, that is the one.
func (f *Fleet) failing(n node, said ec2.Status) (event.Event, bool) {
	if said.Impaired == "" || n.instance == "" || f.outlook.failed(n.instance, said) < f.rules.Load().Impaired {
		return event.Event{}, false
	}
	sum := sha256.Sum256([]byte(n.instance + "\n" + strconv.FormatInt(said.Since.Unix(), 10)))
	ev := event.Event{
		ID: string(event.StatusCheck) + "-" + hex.EncodeToString(sum[:8]), Kind: event.StatusCheck, Code: said.Impaired,
		State: event.Pending, Noticed: event.CredibleTime(said.Since), Instance: n.instance,
	}
	if n.ours && n.cordon.Kind == string(event.StatusCheck) {
		ev.ID = n.cordon.Event
	}
	return ev, true
}

// tendAll does what is due for the nodes of which EC2 tells something, and for those that are closed, of which something is noted, or for which
// something is being done or waits in the line.
func (f *Fleet) tendAll() {
	type told struct {
		node
		said ec2.Status
	}
	var some []told
	f.mu.Lock()
	busy := maps.Clone(f.sessions)
	f.mu.Unlock()
	f.nodes.each(func(n node) {
		said, _ := f.outlook.of(n.machine)
		if len(said.Planned) > 0 || said.Impaired != "" || n.ours || len(n.notes) > 0 || busy[n.name] != nil {
			some = append(some, told{n, said})
		}
	})
	for _, n := range some {
		f.tend(n.node, f.standing(n.node, n.said))
	}
}

// tend does what is due for a node for which those events stand.
func (f *Fleet) tend(n node, events []event.Event) {
	f.refresh(n, events)
	if f.lift(n, events) {
		return
	}
	for _, ev := range events {
		tells := n.instance != "" // Else its messages say what is to be done for it: who knows it by its name may be mistaken by now.
		if tells && f.wanted(ev) && f.owed(n, ev) && !f.has(n, ev.ID, events) {
			f.pursue(n, ev)
		}
	}
	f.tidy(n, events)
}

// wanted tells whether anything may be done about an event.
func (f *Fleet) wanted(ev event.Event) bool {
	return ev.State == event.Pending && !f.policy().Ignores(record.Entry{Event: ev})
}

// has tells whether one of the events that stand for a node is being worked on.
func (f *Fleet) has(n node, id string, events []event.Event) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.sessions[n.name]
	if s == nil {
		return false
	}
	_, announced := s.announcedAs(events)[id]
	return announced || s.tasks[id] != nil
}

// announcedAs are those of the events that EC2 lists for the session's node for which a message has given it an event, as EC2 did not list
// them yet: by EC2's names for them, as EC2 has them now but with the names of the messages. f.mu is held.
func (s *session) announcedAs(events []event.Event) map[string]event.Event {
	all := map[string]event.Event{}
	for id, t := range s.tasks {
		if fromMessage(id) && s.fleet.verified(t) {
			if ev, listed := listedAs(t.notice.Event, events); listed {
				listedID := ev.ID
				ev.ID, ev.Noticed = id, t.notice.Event.Noticed
				all[listedID] = ev
			}
		}
	}
	return all
}

// attended tells whether there is a session for a node.
func (f *Fleet) attended(n node) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.sessions[n.name] != nil
}

// pursue begins what is to be done about an event, as if a message had told of it.
func (f *Fleet) pursue(n node, ev event.Event) {
	p := f.outlook.plan(n.name, ev.ID)
	e := record.Entry{Event: ev}
	if pause, begun := p.begin(ev.Deadline, f.policy().Begins(e), f.policy().Asks(e)); begun {
		f.take([]sqs.Notice{{About: sqs.Interruption, Instance: n.instance, Event: ev}}, pause, p)
	}
}

// owed tells whether something is to be done now about an event that stands: it has not been told of yet, its time has come, the rules ask
// for more than was done, or it was moved to later and what was done is to be taken back.
func (f *Fleet) owed(n node, ev event.Event) bool {
	if happened(n, ev) {
		return false
	}
	waits := f.waits(ev)
	known, noted := n.notes.find(ev)
	switch {
	case waits && n.ours && n.cordon.Event == ev.ID, !noted, !known.At.Equal(ev.Deadline):
		return true
	case waits:
		return false
	}
	return known.fallsShort(f.policy().Asks(record.Entry{Event: ev}))
}

// waits tells whether the time of an event has not come.
func (f *Fleet) waits(ev event.Event) bool {
	return f.policy().Begins(record.Entry{Event: ev}).After(time.Now())
}

// happened tells whether an event that EC2 still lists has happened: the machine was rebooted, and is back since it was due.
func happened(n node, ev event.Event) bool {
	return reboots(ev.Code) && !ev.Deadline.IsZero() && n.readySince.After(ev.Deadline)
}

// reboots tells whether what is scheduled is over once the machine has been rebooted.
func reboots(code string) bool { return code == "system-reboot" || code == "instance-reboot" }

// verified tells whether EC2 is to be asked about a task before it is begun.
func (f *Fleet) verified(t *task) bool {
	n := t.notice
	return f.opts.Schedule != nil && n.Event.Kind == event.ScheduledMaintenance && n.Instance != "" && ec2.Schedules(n.Event.Code)
}

// verify begins a task of maintenance as EC2 lists that now, and ends it if that is over, or done. Where EC2 cannot be asked, what the
// message says counts, and while EC2's list may be behind it.
func (f *Fleet) verify(ctx context.Context, n node, t *task) {
	if n.instance == "" {
		n.machine = t.notice.Instance
		f.nodes.identify(n.name, n.machine)
	}
	said, known, err := f.opts.Schedule.Status(ctx, t.notice.Instance)
	switch {
	case ctx.Err() != nil:
		t.again(0)
		return
	case err != nil:
		f.unasked(err)
		f.join(n, t)
		return
	case known:
		f.outlook.heed(t.notice.Instance, said)
	}
	ev, listed := listedAs(t.notice.Event, f.standing(n, said))
	_, own := t.work.message.(*plan)
	young := t.notice.Event.Noticed.IsZero() || time.Since(t.notice.Event.Noticed) < listing
	switch {
	case !listed && own:
		t.again(lookPause) // It was listed a moment ago.
	case !listed && young && t.notice.Event.State == event.Pending:
		f.join(n, t)
	case !listed || ev.State != event.Pending:
		f.opts.Log.WithField(fieldNode, n.name).Infof("%s: EC2 has nothing more scheduled for the instance %s of what was announced (%s)",
			about(t.notice), t.notice.Instance, t.notice.Event.Code)
		t.done()
	default:
		ev.Instance = t.notice.Instance
		t.notice.Event, t.listed = ev, !own && n.instance != ""
		if f.owed(n, ev) {
			f.join(n, t)
		} else {
			f.notOwed(n, t)
		}
	}
}

// notOwed ends a task of maintenance for which nothing is to be done at a node now, as its notes say: another process may have seen to it. What
// EC2 lists is looked at again. Where a node does not tell its instance, only the message keeps it in mind.
func (f *Fleet) notOwed(n node, t *task) {
	ev := t.notice.Event
	_, own := t.work.message.(*plan)
	switch begins := f.policy().Begins(record.Entry{Event: ev}); {
	case own:
		t.again(lookPause)
	case n.instance == "" && begins.After(time.Now()):
		t.again(time.Until(begins))
	default:
		t.done()
	}
}

// listedAs finds the event that a message tells of among those that stand for its instance: AWS Health has no name for it that EC2 has.
// What was moved is found by its code, and what has another code by its time.
func listedAs(told event.Event, events []event.Event) (event.Event, bool) {
	var found event.Event
	var best int
	for _, ev := range events {
		alike := 0
		sameTime := ev.Deadline.Sub(told.Deadline).Abs() < time.Minute
		switch {
		case ev.Kind != told.Kind:
		case ev.ID == told.ID:
			alike = 5
		case ev.Code == told.Code && sameTime:
			alike = 4
		case ev.State == event.Pending && ev.Code == told.Code:
			alike = 3
		case ev.State == event.Pending && sameTime:
			alike = 2
		}
		if alike > best {
			found, best = ev, alike
		}
	}
	return found, best > 0
}

// refresh tells the session of a node what EC2 says now of the events that it is for.
func (f *Fleet) refresh(n node, events []event.Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.sessions[n.name]
	if s == nil || s.over {
		return
	}
	for _, ev := range s.announcedAs(events) {
		s.tasks[ev.ID].listed = n.instance != ""
		events = append(events, ev)
	}
	for id, t := range s.tasks {
		ev, said := t.notice.Event, event.State("")
		if i := slices.IndexFunc(events, func(listed event.Event) bool { return listed.ID == id }); i >= 0 {
			said = events[i].State
		}
		if ev.State = f.endedAs(n, ev, said); said == "" && ev.State != event.Pending {
			events = append(events, ev)
		}
	}
	news := map[event.Kind]bool{}
	for _, ev := range events {
		if t := s.tasks[ev.ID]; t != nil && !t.lifts && !sameWord(t.notice.Event, ev) {
			s.change(t, ev)
			news[ev.Kind] = true
		}
	}
	if len(news) > 0 && !s.begun {
		s.lineUp()
	}
	for kind := range news {
		s.announce(kind)
	}
}

// change takes in what EC2 says now of the event that a task is for. f.mu is held.
func (s *session) change(t *task, to event.Event) {
	f := s.fleet
	t.notice.Event, s.announced[to.ID] = to, to
	switch {
	case to.State == event.Pending:
	case s.begun:
		f.background(func(ctx context.Context) {
			f.unmark(ctx, s.node)
			s.mark(ctx) // For what else it is.
		})
	default:
		delete(s.tasks, to.ID)
		delete(s.announced, to.ID)
		t.done() // What was done for it before it came into the line is taken back by another session.
	}
}

// lineUp gives a session that waits in the line the place of what it waits for now; without anything, it is gone. f.mu is held.
func (s *session) lineUp() {
	f := s.fleet
	since := time.Now()
	f.line.places = slices.DeleteFunc(f.line.places, func(p place) bool {
		if p.node == s.node {
			since = p.since
		}
		return p.node == s.node
	})
	for _, t := range s.tasks {
		f.line.join(s.placeOf(t, since))
	}
	if s.over = len(s.tasks) == 0; s.over {
		delete(f.sessions, s.node)
	}
}

// sameWord tells whether EC2 says the same of an event as it did.
func sameWord(a, b event.Event) bool {
	return a.State == b.State && a.Code == b.Code && a.Deadline.Equal(b.Deadline) && a.Until.Equal(b.Until)
}

// unmark takes our taints off a node.
func (f *Fleet) unmark(ctx context.Context, name string) {
	if f.opts.DryRun {
		return
	}
	if err := f.untaint(ctx, name); err != nil && ctx.Err() == nil {
		f.opts.Log.WithField(fieldNode, name).Warn(err)
	}
}

// lift begins to take back what was done to a node, if that was for an event that is over, and tells whether it is. What else is due for
// the node goes on in the same session, so that it is not opened in between. A session that is there ends first: what it knows of the
// node's cordon, it has read at its beginning.
func (f *Fleet) lift(n node, events []event.Event) bool {
	if !n.ours || f.opts.DryRun || f.attended(n) {
		return false
	}
	ev, over := f.ended(n, events)
	if !over {
		return false
	}
	p := f.outlook.plan(n.name, "lift "+n.cordon.Event)
	pause, begun := p.begin(ev.Deadline, time.Time{}, "")
	if !begun {
		return true
	}
	f.background(func(ctx context.Context) {
		f.unmark(ctx, n.name) // First, as the cordon tells the next attempt that something is left.
		for _, other := range events {
			if other.ID != ev.ID && f.wanted(other) && !happened(n, other) && !f.waits(other) {
				f.join(n, taskOf(n, other, lifting{&plan{}}, pause))
			}
		}
		t := taskOf(n, ev, lifting{p}, pause)
		t.lifts = true
		f.join(n, t)
	})
	return true
}

// lifting is the message of what takes something back. That it is done is seen by the Node, and tried again if it is not.
type lifting struct{ *plan }

// Done implements Message.
func (l lifting) Done() { l.end(false, lookPause) }

// taskOf is a task of its own for one event of a node.
func taskOf(n node, ev event.Event, message Message, pause time.Duration) *task {
	notice := sqs.Notice{About: sqs.Interruption, Instance: n.machine, Event: ev}
	return &task{notice: notice, work: &work{message: message, open: 1, pause: pause}}
}

// ended tells whether the event that a node is closed for is over, and how it ended: the machine was rebooted as announced and its
// kubelet says again that it is Ready, EC2 says so, or EC2 has not listed it for some time.
func (f *Fleet) ended(n node, events []event.Event) (event.Event, bool) {
	claim, kind := n.cordon, event.Kind(n.cordon.Kind)
	if kind != event.ScheduledMaintenance && kind != event.StatusCheck {
		return event.Event{}, false
	}
	known := n.notes.of(claim.Event)
	said, listed := claimed(known, claim, events)
	ev := event.Event{
		ID: claim.Event, Kind: kind, Code: cmp.Or(said.Code, known.Code), State: event.Pending, Description: said.Description,
		Deadline: known.At, Instance: n.machine,
	}
	rebooted := claim.BootID != "" && n.bootID != "" && claim.BootID != n.bootID
	if kind == event.ScheduledMaintenance && reboots(ev.Code) && rebooted {
		return ev, n.ready
	}
	state := f.endedAs(n, ev, said.State)
	completed := f.outlook.lasting(n.name+" beyond "+claim.Event, listed && said.State == event.Completed)
	switch {
	case state == event.Pending:
		return event.Event{}, false
	case listed && state == event.Completed: // The machine may be about to go down.
		ev.State = state
		return ev, n.ready && (rebooted || !reboots(ev.Code) || completed >= listing)
	}
	ev.State = state
	return ev, true
}

// endedAs is how an event of a node ended of which EC2 says that, or nothing; Pending if it did not, as far as EC2 would list it.
func (f *Fleet) endedAs(n node, ev event.Event, said event.State) event.State {
	without := n.name + " without " + ev.ID
	if said != "" {
		f.outlook.lasting(without, false)
		return said
	}
	_, asked := f.outlook.of(n.machine)
	switch missing := f.outlook.lasting(without, asked && listable(ev)); {
	case missing < listing:
		return event.Pending
	case ev.Kind == event.StatusCheck:
		return event.Completed
	}
	return event.Canceled
}

// listable tells whether EC2 lists an event as long as it stands: all that it has told of itself and, of what AWS Health writes of, what EC2
// schedules.
func listable(ev event.Event) bool {
	return ev.Kind == event.StatusCheck || ev.Kind == event.ScheduledMaintenance && (!fromMessage(ev.ID) || ec2.Schedules(ev.Code))
}

// claimed finds the event that a node is closed for among those that stand.
func claimed(known note, claim drain.Claim, events []event.Event) (event.Event, bool) {
	i := slices.IndexFunc(events, func(ev event.Event) bool { return ev.ID == claim.Event || known.means(ev) })
	if i < 0 {
		return event.Event{}, false
	}
	return events[i], true
}
