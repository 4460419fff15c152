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
	// node is the Node that it had at the last look, and had tells that it has had one in this term.
	node node
	had  bool
	// notes are those on the Node, as this process has written them; nil if it has written none.
	notes map[string]*note
	// started is when EC2 last reported that it runs.
	started time.Time
	// missing is since which poll EC2 does not list an event, or lists it as completed, by the event's ID.
	missing map[string]time.Time
	// warned are the formats of texts that were logged, each once.
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

// forget removes an instance of which nothing is left to be known.
func (t *term) forget(in *instance) {
	t.mu.Lock()
	defer t.mu.Unlock()
	known := in.node.ours || len(in.node.notes) > 0 || len(in.notes) > 0
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
		in.node, in.had = on, true
		if on.instance == "" {
			t.owners[on.uid] = in.id
		}
	}
	if gone {
		delete(t.owners, in.node.uid)
		in.node, in.notes = node{}, nil
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
	if in.drain != nil && in.drain.begun {
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
	case ignored && !t.opts.LeaveUnknown:
		t.done(in, h)
		return 0
	case errors.Is(err, errAmbiguous):
		t.once(in, "%s: %s", h.describe(), err)
		t.endForeign(in, h)
		return 0
	case err != nil && on.uid == "":
		return t.failed(h, err)
	case gone && h.About != sqs.Launch: // A launch waits for the next Node.
		t.complete(in, h, event.Drained)
		return 0
	case on.uid == "":
		return t.judgeWithoutNode(in, h)
	case ignored && !t.opts.ManagedOnly:
		t.done(in, h)
		return 0
	}
	return t.judgeOn(in, h, on)
}

// judgeOn decides what a hint comes to whose instance has that Node.
func (t *term) judgeOn(in *instance, h *hint, on node) time.Duration {
	if t.opts.ManagedOnly {
		found, known, err := t.opts.EC2.Look(t.ctx, in.id)
		if err != nil {
			return t.failed(h, err)
		}
		if known && !found.Managed {
			t.opts.Log.Debugf("%s: the instance %s is not managed", h.describe(), in.id)
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
		t.done(in, h) // What EC2 lists is pursued.
	case t.isStanding(h):
		if t.hasStarted(in, h) {
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

// endOvertaken ends a hint whose instance runs again, also if it is being drained for it.
func (t *term) endOvertaken(in *instance, h *hint, on node) {
	t.opts.Log.WithField(fieldNode, on.name).Infof("%s: the instance %s runs again: its event (%s) is over", h.describe(), in.id, h.Event.Code)
	t.mu.Lock()
	if in.drain != nil {
		in.drain.drop(h.Event.ID)
	}
	t.mu.Unlock()
	t.done(in, h)
}

const (
	// absent is how long an instance must have no Node before that is believed: it may have joined just now.
	absent = 10 * time.Second
	// launchTimeout is how long a new instance may take until its node is Ready.
	launchTimeout = 30 * time.Minute
)

// judgeWithoutNode decides what a hint comes to whose instance has no Node here.
func (t *term) judgeWithoutNode(in *instance, h *hint) time.Duration {
	waits := h.About == sqs.Interruption && t.completes(h)
	who, err := t.ownerOfHint(in, h)
	age := time.Since(h.received)
	launching := h.About == sqs.Launch && t.opts.CompleteLaunches && t.completes(h)
	switch {
	case err != nil && waits:
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
	case age < absent || !t.nodes.awaySince().IsZero():
		return max(absent-age, time.Second)
	case who != thisCluster:
		t.logNoNode(in, h)
		t.done(in, h)
	case waits && t.wantsDrain(h):
		t.opts.Log.Infof("%s: the instance %s has no Node in this cluster, and the Auto Scaling group %s need not wait for it", h.describe(), in.id, h.Hook.Group)
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
	events, needed, again := t.standing(in, on)
	t.mu.Lock()
	defer t.mu.Unlock()
	s := in.drain
	switch {
	case s != nil && s.over:
		return again // It has itself looked at when it has ended.
	case s != nil && s.node.uid != on.uid && s.begun:
		s.over = true
		s.stop() // Its Node is gone, and the instance has another.
		return again
	case s != nil && s.begun:
		s.update(events)
	case needed:
		t.enlist(in, on, events)
		t.dispatch()
	case s != nil:
		s.events = nil // keepWaiting takes back what was done.
	}
	return again
}

// enlist has a drain of the Node wait for its turn. The term's mutex is held.
func (t *term) enlist(in *instance, on node, events []event.Event) {
	s := in.drain
	if s == nil || s.node.uid != on.uid {
		s = &session{term: t, instance: in, node: on, since: time.Now(), stop: func() {}}
		in.drain = s
	}
	s.node = on // It may have been booted, or cordoned by others, while it waits.
	s.events, s.rested, s.outcomes = map[string]event.Event{}, map[string]bool{}, map[string]event.Outcome{}
	for _, ev := range events {
		s.events[ev.ID] = ev
	}
}

// standing returns the events that a drain of the Node gets, and whether there is something to be done for them now.
func (t *term) standing(in *instance, on node) (events []event.Event, needed bool, again time.Duration) {
	t.mu.Lock()
	for _, h := range in.hints {
		if h.stands && !h.busy {
			ev := h.Event
			if h.lost && in.drain != nil && in.drain.begun {
				ev.Deadline = in.drain.budgetEnd(ev)
			}
			events, needed = append(events, ev), true
		}
	}
	noted := in.allNotes(on)
	t.mu.Unlock()
	listed, asked := t.listedEvents(in, on)
	for _, ev := range listed {
		listedID := ev.ID
		ev.ID = t.knownAs(in, on, noted, ev)
		if ev.ID != listedID || !slices.ContainsFunc(events, func(other event.Event) bool { return other.ID == ev.ID }) {
			events = slices.DeleteFunc(events, func(other event.Event) bool { return other.ID == ev.ID })
			about, due := t.isDue(in, on, noted, ev)
			if about {
				events, needed = append(events, ev), needed || due
			}
		}
		if begins := t.policy().Begins(state.Entry{Event: ev}); ev.State == event.Pending && begins.After(time.Now()) {
			again = sooner(again, time.Until(begins))
		}
	}
	for _, ev := range t.unlisted(in, on, noted, events, listed, asked) {
		events, needed = append(events, ev), true
	}
	return events, needed, again
}

// knownAs returns the ID by which a listed event is known: that of EC2, or of the message that announced it.
func (t *term) knownAs(in *instance, on node, noted notes, ev event.Event) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if in.drain != nil {
		for id, before := range in.drain.events {
			if _, same := listedAs(before, []event.Event{ev}); same && fromMessage(id) {
				return id
			}
		}
	}
	if n, ok := noted.of(ev); ok {
		return n.Event
	}
	return ev.ID
}

// isDue reports whether a drain gets a listed event, and whether something is to be done for it now.
func (t *term) isDue(in *instance, on node, noted notes, ev event.Event) (about, due bool) {
	known, found := noted.of(ev)
	closedFor := on.ours && (on.cordon.Event == ev.ID || slices.Contains(on.cordon.Events, ev.ID))
	if ev.State != event.Pending {
		over := found || on.ours && on.cordon.Event == ev.ID
		return over, over && t.hasEnded(in, on, ev, true)
	}
	e := state.Entry{Event: ev}
	if t.policy().Ignores(e) && !closedFor {
		return false, false
	}
	early := t.policy().Begins(e).After(time.Now())
	switch {
	case rebooted(on) && closedFor && isReboot(ev.Code):
		return true, on.ready // It has happened, whatever EC2 lists.
	case !found, !known.At.Equal(ev.Deadline):
		return true, true
	case early:
		return closedFor, closedFor // It was put off: what was done is taken back.
	}
	return true, t.policy().Asks(e).Exceeds(known.Action)
}

// hasEnded reports whether a node that is cordoned for an event which EC2 lists as over may take pods again.
func (t *term) hasEnded(in *instance, on node, ev event.Event, listed bool) bool {
	if !isReboot(ev.Code) || ev.State != event.Completed || !on.ours || on.cordon.Event != ev.ID {
		return true
	}
	return on.ready && (rebooted(on) || t.lasts(in, "completed "+ev.ID, listed) >= listDelay) // Otherwise it may be about to go down.
}

// isReboot reports whether an event is over once the machine was rebooted.
func isReboot(code string) bool { return code == "system-reboot" || code == "instance-reboot" }

// rebooted reports whether the machine has another boot ID than when its node was cordoned. A kubelet that restarts does not change it.
func rebooted(on node) bool {
	return on.ours && on.cordon.BootID != "" && on.bootID != "" && on.cordon.BootID != on.bootID
}

// unlisted returns the events that EC2 lists no more, of those that are noted on the Node or that it is cordoned for.
func (t *term) unlisted(in *instance, on node, noted notes, events, listed []event.Event, asked bool) (over []event.Event) {
	for _, ev := range remembered(on, noted) {
		ev.Instance = in.id
		kept := slices.ContainsFunc(events, func(other event.Event) bool { return other.ID == ev.ID })
		if kept || slices.ContainsFunc(listed, func(l event.Event) bool { return t.knownAs(in, on, noted, l) == ev.ID }) {
			t.lasts(in, ev.ID, false)
			continue
		}
		closedFor := on.ours && on.cordon.Event == ev.ID
		switch {
		case closedFor && isReboot(ev.Code) && rebooted(on):
			ev.State = event.Completed
			if on.ready {
				over = append(over, ev)
			}
		case asked && t.lasts(in, ev.ID, true) >= listDelay:
			ev.State = map[bool]event.State{true: event.Completed, false: event.Canceled}[ev.Kind == event.StatusCheck]
			over = append(over, ev)
		}
	}
	return over
}

// remembered are the events that are noted on a Node, or that it is cordoned for, of those that EC2 lists as long as they stand.
func remembered(on node, noted notes) []event.Event {
	all := make([]event.Event, 0, len(noted)+1)
	for _, n := range noted {
		all = append(all, n.event())
	}
	if kind := event.Kind(on.cordon.Kind); on.ours && isNoted(kind) {
		if _, ok := noted.of(event.Event{ID: on.cordon.Event}); !ok {
			all = append(all, event.Event{ID: on.cordon.Event, Kind: kind, State: event.Pending})
		}
	}
	return all
}

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

// allNotes returns the notes on the Node, with those that this process has written last. The term's mutex is held.
func (in *instance) allNotes(on node) notes {
	all := slices.DeleteFunc(slices.Clone(on.notes), func(n note) bool { _, written := in.notes[n.Event]; return written })
	for _, id := range slices.Sorted(maps.Keys(in.notes)) {
		if n := in.notes[id]; n != nil {
			all = append(all, *n)
		}
	}
	return all
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
	age, drains, ends := time.Since(h.received), in.drain != nil, in.drain != nil && in.drain.over
	t.mu.Unlock()
	closed := on.ours && !isNoted(event.Kind(on.cordon.Kind)) && on.cordon.Since.Before(at)
	switch {
	case ends || drains && age < asksAgain: // The hints before it are judged next, and their drain ends.
		return asksAgain
	case drains:
		t.done(in, h)
	case closed && !on.startedAfter(at):
		if age >= reopenPatience {
			t.once(in, "the instance %s was started: node %q stays cordoned until its kubelet reports it Ready", in.id, on.name)
		}
		return reopenPatience
	case closed:
		t.busily(in, h, func(ctx context.Context) error { return t.reopen(ctx, on, "the instance has been started") })
	default:
		t.busily(in, h, func(ctx context.Context) error { return t.backInService(ctx, on, in.id) })
	}
	return 0
}

// startedAfter reports whether the kubelet has reported the Node Ready since its instance was started at that time. An instance that was
// hibernated continues in the same boot.
func (n node) startedAfter(at time.Time) bool {
	return n.ready && (n.bootID == "" || rebooted(n) || n.heartbeat.After(at))
}

// backInService takes the taints back from a Node whose cordon stays, if its instance runs. Those of events that EC2 lists are the events' own.
func (t *term) backInService(ctx context.Context, on node, id string) error {
	if !t.opts.Taints.any() {
		return nil
	}
	found, _, err := t.opts.EC2.LookAnew(ctx, id)
	if errors.Is(err, ec2.ErrRefused) && on.ready || err == nil && found.Runs() {
		return t.taint(ctx, on, nil, func(taint corev1.Taint) bool { return t.opts.Taints.ours(taint) && !ofNoted(taint) })
	}
	return err
}

const (
	// reopenPatience is after how long it is said that a node which was started is not Ready.
	reopenPatience = 15 * time.Minute
	// openTimeout bounds the requests by which a node is opened.
	openTimeout = time.Minute
)

// open takes back what nth-queue has set on a Node.
func (t *term) open(ctx context.Context, on node) error {
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	if err := t.taint(ctx, on, nil, t.opts.Taints.ours); err != nil {
		return err
	}
	_, err := t.drainNode(on, nil).Uncordon(ctx, nil)
	return err
}

// reopen is open for a node that was drained, and says so.
func (t *term) reopen(ctx context.Context, on node, why string) error {
	err := t.open(ctx, on)
	if err == nil {
		t.opts.Log.WithField(fieldNode, on.name).Info(why + ": its node takes pods again")
		t.reportClosed(on)
	}
	return err
}

// reportClosed reports to the node's listeners that the event that it was cordoned for is over.
func (t *term) reportClosed(on node) {
	now := time.Now()
	e := state.Entry{
		Event: event.Event{ID: on.cordon.Event, Kind: event.Kind(on.cordon.Kind)}, Phase: state.Closed, Ending: state.Completed,
		FirstSeen: on.cordon.Since, Changed: now.Round(0),
	}
	listeners, end := t.listeners(on, func() []state.Entry { return []state.Entry{e} })
	defer end(false)
	for _, l := range listeners {
		l.OnTransition(state.Transition{Kind: state.ClosedWith, At: now, Node: on.name, Entry: e, Plan: t.policy().Describe(e)})
	}
}

// busily does something for a hint in the background, and then settles it. What fails is tried again with its message.
func (t *term) busily(in *instance, h *hint, do func(ctx context.Context) error) {
	t.mu.Lock()
	h.busy = true
	pause := h.deliveries[0].pause
	t.mu.Unlock()
	t.background(func(ctx context.Context) {
		err := do(ctx)
		if ctx.Err() != nil {
			return // It goes back with all others.
		}
		if err != nil {
			t.opts.Log.Warnf("%s: %s; retrying", h.describe(), err)
		}
		t.endHint(in, h, err != nil, pause)
		t.queue.Add(in.id)
	})
}

// wantsDrain reports whether the rules want the node drained for a hint. If they do not, somebody else drains it, and completes the
// lifecycle action.
func (t *term) wantsDrain(h *hint) bool {
	return t.policy()[h.Event.Kind].Action == policy.Drain
}
