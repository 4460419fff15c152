package fleet

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/nth-project/nth/pkg/ec2"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/loop"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/sqs"
	"github.com/nth-project/nth/pkg/state"
)

// instance is an EC2 instance about which a message, EC2's list or its Node says something. The term's mutex guards it.
type instance struct {
	id    string
	hints map[string]*hint // the hints that are not settled, by hint.key
	// started is when the instance was last started, by a message; zero without such a message in this term.
	started time.Time
	// stoppedBy is the ID of the event for whose message EC2 said that the instance has stopped; "" without one.
	stoppedBy string
	// drain is the session for the instance's Node; nil if there is none. judged is set once a look knew what EC2 lists.
	drain  *session
	judged bool
	// node is the Node that the instance had at the last look. Its uid is empty if there was none, or if that Node was deleted: the rest is kept if the
	// Node had a mark.
	node node
	// goneSince is when a look first found that the Node was deleted. It is zero while the instance has a Node, or if it never had one in this term.
	goneSince time.Time
	// gone is set if EC2 has said of the instance, which had a mark, that it is terminated.
	gone bool
	// record is what was done on that Node in this term; nil before the first drain.
	record *record
	// verdicts say which requests nth-queue may make about the instance, and notStarted why it could not be started again; "" if it could. Only looks
	// use them, without the mutex.
	verdicts   map[ec2.Request]verdict
	notStarted string
}

// instance returns the instance with that ID. It adds the instance if the term does not have it. The term's mutex is held.
func (t *term) instance(id string) *instance {
	inst := t.instances[id]
	if inst == nil {
		inst = &instance{id: id, hints: map[string]*hint{}, verdicts: map[ec2.Request]verdict{}}
		t.instances[id] = inst
	}
	return inst
}

// reconcilers is how many instances are looked at at the same time. It is large, so that urgent instances find a free reconciler while others
// wait for EC2. ec2.Catalog joins the questions into few requests.
const reconcilers = 256

// reconcile looks at one instance of the queue after the other, until the term ends. serveTerm runs it in several goroutines. The queue gives
// an instance to one of them at a time, so no instance is looked at twice at once.
func (t *term) reconcile() {
	for {
		id, over := t.queue.Get()
		if over {
			return
		}
		t.mu.Lock()
		inst := t.instances[id]
		t.mu.Unlock()
		if inst != nil && t.ctx.Err() == nil {
			if again := t.look(inst); again > 0 {
				t.queue.AddAfter(id, again)
			}
			t.forget(inst)
		}
		t.queue.Done(id)
	}
}

// forget removes an instance from the term, unless something is to be done or recorded for it.
func (t *term) forget(inst *instance) {
	t.mu.Lock()
	defer t.mu.Unlock()
	recorded := inst.record != nil && len(inst.record.Entries()) > 0
	if len(inst.hints) == 0 && inst.drain == nil && !recorded && !inst.node.marked() {
		delete(t.instances, inst.id)
	}
}

// look brings the work for an instance up to date. First it finds the instance's Node. Then it decides about each hint. Last it begins, changes or
// ends the drain of the Node, by the events that stand now. It returns when to look again; 0 if only after news.
func (t *term) look(inst *instance) time.Duration {
	nodes, err := t.nodesOf(inst)
	var on node // its uid is empty without a Node
	t.mu.Lock()
	hints := slices.Collect(maps.Values(inst.hints))
	switch {
	case len(nodes) > 0:
		on = nodes[0]
		isDrained := func(n node) bool { return inst.drain.runs() && n.uid == inst.drain.node.uid }
		if i := slices.IndexFunc(nodes, isDrained); i >= 0 { // A drain that is under way continues.
			on = nodes[i]
		}
		if inst.node.uid != on.uid { // The record is of the instance's former Node.
			inst.record = nil
		}
		if len(on.mark.Events) == 0 { // The Node is a new one, to which syncMark writes the mark, or the watch does not show the mark yet.
			on.mark = inst.node.mark
		}
		inst.node, inst.goneSince = on, time.Time{}
	case err == nil && inst.node.uid != "": // The Node was deleted.
		inst.node.uid = ""
		if len(inst.node.mark.Events) == 0 {
			inst.node = node{}
		}
		inst.record, inst.goneSince = nil, time.Now()
	}
	last := inst.node
	t.mu.Unlock()
	var again time.Duration
	for _, h := range hints {
		again = sooner(again, t.judge(inst, h, on, err))
	}
	if on.uid != "" {
		again = sooner(again, t.pursue(inst, on))
		again = sooner(again, t.tidyOpened(on))
		again = sooner(again, t.syncMark(inst, on))
	}
	again = sooner(again, t.followRequest(inst, last))
	return sooner(again, t.cordonWaiting(inst))
}

// sooner returns the shorter of two times, where 0 means never.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b > 0 && b < a {
		return b
	}
	return a
}

// judge decides about one hint of an instance: it accepts the hint, waits for an answer of EC2, or settles the hint. on is the instance's Node; its uid is
// empty without a Node, and err is why the Node cannot be found. judge returns when to decide again; 0 if only after news.
func (t *term) judge(inst *instance, h *hint, on node, err error) time.Duration {
	t.mu.Lock()
	busy, accepted := h.busy, h.accepted
	t.mu.Unlock()
	switch {
	case busy: // A goroutine settles the hint.
		return 0
	case h.About == sqs.Interruption && t.opts.Policy.Ignores(state.Entry{Event: h.Event}): // The settings ignore events of this kind.
		t.done(inst, h)
		return 0
	case errors.Is(err, errAmbiguous):
		t.opts.Log.Errorf("not draining any node for the %s of the instance %s: %s", h.describe(), inst.id, err)
		t.done(inst, h)
		return 0
	case err != nil && on.uid == "": // EC2 does not answer which Node the instance has.
		return t.failed(h, err)
	case on.uid == "":
		return t.judgeWithoutNode(inst, h)
	case accepted:
		return t.judgeInterruption(inst, h, on)
	}
	managed, err := t.isManaged(inst.id)
	switch {
	case err != nil:
		return t.failed(h, err)
	case !managed:
		t.opts.Log.Debugf("%s: the instance %s does not have the tag of fleet.managed_tag; nth-queue does not drain its node", h.describe(), inst.id)
		t.done(inst, h)
		return 0
	case h.About == sqs.Launch:
		return t.judgeLaunch(inst, h, on)
	}
	return t.judgeInterruption(inst, h, on)
}

// judgeInterruption decides about a hint of an interruption whose instance has the Node on: it accepts the hint, or settles it if the instance runs
// again. It asks EC2 only about a hint that is not accepted yet. It returns when to decide again; 0 if only after news.
func (t *term) judgeInterruption(inst *instance, h *hint, on node) time.Duration {
	t.mu.Lock()
	accepted, isStop := h.accepted, !stopTime(h).IsZero()
	over := isStop && inst.startedSince(h.Event, h.bootID, cmp.Or(h.Event.Noticed, h.received), on)
	t.mu.Unlock()
	var again time.Duration
	if !accepted { // EC2's answer counts, whatever the messages say.
		over, again = t.askAboutStop(inst, h, on)
	}
	switch {
	case over: // The cordon is taken back like that of any recorded event.
		t.opts.Log.WithField(fieldNode, on.name).Infof("the instance %s is running again, so its %s (%s) is over; nth-queue lifts any cordon for it", inst.id, h.describe(), h.Event.Code)
		t.done(inst, h)
	case !accepted && again == 0: // With another value of again, EC2 has to be asked once more.
		t.mu.Lock()
		h.accepted, h.bootID = true, on.bootID
		t.mu.Unlock()
		if t.wantsDrain(h) {
			t.hold(inst, h)
		}
	}
	return again
}

// startedSince reports whether the instance was started again after an event: its Node had that boot ID before and shows another one now, or a message
// names a start after the time at. It returns false while the Node is not Ready, as the boot ID may be an old one, and while the event's deadline is
// ahead: a reboot before EC2 stops the instance ends nothing. The term's mutex is held.
func (inst *instance) startedSince(ev event.Event, bootID string, at time.Time, on node) bool {
	isAhead := ev.Deadline.After(time.Now())
	rebooted := bootID != "" && bootID != on.bootID
	return on.ready && !isAhead && (rebooted || inst.started.After(at))
}

const (
	// joinTime is how long an instance must have no Node before nth-queue takes it as one without. The instance may be joining the cluster, or its
	// kubelet may be registering again.
	joinTime = 10 * time.Second
	// launchTimeout is how long a new instance may take until its node is Ready.
	launchTimeout = 30 * time.Minute
)

// judgeWithoutNode decides about a hint whose instance has no Node in this cluster. It returns when to decide again; 0 if only after news.
func (t *term) judgeWithoutNode(inst *instance, h *hint) time.Duration {
	t.mu.Lock()
	goneSince := inst.goneSince
	t.mu.Unlock()
	nodeless := slices.MaxFunc([]time.Time{h.received, goneSince}, time.Time.Compare) // since when the instance has no Node, as far as is known
	if _, trouble := t.lead.lock.trouble(); trouble != nil {
		nodeless = time.Now() // The API server does not answer: the watch may not show a Node that exists.
	}
	ctx, cancel := context.WithTimeout(t.ctx, lookUpTimeout)
	defer cancel()
	found, _, err := t.opts.EC2.Look(ctx, inst.id)
	hadNode := !goneSince.IsZero()
	isHere := hadNode || t.belongsHere(found)
	groupWaits := h.About == sqs.Interruption && t.completes(h) && t.wantsDrain(h) // Auto Scaling waits until its lifecycle hook is completed.
	age := time.Since(h.received)
	switch {
	case err != nil && groupWaits && !hadNode: // Only EC2 knows whether the instance is in this cluster, so that the hook is completed.
		return t.failed(h, err)
	case !isHere && t.belongsElsewhere(found):
		t.opts.Log.Infof("%s: the instance %s belongs to another cluster; nth-queue does not drain its node", h.describe(), inst.id)
		t.done(inst, h)
	case t.completesLaunch(h) && age < launchTimeout:
		t.awaitLaunch(inst, h)
		return launchTimeout - age
	case time.Since(nodeless) < joinTime: // The instance may have a Node that the watch has not shown yet.
		return max(joinTime-time.Since(nodeless), time.Second)
	case isHere && groupWaits:
		t.opts.Log.Infof("%s: the instance %s has no Node in this cluster; completing the lifecycle hook %q of the Auto Scaling group %q",
			h.describe(), inst.id, h.Hook.Name, h.Hook.Group)
		t.complete(inst, h, event.Drained)
	case isHere && isUrgent(h.Event) && time.Now().Before(h.Event.Deadline): // The instance may still join the cluster before its deadline.
		return askPause
	default:
		t.opts.Log.Infof("%s: the instance %s has no Node in this cluster; nth-queue does nothing for it; a lifecycle hook, if it has one, times out", h.describe(), inst.id)
		t.done(inst, h)
	}
	return 0
}

// pursue brings the session of an instance's Node in line with the events that stand. It enlists a new session, passes the events to the one that
// runs, or drops the one that waits. A session also takes back a cordon. pursue returns when the policy may decide otherwise; 0 if only after
// news.
func (t *term) pursue(inst *instance, on node) time.Duration {
	events, past, hinted, asked := t.standing(inst, on)
	rules := t.rulesFor(inst, on, events)
	due, goal := t.decide(rules, on, events, past)
	takesTurn := finishing(rules, goal, on, events, past)
	for _, e := range past { // A node that was drained before nth-queue might finish: a session has to make the request.
		if takesTurn && e.Phase == state.Drained && slices.Contains(goal.Events, e.Event.ID) {
			due[e.Event.ID] = true
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	inst.judged = inst.judged || asked
	s := inst.drain
	switch {
	case s != nil && s.stage >= ending:
		return 0 // The instance is looked at again when the drain has ended.
	case s != nil && s.stage == working && s.node.uid != on.uid: // The Node that is drained is gone, and the instance has another one.
		s.stage = ending
		s.stop()
		return 0
	case s != nil && s.stage == working:
		if requested := on.entriesOfMark(s.record.Entries(), events); len(requested) > 0 { // EC2 lists an event of the mark again.
			// Put also has runAgent write to the Node.
			s.record.Put(func(error) {}, requested...)
		}
		s.update(events)
		return 0
	case len(hinted) > 0 || len(due) > 0: // Even if nothing is due, hints are settled by a session.
		maps.Copy(due, hinted)
		s = t.enlist(inst, on, events, past, due)
		s.rules, s.goal, s.takesTurn = rules, goal, takesTurn
		s.prioritize() // cordonWaiting needs the urgency, even if the session has no place.
		t.dispatch()
	default: // A session that waits is not needed any more.
		inst.drain = nil
		if inst.record != nil {
			inst.record = newRecord(past) // without the closed entries that are not needed any more
		}
	}
	return inst.nextLook(goal.Revisit)
}

// nextLook returns when to look again because the policy may decide otherwise then (revisit), or because a session that waits gets urgent, and then waits
// no longer; 0 if only after news. The term's mutex is held.
func (inst *instance) nextLook(revisit time.Time) time.Duration {
	if s := inst.drain; s != nil && s.stage == waiting && !s.urgent.Load() && s.deadline != noDeadline {
		revisit = loop.Soonest(revisit, s.deadline.Add(-urgentWithin))
	}
	if revisit.IsZero() {
		return 0
	}
	return max(time.Until(revisit), time.Second)
}

// enlist has a session for the Node wait for its turn, or brings the one that waits up to date. past is the record for it. due has the IDs of the
// events for which there is something to do; the others rest. The term's mutex is held.
func (t *term) enlist(inst *instance, on node, events []event.Event, past []state.Entry, due map[string]bool) *session {
	s := inst.drain
	if s == nil || s.node.uid != on.uid {
		s = &session{term: t, instance: inst, since: time.Now(), stop: func() {}}
		inst.drain = s
	}
	s.node, s.record = on, newRecord(past) // The node may have been rebooted, or cordoned by others, while the session waits.
	s.events = map[string]*task{}
	for _, ev := range events {
		s.events[ev.ID] = &task{Event: ev, rests: !due[ev.ID]}
	}
	return s
}

// decide asks the policy, with rules, about the events that stand for a Node and about the Node's record past. due has the IDs of the events for
// which there is something to do or to report now. goal is the policy's goal for the node.
func (t *term) decide(rules policy.Settings, on node, events []event.Event, past []state.Entry) (due map[string]bool, goal policy.Goal) {
	situation := policy.Situation{Now: time.Now(), BootID: on.bootID, Known: map[event.Kind][]event.Event{}, Past: past}
	for _, ev := range events {
		situation.Known[ev.Kind] = append(situation.Known[ev.Kind], ev)
	}
	for changed := rules.Fold(situation); len(changed) > 0; changed = rules.Fold(situation) { // until nothing changes, as the agent does
		situation.Past = merged(situation.Past, changed)
	}
	due = map[string]bool{}
	for _, e := range situation.Past {
		before, _ := policy.Find(past, e.Event.ID)
		isDue := !policy.SameNews(before, e) || e.UnderWay() && !e.LeftAlone
		if e.Phase == state.Undoing { // The uncordon waits until the kubelet reports the node Ready.
			isDue = on.ready
		}
		if _, stands := find(events, e.Event.ID); stands && isDue { // An event that EC2 does not list now may be listed again.
			due[e.Event.ID] = true
		}
	}
	return due, rules.Decide(situation)
}

// standing returns the events that stand for an instance: those of its accepted hints, those that EC2 lists, and the others in the Node's record.
// hinted has the IDs of the events of hints. past is the record, without closed entries that are not needed any more. asked is that of listedEvents.
func (t *term) standing(inst *instance, on node) (events []event.Event, past []state.Entry, hinted map[string]bool, asked bool) {
	t.mu.Lock()
	hinted = map[string]bool{}
	for _, h := range inst.hints {
		if h.accepted && !h.busy {
			events, hinted[h.Event.ID] = append(events, h.Event), true
		}
	}
	begun, recorded := inst.drain != nil && inst.drain.stage != waiting, inst.record
	t.mu.Unlock()
	listed, asked, over := t.listedEvents(inst, on)
	events = append(events, listed...)
	if begun && recorded != nil { // The agent's record is ahead of what the watch shows of the Node.
		past = recorded.Entries()
	} else {
		past = t.entriesOf(inst, on, events)
	}
	announced := events
	var kept []state.Entry
	for _, e := range past {
		if _, isAnnounced := find(announced, e.Event.ID); isAnnounced { // events has it already.
			kept = append(kept, e)
			continue
		}
		ev := t.recordedEvent(inst, on, e, asked)
		if over && isListed(ev.Kind) {
			ev.State = event.Canceled
		}
		mayBeListedAgain := isListed(ev.Kind) && ev.State == event.Pending
		switch {
		case e.Phase == state.Closed && !mayBeListedAgain:
			continue
		case e.Phase == state.Closed: // Without the entry, an event that EC2 lists again would be acted on again.
		case mayBeListedAgain && asked && !e.Acted(): // EC2 does not list the event now, so nothing begins for it.
		default:
			events = append(events, ev)
		}
		kept = append(kept, e)
	}
	return events, kept, hinted, asked
}

// recordedEvent returns the event of a recorded entry that neither a hint nor EC2 announces now. Its State says whether the event is over. A listed
// event is over when two polls in a row do not have it, or one after a reboot that nth-queue has requested; asked says that EC2 has answered polls. Any
// other event is over if the instance was started since the cordon, or is back from a warm pool.
func (t *term) recordedEvent(inst *instance, on node, e state.Entry, asked bool) event.Event {
	ev := e.Event
	t.mu.Lock()
	defer t.mu.Unlock()
	if isListed(ev.Kind) {
		isCarriedOut := !e.RebootAt.IsZero() && e.BootID != on.bootID
		if asked && (isCarriedOut || t.truth.wasMissing(inst.id, ev)) {
			ev.State = event.Canceled
			if isCarriedOut || ev.Kind == event.StatusCheck { // The check passes again.
				ev.State = event.Completed
			}
		}
		return ev
	}
	goesIntoService := false // by a later launch that nth-queue completes
	for _, h := range inst.hints {
		goesIntoService = goesIntoService || t.completesLaunch(h) && h.isAfter(e)
	}
	bootID := e.BootID
	ownReboot := on.mark.Request == ec2.Reboot && on.mark.BootID == bootID
	if ownReboot && ev.Kind != event.StateChange { // The new boot is nth-queue's own, and no sign that EC2 has stopped and started the machine.
		bootID = ""
	}
	started := inst.startedSince(ev, bootID, announcedAt(e), on)
	leftPool := on.ready && goesIntoService && ev.Kind == event.ASGTermination // The termination was the way into the warm pool.
	if e.OnNode && (started || leftPool) {                                     // The cordon for the event is to be taken back.
		ev.State = event.Completed
	}
	return ev
}

// wantsDrain reports whether the rules want the node drained for a hint. If not, nth-queue neither holds nor completes the hint's lifecycle action,
// and leaves the action to the program that drains the node.
func (t *term) wantsDrain(h *hint) bool {
	return t.opts.Policy[h.Event.Kind].Action == policy.Drain
}
