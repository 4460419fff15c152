package fleet

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/ec2"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/sqs"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/systemd"
)

// eventsOf returns the events that EC2 has listed last for the instance of a node.
func (f *Fleet) eventsOf(n node) []event.Event {
	said, _ := f.maintenance.of(n.machine)
	return f.listedEvents(n, said)
}

// listedEvents returns the events in the status of a node's instance.
func (f *Fleet) listedEvents(n node, said ec2.Status) []event.Event {
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
	if ev, fails := f.statusCheckEvent(n, said); fails {
		all = append(all, ev)
	}
	return all
}

// statusCheckEvent returns the event of a status check that has failed for long enough. While the node is cordoned for such an event, it
// keeps its ID.
func (f *Fleet) statusCheckEvent(n node, said ec2.Status) (event.Event, bool) {
	if said.Impaired == "" || n.instance == "" || f.maintenance.failed(n.instance, said) < f.rules.Load().Impaired {
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

// reconcileAll reconciles the nodes for which EC2 lists something, and those with a cordon of nth-queue, notes or a session.
func (f *Fleet) reconcileAll() {
	var some []node
	f.mu.Lock()
	busy := maps.Clone(f.sessions)
	f.mu.Unlock()
	f.nodes.each(func(n node) {
		said, _ := f.maintenance.of(n.machine)
		if len(said.Planned) > 0 || said.Impaired != "" || n.ours || len(n.notes) > 0 || busy[n.name] != nil {
			some = append(some, n)
		}
	})
	for _, n := range some {
		f.reconcile(n, f.eventsOf(n))
	}
}

// reconcile does what is due for a node, given the events that EC2 lists for it.
func (f *Fleet) reconcile(n node, events []event.Event) {
	f.refreshSession(n, events)
	if f.beginLift(n, events) {
		return
	}
	for _, ev := range events {
		tells := n.instance != "" // Otherwise only messages begin work: the instance that was found by the node's name may be another by now.
		if tells && f.wanted(ev) && f.isDue(n, ev) && !f.isHandled(n, ev.ID, events) {
			f.beginListed(n, ev)
		}
	}
	f.removeOldNotes(n, events)
}

// wanted reports whether the rules have anything done about an event.
func (f *Fleet) wanted(ev event.Event) bool {
	return ev.State == event.Pending && !f.policy().Ignores(state.Entry{Event: ev})
}

// isHandled reports whether the node's session has a task for an event, given all events that EC2 lists.
func (f *Fleet) isHandled(n node, id string, events []event.Event) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.sessions[n.name]
	if s == nil {
		return false
	}
	_, announced := s.announcedAs(events)[id]
	return announced || s.tasks[id] != nil
}

// announcedAs finds those of the listed events that the session knows from messages that came before EC2 listed them. They are returned by
// EC2's IDs, as EC2 describes them, but with the IDs of the messages. f.mu is held.
func (s *session) announcedAs(events []event.Event) map[string]event.Event {
	all := map[string]event.Event{}
	for id, t := range s.tasks {
		if fromMessage(id) && s.fleet.needsVerification(t) {
			if ev, listed := listedAs(t.notice.Event, events); listed {
				listedID := ev.ID
				ev.ID, ev.Noticed = id, t.notice.Event.Noticed
				all[listedID] = ev
			}
		}
	}
	return all
}

// beginListed begins the work for a listed event, as if a message had announced it.
func (f *Fleet) beginListed(n node, ev event.Event) {
	p := f.maintenance.attemptsFor(n.name, ev.ID)
	e := state.Entry{Event: ev}
	if pause, begun := p.begin(ev.Deadline, f.policy().Begins(e), f.policy().Asks(e)); begun {
		f.take([]sqs.Notice{{About: sqs.Interruption, Instance: n.instance, Event: ev}}, pause, p)
	}
}

// isDue reports whether something is to be done about an event now: it was not announced yet, its time has come, the rules ask for more
// than was done, or it was postponed and what was done is to be taken back.
func (f *Fleet) isDue(n node, ev event.Event) bool {
	if alreadyHappened(n, ev) {
		return false
	}
	waits := f.isEarly(ev)
	known, noted := n.notes.find(ev)
	switch {
	case waits && n.ours && n.cordon.Event == ev.ID, !noted, !known.At.Equal(ev.Deadline):
		return true
	case waits:
		return false
	}
	return known.fallsShort(f.policy().Asks(state.Entry{Event: ev}))
}

// isEarly reports whether the time to act on an event has not come.
func (f *Fleet) isEarly(ev event.Event) bool {
	return f.policy().Begins(state.Entry{Event: ev}).After(time.Now())
}

// alreadyHappened reports whether an event that EC2 still lists is over, because the machine was rebooted after its time.
func alreadyHappened(n node, ev event.Event) bool {
	return isReboot(ev.Code) && !ev.Deadline.IsZero() && n.readySince.After(ev.Deadline)
}

// isReboot reports whether an event is over once the machine was rebooted.
func isReboot(code string) bool { return code == "system-reboot" || code == "instance-reboot" }

// needsVerification reports whether EC2 is to be asked about a task before it begins.
func (f *Fleet) needsVerification(t *task) bool {
	n := t.notice
	return f.opts.Schedule != nil && n.Event.Kind == event.ScheduledMaintenance && n.Instance != "" && ec2.Schedules(n.Event.Code)
}

// verify begins a task for scheduled maintenance as EC2 lists that now, and ends it if it is over or done. If EC2 cannot be asked, or may
// not list a recent event yet, the message is believed.
func (f *Fleet) verify(ctx context.Context, n node, t *task) {
	if n.instance == "" {
		n.machine = t.notice.Instance
		f.nodes.identify(n.name, n.machine)
	}
	said, known, err := f.opts.Schedule.Status(ctx, t.notice.Instance)
	switch {
	case ctx.Err() != nil:
		t.retryAfter(0)
		return
	case err != nil:
		f.logPollError(err)
		f.join(n, t)
		return
	case known:
		f.maintenance.update(t.notice.Instance, said)
	}
	ev, listed := listedAs(t.notice.Event, f.listedEvents(n, said))
	young := t.notice.Event.Noticed.IsZero() || time.Since(t.notice.Event.Noticed) < listDelay
	switch {
	case !listed && t.fromList():
		t.retryAfter(pollInterval) // It was listed a moment ago.
	case !listed && young && t.notice.Event.State == event.Pending:
		f.join(n, t)
	case !listed || ev.State != event.Pending:
		f.opts.Log.WithField(fieldNode, n.name).Infof("%s: EC2 has nothing more scheduled for the instance %s of what was announced (%s)",
			describeNotice(t.notice), t.notice.Instance, t.notice.Event.Code)
		t.done()
	default:
		ev.Instance = t.notice.Instance
		t.notice.Event, t.listed = ev, !t.fromList() && n.instance != ""
		if f.isDue(n, ev) {
			f.join(n, t)
		} else {
			f.endNotDue(n, t)
		}
	}
}

// endNotDue ends a task for which nothing is to be done now. EC2 lists its event, so it is not forgotten, unless the node does not tell
// its instance: then the message is returned until the time has come.
func (f *Fleet) endNotDue(n node, t *task) {
	ev := t.notice.Event
	switch begins := f.policy().Begins(state.Entry{Event: ev}); {
	case t.fromList():
		t.retryAfter(pollInterval)
	case n.instance == "" && begins.After(time.Now()):
		t.retryAfter(time.Until(begins))
	default:
		t.done()
	}
}

// listedAs finds the event of a message among those that EC2 lists for its instance. AWS Health does not use EC2's IDs. An event that was
// moved has the same code, and one whose code has changed has the same time.
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

// refreshSession updates the events of a node's session to what EC2 lists now.
func (f *Fleet) refreshSession(n node, events []event.Event) {
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
		if t := s.tasks[ev.ID]; t != nil && !t.lifts && !sameEvent(t.notice.Event, ev) {
			s.changeEvent(t, ev)
			news[ev.Kind] = true
		}
	}
	if s.over = !s.begun && len(s.tasks) == 0; s.over {
		delete(f.sessions, s.node)
	}
	for kind := range news {
		s.announce(kind)
	}
}

// changeEvent updates the event of a task. f.mu is held.
func (s *session) changeEvent(t *task, to event.Event) {
	f := s.fleet
	t.notice.Event, s.announced[to.ID] = to, to
	switch {
	case to.State == event.Pending:
	case s.begun:
		f.background(func(ctx context.Context) {
			f.removeTaints(ctx, s.node)
			s.addTaints(ctx) // Of the other events.
		})
	default:
		s.forget(to.ID)
		t.done() // What an earlier session has done for it is taken back by beginLift.
	}
}

// sameEvent reports whether EC2 describes an event as it did before.
func sameEvent(a, b event.Event) bool {
	return a.State == b.State && a.Code == b.Code && a.Deadline.Equal(b.Deadline) && a.Until.Equal(b.Until)
}

// beginLift begins to uncordon a node whose event is over, and reports whether it is over. Other events that are due are handled in the
// same session, so that the node is not uncordoned in between. A session that exists has to end first, because it has read the cordon at
// its beginning.
func (f *Fleet) beginLift(n node, events []event.Event) bool {
	f.mu.Lock()
	busy := f.sessions[n.name] != nil
	f.mu.Unlock()
	if !n.ours || f.opts.DryRun || busy {
		return false
	}
	ev, over := f.ended(n, events)
	if !over {
		return false
	}
	p := f.maintenance.attemptsFor(n.name, "lift "+n.cordon.Event)
	pause, begun := p.begin(ev.Deadline, time.Time{}, "")
	if !begun {
		return true
	}
	f.background(func(ctx context.Context) {
		f.removeTaints(ctx, n.name) // Before the cordon, which tells the next attempt that something is left.
		for _, other := range events {
			if other.ID != ev.ID && f.wanted(other) && !alreadyHappened(n, other) && !f.isEarly(other) {
				f.join(n, f.taskOf(n, other, liftMessage{&attempts{}}, pause))
			}
		}
		t := f.taskOf(n, ev, liftMessage{p}, pause)
		t.lifts = true
		f.join(n, t)
	})
	return true
}

// liftMessage is the message of a task that takes something back. Whether it has succeeded is seen on the Node, so it is tried again until
// then.
type liftMessage struct{ *attempts }

// Done implements Message.
func (l liftMessage) Done() { l.end(false, pollInterval) }

// taskOf returns a task for an event of a node that has no message in the queue.
func (f *Fleet) taskOf(n node, ev event.Event, message Message, pause time.Duration) *task {
	notice := sqs.Notice{About: sqs.Interruption, Instance: n.machine, Event: ev}
	return f.newTask(notice, &messageWork{message: message, open: 1, pause: pause})
}

// ended reports whether the event that a node is cordoned for is over, and returns the event as it ended: the machine was rebooted and its
// kubelet is Ready again, EC2 says so, or EC2 has not listed the event for listDelay.
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
	if kind == event.ScheduledMaintenance && isReboot(ev.Code) && rebooted {
		return ev, n.ready
	}
	state := f.endedAs(n, ev, said.State)
	completed := f.maintenance.holdsFor(n.name+" beyond "+claim.Event, listed && said.State == event.Completed)
	switch {
	case state == event.Pending:
		return event.Event{}, false
	case listed && state == event.Completed: // The machine may be about to go down.
		ev.State = state
		return ev, n.ready && (rebooted || !isReboot(ev.Code) || completed >= listDelay)
	}
	ev.State = state
	return ev, true
}

// endedAs returns the state of an event, given what EC2 says about it, or "": it is Pending as long as EC2 might yet list it, and has
// ended when EC2 has not listed it for listDelay.
func (f *Fleet) endedAs(n node, ev event.Event, said event.State) event.State {
	without := n.name + " without " + ev.ID
	if said != "" {
		f.maintenance.holdsFor(without, false)
		return said
	}
	_, asked := f.maintenance.of(n.machine)
	switch missing := f.maintenance.holdsFor(without, asked && listable(ev)); {
	case missing < listDelay:
		return event.Pending
	case ev.Kind == event.StatusCheck:
		return event.Completed
	}
	return event.Canceled
}

// listable reports whether EC2 lists an event as long as it stands. Of the events of AWS Health, those that EC2 schedules.
func listable(ev event.Event) bool {
	return ev.Kind == event.StatusCheck || ev.Kind == event.ScheduledMaintenance && (!fromMessage(ev.ID) || ec2.Schedules(ev.Code))
}

// claimed finds the event that a node is cordoned for among those that EC2 lists.
func claimed(known note, claim drain.Claim, events []event.Event) (event.Event, bool) {
	i := slices.IndexFunc(events, func(ev event.Event) bool { return ev.ID == claim.Event || known.matches(ev) })
	if i < 0 {
		return event.Event{}, false
	}
	return events[i], true
}

// Schedule is what EC2 has scheduled for instances, and which status checks fail. An error is ec2.ErrRefused if IAM does not allow the
// request. ec2.Catalog implements it.
type Schedule interface {
	// Status returns the status of one instance; known is false if EC2 does not know it.
	Status(ctx context.Context, id string) (found ec2.Status, known bool, err error)
	// Notable returns, by instance ID, the status of all instances of the region with scheduled events and, with checks, of those whose status
	// checks fail.
	Notable(ctx context.Context, checks bool) (map[string]ec2.Status, error)
}

const (
	// pollInterval is how often EC2 is asked for all that is notable, and refusedInterval the same while IAM does not allow it.
	pollInterval, refusedInterval = time.Minute, 10 * time.Minute
	// reconcileInterval is how often the nodes are reconciled with it.
	reconcileInterval = 5 * time.Second
	// listDelay is how long EC2's list may lag behind an announcement, and how long an event must be missing from the list to be over.
	listDelay = 15 * time.Minute
)

// ec2View is what EC2 has listed last, and how far the work for it has come.
type ec2View struct {
	mu       sync.Mutex
	listed   map[string]ec2.Status // by instance
	lastLook time.Time             // when the last successful poll began; zero if EC2 refuses, or was not asked yet
	trouble  string                // the kind of the last error, which was logged
	first    map[string]time.Time  // since when something holds, see holdsFor
	attempts map[string]*attempts  // see attemptsFor
}

func newEC2View() *ec2View {
	return &ec2View{listed: map[string]ec2.Status{}, first: map[string]time.Time{}, attempts: map[string]*attempts{}}
}

// attempts counts the attempts to do one thing at one node. It is the Message of its tasks.
type attempts struct {
	mu         sync.Mutex
	busy, done bool
	deadline   time.Time
	begins     time.Time     // by the rules
	asks       policy.Action // by the rules
	next       time.Time     // not before then
	tries      int
}

// begin begins an attempt, unless one is under way, the last one has succeeded for the same deadline and rules, or it is too early. pause
// is the delay if the attempt fails.
func (p *attempts) begin(deadline, begins time.Time, asks policy.Action) (pause time.Duration, begun bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if (!deadline.Equal(p.deadline) || asks != p.asks) && !p.busy {
		p.done, p.deadline, p.asks, p.next, p.tries = false, deadline, asks, time.Time{}, 0
	}
	if !begins.Equal(p.begins) && !p.busy {
		p.begins, p.next = begins, time.Time{}
	}
	if p.busy || p.done || time.Now().Before(p.next) {
		return 0, false
	}
	p.busy = true
	p.tries++
	return attemptPause(p.tries), true
}

// fastTries is after how many attempts the delay goes on growing, up to longestAttemptPause: an event may be listed for as long as EC2
// likes, and there is no dead-letter queue for it.
const fastTries, longestAttemptPause = 10, time.Hour

// attemptPause is the delay after so many attempts.
func attemptPause(tries int) time.Duration {
	return min(retryPause(tries)<<min(max(tries-fastTries, 0), fastTries), longestAttemptPause)
}

// Done implements Message.
func (p *attempts) Done() { p.end(true, 0) }

// Return implements Message.
func (p *attempts) Return(after time.Duration) { p.end(false, after) }

func (p *attempts) end(done bool, after time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.busy, p.done, p.next = false, done, time.Now().Add(after)
}

// attemptsFor returns the attempts to do something at a node.
func (o *ec2View) attemptsFor(node, what string) *attempts {
	o.mu.Lock()
	defer o.mu.Unlock()
	key := node + " " + what
	if o.attempts[key] == nil {
		o.attempts[key] = &attempts{}
	}
	return o.attempts[key]
}

// of returns the last listed status of an instance; known is false if EC2 was not asked yet, or if the node does not tell its instance.
func (o *ec2View) of(instance string) (said ec2.Status, known bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if instance == "" {
		return ec2.Status{}, false
	}
	return o.listed[instance], !o.lastLook.IsZero()
}

// update takes in the current status of one instance.
func (o *ec2View) update(instance string, said ec2.Status) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(said.Planned) == 0 && said.Impaired == "" {
		delete(o.listed, instance)
		return
	}
	o.listed[instance] = said
}

// holdsFor returns for how long something has held, measured by successful polls, given whether it holds now.
func (o *ec2View) holdsFor(what string, now bool) time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !now {
		delete(o.first, what)
		return 0
	}
	if o.first[what].IsZero() {
		o.first[what] = o.lastLook
	}
	return o.lastLook.Sub(o.first[what])
}

// impaired is the suffix of the keys in ec2View.first that are about status checks.
const impaired = " impaired"

// failed returns for how long a status check had failed at the last successful poll. What has become of it since is not known.
func (o *ec2View) failed(instance string, said ec2.Status) time.Duration {
	lasting := o.holdsFor(instance+impaired, true)
	o.mu.Lock()
	defer o.mu.Unlock()
	if !said.Since.IsZero() {
		lasting = o.lastLook.Sub(said.Since)
	}
	return lasting
}

// replace takes in a successful poll, and forgets old attempts and since when checks failed that pass now. It reports whether the poll
// before had failed.
func (o *ec2View) replace(said map[string]ec2.Status, at time.Time) (recovered bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	recovered = o.trouble != ""
	o.listed, o.lastLook, o.trouble = said, at, ""
	maps.DeleteFunc(o.first, func(what string, _ time.Time) bool {
		instance, check := strings.CutSuffix(what, impaired)
		return check && said[instance].Impaired == ""
	})
	maps.DeleteFunc(o.attempts, func(_ string, p *attempts) bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return !p.busy && at.Sub(p.next) > forgetAfter
	})
	return recovered
}

// forgetAfter is when attempts are forgotten. The Node's notes say whether their event is done.
const forgetAfter = time.Hour

// noteError takes in that a poll has failed, and reports whether that is to be logged.
func (o *ec2View) noteError(err error) (news bool) {
	refused := errors.Is(err, ec2.ErrRefused)
	why := "trouble"
	o.mu.Lock()
	defer o.mu.Unlock()
	if refused {
		why = "refused"
		o.listed, o.lastLook = map[string]ec2.Status{}, time.Time{}
	}
	news = o.trouble != why
	o.trouble = why
	return news
}

// runMaintenance polls EC2 and reconciles the nodes until ctx ends.
func (f *Fleet) runMaintenance(ctx context.Context) {
	var next time.Time
	ticks := time.NewTicker(reconcileInterval)
	defer ticks.Stop()
	for ctx.Err() == nil {
		if !time.Now().Before(next) {
			next = time.Now().Add(f.pollEC2(ctx))
		}
		f.reconcileAll()
		select {
		case <-ctx.Done():
		case <-ticks.C:
		}
	}
}

// pollEC2 asks EC2 for all that is notable, and returns the time until the next poll.
func (f *Fleet) pollEC2(ctx context.Context) time.Duration {
	checks := !f.ignores(event.StatusCheck)
	if f.opts.Schedule == nil || !checks && f.ignores(event.ScheduledMaintenance) {
		return pollInterval
	}
	at := time.Now()
	said, err := f.opts.Schedule.Notable(ctx, checks)
	switch {
	case ctx.Err() != nil:
	case err != nil:
		return f.logPollError(err)
	case f.maintenance.replace(said, at):
		f.opts.Log.WithField(systemd.FieldMessageID, systemd.SourceRecovered).Info("EC2 tells again what it has scheduled")
	}
	return pollInterval
}

// logPollError logs that EC2 does not answer, once, and returns the time until the next poll.
func (f *Fleet) logPollError(err error) time.Duration {
	refused := errors.Is(err, ec2.ErrRefused)
	if f.maintenance.noteError(err) {
		log := f.opts.Log.WithField(systemd.FieldMessageID, systemd.SourceTrouble)
		if refused {
			log.Warnf("maintenance is drained for as it was once announced, also if it is canceled or moved since, what was announced before "+
				"nth-queue came is not known, nor are failed status checks: %s", err)
		} else {
			log.Warnf("what EC2 has scheduled stands as it was known: %s", err)
		}
	}
	if refused {
		return refusedInterval
	}
	return pollInterval
}

// ignores reports whether the rules ignore a kind of events.
func (f *Fleet) ignores(kind event.Kind) bool {
	return f.policy().Ignores(state.Entry{Event: event.Event{Kind: kind}})
}
