package fleet

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/sqs"
	"github.com/nth-project/nth/pkg/state"
)

// instance is an EC2 instance that a message, EC2's list or its Node has something to say about. The term's mutex guards it.
type instance struct {
	id    string
	hints map[string]*hint
	// started is when it was last started, as a message says; zero if none has said so in this term.
	started time.Time
	// drain is the drain of its Node; nil if there is none.
	drain *session
	// node is the Node that it had at the last look; its uid is empty if there was none. goneSince is the first look that found its Node
	// deleted; zero while it has one, and if it never had one in this term.
	node      node
	goneSince time.Time
	// record is what was done on that Node in this term; nil before its first drain.
	record *record
}

// instance returns the instance with that ID. It adds the instance if the term does not have it. The term's mutex is held.
func (t *term) instance(id string) *instance {
	in := t.instances[id]
	if in == nil {
		in = &instance{id: id, hints: map[string]*hint{}}
		t.instances[id] = in
	}
	return in
}

// reconcilers is how many instances are looked at at the same time. Most of them may wait for EC2, and urgent ones come between.
// ec2.Catalog joins their questions into few requests.
const reconcilers = 256

// reconcile looks at one instance of the queue after the other, until the term ends. serveTerm starts it several times. The queue gives an
// instance to one of them at a time.
func (t *term) reconcile() {
	for {
		id, over := t.queue.Get()
		if over {
			return
		}
		t.mu.Lock()
		in := t.instances[id]
		t.mu.Unlock()
		if in != nil && t.ctx.Err() == nil {
			if again := t.look(in); again > 0 {
				t.queue.AddAfter(id, again)
			}
			t.forget(in)
		}
		t.queue.Done(id)
	}
}

// forget removes an instance if nothing is to be done for it, and nothing is recorded of it.
func (t *term) forget(in *instance) {
	t.mu.Lock()
	defer t.mu.Unlock()
	recorded := in.record != nil && len(in.record.Entries()) > 0
	if len(in.hints) == 0 && in.drain == nil && !recorded && !in.node.marked() {
		delete(t.instances, in.id)
	}
}

// look finds out which events stand for an instance now, and starts, changes or ends the drain of its Node. It returns when to look again;
// 0 if only after news.
func (t *term) look(in *instance) time.Duration {
	nodes, err := t.nodesOf(in)
	var on node
	if len(nodes) > 0 {
		on = t.choose(in, nodes)
	}
	t.mu.Lock()
	hints := slices.Collect(maps.Values(in.hints))
	switch {
	case len(nodes) > 0:
		if in.node.uid != on.uid {
			in.record = nil
		}
		in.node, in.goneSince = on, time.Time{}
	case err == nil && in.node.uid != "":
		in.node, in.record, in.goneSince = node{}, nil, time.Now()
	}
	t.mu.Unlock()
	var again time.Duration
	for _, h := range hints {
		again = sooner(again, t.judge(in, h, on, err))
	}
	if on.uid != "" { // The instance has a Node.
		again = sooner(again, t.pursue(in, on))
		again = sooner(again, t.tidyOpened(on))
	}
	return sooner(again, t.cordonWaiting(in))
}

// sooner returns the shorter of two times, where 0 means never.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b > 0 && b < a {
		return b
	}
	return a
}

// choose returns which of an instance's Nodes is drained: the Node of the drain that is under way, or else the first.
func (t *term) choose(in *instance, nodes []node) node {
	t.mu.Lock()
	defer t.mu.Unlock()
	if in.drain != nil && in.drain.stage != waiting {
		if i := slices.IndexFunc(nodes, func(n node) bool { return n.uid == in.drain.node.uid }); i >= 0 {
			return nodes[i]
		}
	}
	return nodes[0]
}

// judge decides about one hint of an instance: the hint stands, waits for an answer, or is settled. on is the instance's Node; its uid is
// empty if there is none, and err is why it cannot be found. judge returns when to decide again; 0 if only after news.
func (t *term) judge(in *instance, h *hint, on node, err error) time.Duration {
	t.mu.Lock()
	busy := h.busy
	t.mu.Unlock()
	switch {
	case busy: // A goroutine settles the hint.
		return 0
	case h.About == sqs.Interruption && t.policy().Ignores(state.Entry{Event: h.Event}):
		t.done(in, h)
		return 0
	case errors.Is(err, errAmbiguous):
		t.opts.Log.Warnf("%s: %s", h.describe(), err)
		t.done(in, h)
		return 0
	case err != nil && on.uid == "": // EC2 does not say which Node it is.
		return t.failed(h, err)
	case on.uid == "":
		return t.judgeWithoutNode(in, h)
	}
	managed, err := t.isManaged(in.id)
	switch {
	case err != nil:
		return t.failed(h, err)
	case !managed:
		t.opts.Log.Debugf("%s: the instance %s does not have the tag of fleet.managed_tag; nothing to drain here", h.describe(), in.id)
		t.done(in, h)
		return 0
	case h.About == sqs.Launch:
		return t.judgeLaunch(in, h, on)
	}
	return t.judgeInterruption(in, h, on)
}

// judgeInterruption decides about a hint of an interruption whose instance has the Node on. It returns when to decide again; 0 if only after
// news.
func (t *term) judgeInterruption(in *instance, h *hint, on node) time.Duration {
	t.mu.Lock()
	stands, over := h.stands, !stopTime(h).IsZero() && in.startedSince(h.bootID, cmp.Or(h.Event.Noticed, h.received), on)
	t.mu.Unlock()
	var again time.Duration
	if !stands {
		over, again = t.isOver(h, on)
	}
	switch {
	case over: // What was done for it is taken back as for a recorded event.
		t.opts.Log.WithField(fieldNode, on.name).Infof("%s: the instance %s runs again: its event (%s) is over", h.describe(), in.id, h.Event.Code)
		t.done(in, h)
	case !stands && again == 0: // Otherwise EC2 has not answered yet.
		t.mu.Lock()
		h.stands, h.bootID = true, on.bootID
		t.mu.Unlock()
		if t.wantsDrain(h) {
			t.hold(in, h)
		}
	}
	return again
}

// startedSince reports whether the instance has started since its Node had that boot ID, or since that time: the Node shows another boot, or
// a message says so. A Node that is not Ready may not show it yet. The term's mutex is held.
func (in *instance) startedSince(bootID string, at time.Time, on node) bool {
	return on.ready && (bootID != "" && bootID != on.bootID || in.started.After(at))
}

const (
	// absent is how long after its message an instance must have no Node before nth-queue believes it: the instance may join just now, or
	// its kubelet may register again.
	absent = 10 * time.Second
	// launchTimeout is how long a new instance may take until its node is Ready.
	launchTimeout = 30 * time.Minute
)

// judgeWithoutNode decides about a hint whose instance has no Node in this cluster. It returns when to decide again; 0 if only after news.
func (t *term) judgeWithoutNode(in *instance, h *hint) time.Duration {
	t.mu.Lock()
	goneSince := in.goneSince
	t.mu.Unlock()
	since := h.received
	if goneSince.After(since) {
		since = goneSince
	}
	if _, trouble := t.lead.lock.trouble(); trouble != nil { // The API server is silent: the watch may not show its Node.
		since = time.Now()
	}
	ctx, cancel := context.WithTimeout(t.ctx, lookUpTimeout)
	defer cancel()
	found, _, err := t.opts.EC2.Look(ctx, in.id)
	hadNode := !goneSince.IsZero()
	ours := hadNode || t.belongsHere(found)
	groupWaits := h.About == sqs.Interruption && t.completes(h) && t.wantsDrain(h)
	age := time.Since(h.received)
	switch {
	case err != nil && groupWaits && !hadNode: // Perhaps it waits for this cluster. Any other hint is judged as one of an unknown owner.
		return t.failed(h, err)
	case !ours && t.belongsElsewhere(found):
		t.opts.Log.Infof("%s: the instance %s is another cluster's; nothing to drain here", h.describe(), in.id)
		t.done(in, h)
	case t.completesLaunch(h) && age < launchTimeout:
		t.awaitLaunch(in, h)
		return launchTimeout - age
	case time.Since(since) < absent: // The instance may have a Node that the watch has not shown yet.
		return max(absent-time.Since(since), time.Second)
	case ours && groupWaits:
		t.opts.Log.Infof("%s: the instance %s has no Node in this cluster; completing the lifecycle hook %s of the Auto Scaling group %s",
			h.describe(), in.id, h.Hook.Name, h.Hook.Group)
		t.complete(in, h, event.Drained)
	case ours && isUrgent(h.Event) && time.Now().Before(h.Event.Deadline):
		return asksAgain // The instance may still join before its deadline.
	default:
		t.opts.Log.Infof("%s: the instance %s has no Node in this cluster; nothing to drain", h.describe(), in.id)
		t.done(in, h)
	}
	return 0
}

// pursue brings the drain of an instance's Node in line with the events that stand. It enlists a new drain, passes the events to the one
// that runs, or drops the one that waits. Taking back a cordon is a drain, too. pursue returns when the policy may decide otherwise; 0 if
// only after news.
func (t *term) pursue(in *instance, on node) time.Duration {
	events, past, hinted := t.standing(in, on)
	due, goal := t.decide(on, events, past)
	t.mu.Lock()
	defer t.mu.Unlock()
	s := in.drain
	switch {
	case s != nil && s.stage >= ending:
		return 0 // The instance is looked at again when the drain has ended.
	case s != nil && s.stage == working && s.node.uid != on.uid: // The Node that is drained is gone, and the instance has another.
		s.stage = ending
		s.stop()
		return 0
	case s != nil && s.stage == working:
		s.update(events)
		return 0
	case len(hinted) > 0 || len(due) > 0: // A drain settles the hints, too.
		maps.Copy(due, hinted)
		t.enlist(in, on, events, past, due)
		in.drain.goal = goal
		t.dispatch()
	default: // A drain that waits is not needed any more.
		in.drain = nil
		if in.record != nil {
			in.record = newRecord(past)
		}
	}
	if goal.Revisit.IsZero() { // Only news can change the decision.
		return 0
	}
	return max(time.Until(goal.Revisit), time.Second)
}

// enlist has a drain of the Node wait for its turn, or brings the one that waits up to date. due has the IDs of the events for which there
// is something to do; the others rest. The term's mutex is held.
func (t *term) enlist(in *instance, on node, events []event.Event, past []state.Entry, due map[string]bool) {
	s := in.drain
	if s == nil || s.node.uid != on.uid {
		s = &session{term: t, instance: in, since: time.Now(), stop: func() {}}
		in.drain = s
	}
	s.node, s.record = on, newRecord(past) // The node may have been rebooted, or cordoned by others, while the drain waits.
	s.events = map[string]*task{}
	for _, ev := range events {
		s.events[ev.ID] = &task{Event: ev, rests: !due[ev.ID]}
	}
}

// decide asks the policy about the events that stand for a Node and about its record. due has the IDs of the events for which there is
// something to do or to report now. goal is the policy's goal for the node.
func (t *term) decide(on node, events []event.Event, past []state.Entry) (due map[string]bool, goal policy.Goal) {
	rules := t.policy()
	situation := policy.Situation{Now: time.Now(), BootID: on.bootID, Known: map[event.Kind][]event.Event{}, Past: past}
	for _, ev := range events {
		situation.Known[ev.Kind] = append(situation.Known[ev.Kind], ev)
	}
	for changed := rules.Fold(situation); len(changed) > 0; changed = rules.Fold(situation) {
		situation.Past = merged(situation.Past, changed)
	}
	due = map[string]bool{}
	for _, e := range situation.Past {
		before, recorded := policy.Find(past, e.Event.ID)
		changed := !recorded || !policy.SameNews(before, e)
		if e.Phase == state.Undoing { // The uncordon waits until the kubelet reports the node Ready.
			due[e.Event.ID] = on.ready
		} else {
			due[e.Event.ID] = changed || e.UnderWay() && !e.LeftAlone
		}
	}
	maps.DeleteFunc(due, func(_ string, isDue bool) bool { return !isDue })
	return due, rules.Decide(situation)
}

// standing returns the events that stand for an instance: those of its hints, those that EC2 lists, and the others in the Node's record.
// hinted has the IDs of those of hints. past is the record, without closed entries that are needed no more.
func (t *term) standing(in *instance, on node) (events []event.Event, past []state.Entry, hinted map[string]bool) {
	t.mu.Lock()
	hinted = map[string]bool{}
	for _, h := range in.hints {
		if h.stands && !h.busy {
			events, hinted[h.Event.ID] = append(events, h.Event), true
		}
	}
	begun, recorded := in.drain != nil && in.drain.stage != waiting, in.record
	t.mu.Unlock()
	listed, asked := t.listedEvents(in, on)
	events = append(events, listed...)
	if begun && recorded != nil {
		past = recorded.Entries() // It changes while the agent works.
	} else {
		past = t.entriesOf(in, on, events)
	}
	announced := events
	past = slices.DeleteFunc(slices.Clone(past), func(e state.Entry) bool {
		if slices.ContainsFunc(announced, func(ev event.Event) bool { return ev.ID == e.Event.ID }) {
			return false
		}
		ev := t.recordedEvent(in, on, e, asked)
		if e.Phase == state.Closed { // Kept while EC2 may list the event again, which would else be acted on again.
			return ev.State != event.Pending || !isListed(ev.Kind)
		}
		if isListed(ev.Kind) && ev.State == event.Pending && asked && !e.Acted() {
			return false // EC2 does not list it now: nothing begins for it.
		}
		events = append(events, ev)
		return false
	})
	return events, past, hinted
}

// recordedEvent returns the event of a recorded entry that neither a hint nor EC2 announces now. asked says whether EC2 has answered the
// last poll. An event of a listed kind is over once two polls in a row do not have it. Any other event is over if the instance was started
// since the cordon, or is back from a warm pool.
func (t *term) recordedEvent(in *instance, on node, e state.Entry, asked bool) event.Event {
	ev := e.Event
	t.mu.Lock()
	defer t.mu.Unlock()
	if isListed(ev.Kind) {
		if asked && t.truth.wasMissing(in.id, ev) {
			ev.State = event.Canceled
			if ev.Kind == event.StatusCheck { // The check passes again.
				ev.State = event.Completed
			}
		}
		return ev
	}
	back := false
	for _, h := range in.hints {
		back = back || t.completesLaunch(h) && !h.Hook.Back
	}
	// The cordon alone does not say when the event was noticed.
	started := in.startedSince(e.BootID, cmp.Or(ev.Noticed, e.CordonedAt), on)
	if e.OnNode && (started || on.ready && back && ev.Kind == event.ASGTermination) {
		ev.State = event.Completed
	}
	return ev
}

// wantsDrain reports whether the rules want the node drained for a hint. If they do not, nth-queue neither holds nor completes the hint's
// lifecycle action: that is left to whatever else drains the node.
func (t *term) wantsDrain(h *hint) bool {
	return t.policy()[h.Event.Kind].Action == policy.Drain
}
