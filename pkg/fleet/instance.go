package fleet

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/workqueue"

	"github.com/nth-project/nth/pkg/ec2"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/sqs"
	"github.com/nth-project/nth/pkg/state"
)

// instance is an EC2 instance that something is known of. The term's mutex guards it.
type instance struct {
	id    string
	looks sync.Mutex // held during a look at it, without the term's
	hints map[string]*hint
	// drain is the drain of its Node; nil if there is none.
	drain *session
	// node is the Node that it had at the last look. had is set once it has had one in this term.
	node node
	had  bool
	// dryRun is in a dry run what the Node's record would have.
	dryRun []state.Entry
	// started is when EC2 last reported that it runs.
	started time.Time
	// missing is since which poll EC2 does not list an event, or lists it as completed, by the event's ID.
	missing map[string]time.Time
	// warned are the formats of the warnings that were logged about it, each once.
	warned map[string]bool
}

// instance returns the instance of that ID. The term's mutex is held.
func (t *term) instance(id string) *instance {
	in := t.instances[id]
	if in == nil {
		in = &instance{id: id, hints: map[string]*hint{}, missing: map[string]time.Time{}, warned: map[string]bool{}}
		t.instances[id] = in
	}
	return in
}

// reconcilers is how many instances of each queue are looked at at once. Their questions to EC2 share requests.
const reconcilers = 64

// reconcile looks at the instances of a queue until the term ends.
func (t *term) reconcile(queue workqueue.TypedDelayingInterface[string]) {
	for {
		id, over := queue.Get()
		if over {
			return
		}
		t.mu.Lock()
		in := t.instances[id]
		t.mu.Unlock()
		if in != nil && t.ctx.Err() == nil {
			if again := t.lookAlone(in); again > 0 {
				queue.AddAfter(id, again)
			}
		}
		queue.Done(id)
	}
}

// lookAlone is look, one at a time for each instance, unless that was forgotten meanwhile.
func (t *term) lookAlone(in *instance) time.Duration {
	in.looks.Lock()
	defer in.looks.Unlock()
	t.mu.Lock()
	known := t.instances[in.id] == in
	t.mu.Unlock()
	if !known {
		return 0
	}
	defer t.forget(in)
	return t.look(in)
}

// forget removes an instance if there is nothing to remember about it.
func (t *term) forget(in *instance) {
	t.mu.Lock()
	defer t.mu.Unlock()
	known := in.node.ours || len(in.node.entries) > 0 || len(in.dryRun) > 0
	if len(in.hints) == 0 && in.drain == nil && !known && time.Since(in.started) >= believed {
		delete(t.instances, in.id)
	}
}

// look finds out what stands for an instance now, and has done what that asks for. It returns when to look again without news; 0 for never.
func (t *term) look(in *instance) time.Duration {
	nodes, err := t.nodesOf(t.ctx, in)
	var on node
	if len(nodes) > 0 {
		on = t.choose(in, nodes)
	}
	t.mu.Lock()
	hints := slices.Collect(maps.Values(in.hints))
	gone := in.had && len(nodes) == 0 && err == nil
	if len(nodes) > 0 {
		if t.opts.DryRun && in.dryRun != nil {
			on.entries = in.dryRun
		}
		in.node, in.had = on, true
	}
	if gone {
		in.node, in.dryRun = node{}, nil
	}
	t.mu.Unlock()
	var again time.Duration
	rank := func(h *hint) int { // A start ends what came before it, and what is urgent waits for no answer about the rest.
		switch {
		case h.About == sqs.Running:
			return 0
		case isUrgent(h.Event):
			return 1
		}
		return 2
	}
	slices.SortFunc(hints, func(a, b *hint) int { return rank(a) - rank(b) })
	for _, h := range hints {
		again = sooner(again, t.judge(in, h, on, gone, err))
	}
	if on.uid != "" {
		again = sooner(again, t.pursue(in, on))
	}
	return sooner(again, t.keepWaiting(in))
}

// sooner returns the shorter of two times, where 0 means never.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b > 0 && b < a {
		return b
	}
	return a
}

// choose returns the Node that is drained: the one of the drain that is under way, or else the first.
func (t *term) choose(in *instance, nodes []node) node {
	if len(nodes) > 1 {
		t.once(in, "the instance %s has %d Nodes: %q is drained, which is Ready or the newest", in.id, len(nodes), nodes[0].name)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if in.drain != nil && in.drain.stage != waiting {
		if i := slices.IndexFunc(nodes, func(n node) bool { return n.uid == in.drain.node.uid }); i >= 0 {
			return nodes[i]
		}
	}
	return nodes[0]
}

// once warns of something about an instance, unless that was the text before.
func (t *term) once(in *instance, format string, args ...any) {
	t.mu.Lock()
	before := in.warned[format]
	in.warned[format] = true
	t.mu.Unlock()
	if !before {
		t.opts.Log.Warnf(format, args...)
	}
}

// judge decides what a hint comes to: it stands, or is settled. It returns when to look at it again; 0 if not without news.
func (t *term) judge(in *instance, h *hint, on node, gone bool, err error) time.Duration {
	t.mu.Lock()
	busy := h.busy
	t.mu.Unlock()
	ignored := h.About == sqs.Interruption && t.policy().Ignores(state.Entry{Event: h.Event})
	switch {
	case busy:
		return 0
	case ignored && !t.opts.LeaveUnknown: // Otherwise it may be another reader's.
		t.done(in, h)
		return 0
	case errors.Is(err, errAmbiguous):
		t.once(in, "%s: %s", h.describe(), err)
		t.endForeign(in, h)
		return 0
	case err != nil && on.uid == "": // EC2 does not say which Node it is.
		return t.failed(h, err)
	case gone && h.About != sqs.Launch: // A launch waits for the next Node.
		t.complete(in, h, event.Drained)
		return 0
	case on.uid == "":
		return t.judgeWithoutNode(in, h)
	}
	return t.judgeOn(in, h, on)
}

// judgeOn decides what to do about a hint whose instance has that Node, and returns when to decide again; zero if only after news.
func (t *term) judgeOn(in *instance, h *hint, on node) time.Duration {
	if t.opts.ManagedOnly {
		found, known, err := t.opts.EC2.Look(t.ctx, in.id)
		if err != nil {
			return t.failed(h, err)
		}
		if known && !found.Managed {
			t.opts.Log.Debugf("%s: neither the instance %s nor its Auto Scaling group has the tag of fleet.managed_tag; nothing to drain here", h.describe(), in.id)
			t.endForeign(in, h)
			return 0
		}
	}
	switch {
	case h.About == sqs.Interruption && t.policy().Ignores(state.Entry{Event: h.Event}):
		t.done(in, h)
	case h.About == sqs.Running:
		return t.takeStart(in, h, on)
	case h.About == sqs.Launch:
		return t.takeLaunch(in, h, on)
	case h.About != sqs.Interruption:
		t.done(in, h)
	case !t.isStanding(h) && isPlanned(h) && !t.verify(t.ctx, in, h):
		t.done(in, h) // EC2's own list decides, without the message.
	case t.isStanding(h):
		if !h.over && t.hasStarted(in, h) {
			t.endOvertaken(in, h, on)
		}
	default:
		over, again := t.isOver(t.ctx, in, h, on)
		switch {
		case over:
			t.endOvertaken(in, h, on)
		case again == 0:
			t.stand(in, h)
		}
		return again
	}
	return 0
}

func (t *term) isStanding(h *hint) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return h.stands
}

// stand notes that a hint stands, and holds its lifecycle hook.
func (t *term) stand(in *instance, h *hint) {
	t.mu.Lock()
	first := !h.stands
	h.stands = true
	t.mu.Unlock()
	if first && t.wantsDrain(h) {
		t.hold(in, h)
	}
}

// endOvertaken ends a hint whose instance runs again: at once, or when a drain has taken back what was done for it.
func (t *term) endOvertaken(in *instance, h *hint, on node) {
	t.opts.Log.WithField(fieldNode, on.name).Infof("%s: the instance %s runs again: its event (%s) is over", h.describe(), in.id, h.Event.Code)
	t.mu.Lock()
	h.over = on.ours && on.cordon.Names(h.Event.ID)
	if s := in.drain; s != nil && s.stage < ending {
		if ev, known := s.events[h.Event.ID]; known {
			h.over = true
			ev.State = event.Completed
			s.update([]event.Event{ev})
		}
	}
	over := h.over
	h.stands = h.stands || over
	t.mu.Unlock()
	if !over {
		t.done(in, h)
	}
}

const (
	// absent is how long an instance must have no Node before that is believed: it may have joined just now.
	absent = 10 * time.Second
	// launchTimeout is how long a new instance may take until its node is Ready.
	launchTimeout = 30 * time.Minute
)

// judgeWithoutNode decides what to do about a hint whose instance has no Node in this cluster, and returns when to decide again; zero if only
// after news.
func (t *term) judgeWithoutNode(in *instance, h *hint) time.Duration {
	waits := h.About == sqs.Interruption && t.completes(h)
	who, err := t.ownerOfHint(in, h)
	age := time.Since(h.received)
	launching := h.About == sqs.Launch && t.opts.CompleteLaunches && t.completes(h)
	switch {
	case err != nil && waits: // Its group waits, perhaps for this cluster.
		return t.failed(h, err)
	case who == otherCluster:
		t.opts.Log.Infof("%s: the instance %s is another cluster's; nothing to drain here", h.describe(), in.id)
		t.endForeign(in, h)
	case who == unknownOwner && t.opts.LeaveUnknown:
		t.logNoNode(in, h)
		t.endForeign(in, h)
	case launching && age < launchTimeout:
		t.awaitLaunch(in, h)
		return launchTimeout - age
	case age < absent || !t.nodes.awaySince().IsZero(): // It may have a Node that is not seen yet.
		return max(absent-age, time.Second)
	case who != thisCluster:
		t.logNoNode(in, h)
		t.done(in, h)
	case waits && t.wantsDrain(h):
		t.opts.Log.Infof("%s: the instance %s has no Node in this cluster; completing the lifecycle hook %s of the Auto Scaling group %s",
			h.describe(), in.id, h.Hook.Name, h.Hook.Group)
		t.complete(in, h, event.Drained)
	case h.About == sqs.Interruption && isUrgent(h.Event) && time.Now().Before(h.Event.Deadline):
		return asksAgain // It may join yet.
	default:
		t.logNoNode(in, h)
		t.done(in, h)
	}
	return 0
}

// ownerOfHint returns which cluster the instance of a hint belongs to, by its tags. If these do not say, and its Auto Scaling group waits, another
// instance of the group with a Node here makes it this cluster's.
func (t *term) ownerOfHint(in *instance, h *hint) (owner, error) {
	ctx, cancel := context.WithTimeout(t.ctx, lookUpTimeout)
	defer cancel()
	who, err := t.ownerOf(ctx, in.id)
	if who != unknownOwner || err != nil || h.Hook == nil {
		return who, err
	}
	members, err := t.opts.EC2.InGroup(ctx, h.Hook.Group)
	if slices.ContainsFunc(members, func(id string) bool { return len(t.nodes.of(id)) > 0 }) {
		who = thisCluster
	}
	return who, err
}

// logNoNode logs that a hint is about an instance without a Node.
func (t *term) logNoNode(in *instance, h *hint) {
	t.opts.Log.Infof("%s: the instance %s has no Node in this cluster; nothing to drain", h.describe(), in.id)
}

// endForeign ends a hint that does not concern this cluster: its message is deleted or, with LeaveUnknown, left to others.
func (t *term) endForeign(in *instance, h *hint) {
	t.mu.Lock()
	pause := h.deliveries[0].pause
	t.mu.Unlock()
	t.endHint(in, h, t.opts.LeaveUnknown, pause)
}

// pursue has the Node of an instance drained, or what was done to it taken back, if what stands asks for that. It returns when that may
// change without news.
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
	case len(hinted) > 0 || len(due) > 0:
		maps.Copy(due, hinted)
		t.enlist(in, on, events, past, due)
		in.drain.goal = goal
		t.dispatch()
	default: // A drain that waits is not needed any more.
		in.drain = nil
	}
	if goal.Revisit.IsZero() {
		return 0
	}
	return max(time.Until(goal.Revisit), time.Second)
}

// enlist has a drain of the Node wait for its turn. due are the events for which there is something to do. The term's mutex is held.
func (t *term) enlist(in *instance, on node, events []event.Event, past []state.Entry, due map[string]bool) {
	s := in.drain
	if s == nil || s.node.uid != on.uid {
		s = &session{term: t, instance: in, since: time.Now(), stop: func() {}}
		in.drain = s
	}
	s.node, s.record = on, newRecord(past) // It may have been booted, or cordoned by others, while it waits.
	s.events, s.rested, s.outcomes = map[string]event.Event{}, map[string]bool{}, map[string]event.Outcome{}
	for _, ev := range events {
		s.events[ev.ID] = ev
		if !due[ev.ID] {
			s.rested[ev.ID] = true
		}
	}
}

// decide asks the policy. due are the IDs of the events about which there is something to do or to report now. A node that was rebooted is
// opened once its kubelet says Ready.
func (t *term) decide(on node, events []event.Event, past []state.Entry) (due map[string]bool, goal policy.Goal) {
	rules := t.policy()
	now := policy.Situation{Now: time.Now(), BootID: on.bootID, Known: map[event.Kind][]event.Event{}, Past: past, Ready: on.ready}
	for _, ev := range events {
		now.Known[ev.Kind] = append(now.Known[ev.Kind], ev)
	}
	for changed := rules.Fold(now); len(changed) > 0; changed = rules.Fold(now) {
		now.Past = merged(now.Past, changed)
	}
	due = map[string]bool{}
	for _, e := range now.Past {
		before, met := policy.Find(past, e.Event.ID)
		news := !met || !policy.SameNews(before, e)
		if e.Phase == state.Undoing { // After a reboot, the uncordon waits for the kubelet.
			due[e.Event.ID] = on.ready || e.BootID == on.bootID
		} else {
			due[e.Event.ID] = news || e.UnderWay() && !e.LeftAlone
		}
	}
	for _, e := range on.entries {
		_, kept := policy.Find(past, e.Event.ID)
		due[e.Event.ID] = due[e.Event.ID] || !kept && !t.opts.DryRun // It is to leave the record.
	}
	maps.DeleteFunc(due, func(_ string, is bool) bool { return !is })
	return due, rules.Decide(now)
}

// standing derives what stands for an instance: the events of messages, those that EC2 lists, and the others in the Node's record. hinted are
// those of messages, by ID, and past is the record.
func (t *term) standing(in *instance, on node) (events []event.Event, past []state.Entry, hinted map[string]bool) {
	t.mu.Lock()
	hinted = map[string]bool{}
	for _, h := range in.hints {
		if h.stands && !h.busy {
			events, hinted[h.Event.ID] = append(events, in.eventOf(h)), true
		}
	}
	past = on.entries
	begun := in.drain != nil && in.drain.stage != waiting
	if begun {
		past = in.drain.record.Entries() // It is ahead of what was written to the Node.
	}
	t.mu.Unlock()
	listed, asked := t.listedEvents(in, on)
	for _, ev := range listed {
		ev = t.asKnown(in, on, past, ev)
		events = append(slices.DeleteFunc(events, func(other event.Event) bool { return other.ID == ev.ID }), ev)
	}
	if !begun {
		past = t.entriesOf(on, events)
	}
	announced := events
	past = slices.DeleteFunc(slices.Clone(past), func(e state.Entry) bool {
		if slices.ContainsFunc(announced, func(ev event.Event) bool { return ev.ID == e.Event.ID }) {
			t.lasts(in, e.Event.ID, false)
			return false
		}
		ev := t.recordedEvent(in, on, e, asked)
		if e.Phase == state.Closed {
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

// eventOf is the event of a hint as a drain gets it. The term's mutex is held.
func (in *instance) eventOf(h *hint) event.Event {
	ev := h.Event
	if h.lost && in.drain != nil && in.drain.stage != waiting {
		ev.Deadline = in.drain.budgetEnd(ev)
	}
	if h.over {
		ev.State = event.Completed
	}
	return ev
}

// recordedEvent is the event of an entry that is announced by nobody now. One that EC2 has not listed for long is over. So is one that a
// message announced, if the instance was started since the cordon, or is back from a warm pool.
func (t *term) recordedEvent(in *instance, on node, e state.Entry, asked bool) event.Event {
	ev := e.Event
	if isListed(ev.Kind) {
		if missing := t.lasts(in, ev.ID, asked); asked && missing >= listDelay {
			ev.State = map[bool]event.State{true: event.Completed, false: event.Canceled}[ev.Kind == event.StatusCheck]
		}
		return ev
	}
	t.mu.Lock()
	started, back := in.started, false
	for _, h := range in.hints {
		back = back || h.About == sqs.Launch && t.opts.CompleteLaunches && t.completes(h) && !h.Hook.Back && on.ready
	}
	t.mu.Unlock()
	restarted := e.CordonedAt.Before(started) && on.startedAfter(started)
	if e.OnNode && (restarted || back && ev.Kind == event.ASGTermination) {
		ev.State = event.Completed
	}
	return ev
}

// asKnown returns an event that EC2 lists as the record knows it: by the ID of the message that announced it, and not completed while the
// reboot may still be about to come.
func (t *term) asKnown(in *instance, on node, past []state.Entry, ev event.Event) event.Event {
	for _, e := range past {
		if _, same := listedAs(e.Event, []event.Event{ev}); same && fromMessage(e.Event.ID) {
			ev.ID = e.Event.ID
		}
	}
	e, known := policy.Find(past, ev.ID)
	if !known || !e.OnNode || !isReboot(ev.Code) || ev.State != event.Completed {
		return ev
	}
	if since := t.lasts(in, "completed "+ev.ID, true); !on.ready || e.BootID == on.bootID && since < listDelay {
		ev.State = event.Pending
	}
	return ev
}

// isReboot reports whether an event is over once the machine was rebooted.
func isReboot(code string) bool { return code == "system-reboot" || code == "instance-reboot" }

// lasts returns for how long something has held, by the polls of EC2, given whether it holds now.
func (t *term) lasts(in *instance, what string, holds bool) time.Duration {
	t.truth.mu.Lock()
	looked := t.truth.looked
	t.truth.mu.Unlock()
	t.mu.Lock()
	defer t.mu.Unlock()
	if !holds {
		delete(in.missing, what)
		return 0
	}
	if in.missing[what].IsZero() {
		in.missing[what] = looked
	}
	return looked.Sub(in.missing[what])
}

// takeStart takes in that an instance runs: a stop that was announced before is over, and what nth-queue has left on the Node because of it is
// taken back once its kubelet reports it Ready. It returns when to look again without news.
func (t *term) takeStart(in *instance, h *hint, on node) time.Duration {
	t.mu.Lock()
	at := h.Event.Noticed
	if now := time.Now(); at.After(now) {
		at = now
	}
	if at.After(in.started) {
		in.started = at
	}
	t.queue.AddAfter(in.id, believed) // A stop from before may come until then.
	age, drains, ends := time.Since(h.received), in.drain != nil, in.drain != nil && in.drain.stage >= ending
	t.mu.Unlock()
	closed := slices.ContainsFunc(t.entriesOf(on, nil), func(e state.Entry) bool {
		return e.OnNode && !isListed(e.Event.Kind) && e.CordonedAt.Before(at)
	})
	switch {
	case closed && !on.startedAfter(at):
		if age >= reopenPatience {
			t.once(in, "the instance %s was started: node %q stays cordoned until its kubelet reports it Ready", in.id, on.name)
		}
		return reopenPatience
	case closed, ends, drains && age < asksAgain: // The hints before it are judged next, and what was done for them is taken back.
		return asksAgain
	case drains:
		t.done(in, h)
	default:
		t.backInService(in, h, on)
	}
	return 0
}

// startedAfter reports whether the kubelet has reported the Node Ready since its instance was started at that time. An instance that was
// hibernated continues in the same boot.
func (n node) startedAfter(at time.Time) bool {
	rebooted := n.ours && n.cordon.BootID != "" && n.cordon.BootID != n.bootID
	return n.ready && (n.bootID == "" || rebooted || n.heartbeat.After(at))
}

// backInService takes the taints of stops back from a Node whose cordon stays, if its instance runs, and settles the hint. What fails is
// tried again with its message.
func (t *term) backInService(in *instance, h *hint, on node) {
	if !t.opts.Taints.any() {
		t.done(in, h)
		return
	}
	t.mu.Lock()
	h.busy = true
	pause := h.deliveries[0].pause
	t.mu.Unlock()
	t.background(func(ctx context.Context) {
		found, _, err := t.opts.EC2.LookAnew(ctx, in.id)
		if errors.Is(err, ec2.ErrRefused) && on.ready || err == nil && found.Runs() {
			err = t.change(ctx, on, func(now *corev1.Node) map[string]any {
				taints := slices.DeleteFunc(slices.Clone(now.Spec.Taints), func(taint corev1.Taint) bool { return t.opts.Taints.ours(taint) && !ofListed(taint) })
				if len(taints) == len(now.Spec.Taints) {
					return nil
				}
				return map[string]any{"spec": map[string]any{"taints": taints}}
			})
		}
		if ctx.Err() != nil {
			return // It goes back with all others.
		}
		if err != nil {
			t.opts.Log.Warnf("cannot remove taints from the node of the instance %s: %s; retrying", in.id, err)
		}
		t.endHint(in, h, err != nil, pause)
		t.queue.Add(in.id)
	})
}

// reopenPatience is after how long it is logged that a node which was started is not Ready.
const reopenPatience = 15 * time.Minute

// wantsDrain reports whether the rules want the node drained for a hint. If they do not, somebody else drains it, and completes the
// lifecycle action.
func (t *term) wantsDrain(h *hint) bool {
	return t.policy()[h.Event.Kind].Action == policy.Drain
}
