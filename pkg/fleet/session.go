package fleet

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nth-project/nth/pkg/agent"
	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/systemd"
)

// session is the work on one node, from its first task until none is left.
type session struct {
	fleet   *Fleet
	node    string
	group   string
	nodeKey nodeKey
	since   time.Time // when its first task came
	// urgent means that it does not wait for its turn, and that its requests go before those of other nodes.
	urgent atomic.Bool

	// The fleet's mutex guards what follows.
	begun    bool             // it does not wait any more
	deadline time.Time        // the nearest of its tasks, while it waits; zero if there is none
	tasks    map[string]*task // by event ID
	// announced are the events of all tasks that it has had: an event still stands when its message is done.
	announced map[string]event.Event
	// outcomes are the outcomes of its events so far.
	outcomes map[string]event.Outcome
	// notes are to be written to the Node, by event ID; nil removes the note of an event.
	notes map[string]*note
	// staysClosedFor is an event for which the node stays cordoned although its message is done.
	staysClosedFor event.Event
	// sink receives the events while the agent runs; nil otherwise.
	sink event.Sink
	// over means that it takes no more tasks.
	over bool
	stop context.CancelFunc
	// ended is closed when the session has ended.
	ended chan struct{}
	// claimed is the text of its claim on the Node. lose ends the session if the Node has another claim; looked is the version of the Node
	// in the watch for which that was last checked.
	claimed, looked string
	lose            context.CancelCauseFunc
	record          *memoryRecord
	// listeners are those of the agent while it runs.
	listeners []agent.Listener
	// rules are those with which its agent was started.
	rules policy.Settings
}

// join gives a task to its node's session; a new session waits for its turn.
func (f *Fleet) join(n node, t *task) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if t.term.ctx.Err() != nil {
		t.retryAfter(0)
		return
	}
	s := f.sessions[n.name]
	if s == nil || s.over {
		s = &session{
			fleet: f, node: n.name, group: n.group, nodeKey: nodeKeyOf(n.name), since: time.Now(), tasks: map[string]*task{}, announced: map[string]event.Event{},
			outcomes: map[string]event.Outcome{}, ended: make(chan struct{}),
		}
		f.sessions[n.name] = s
	}
	ev := t.notice.Event
	if s.record != nil {
		f.startBudget(t, time.Now())
	}
	if other, there := s.tasks[ev.ID]; there && other != t {
		t.mergeInto(other)
		return
	}
	s.tasks[ev.ID], s.announced[ev.ID] = t, ev
	if s.announce(ev.Kind); s.sink != nil {
		f.background(s.addTaints)
	}
	if t.isUrgent() {
		s.urgent.Store(true)
	}
	if !s.begun {
		f.wake()
	}
}

// announce tells the agent, if it runs, the current events of a kind. f.mu is held.
func (s *session) announce(kind event.Kind) {
	if s.sink != nil {
		s.sink.Snapshot(event.Snapshot{Kind: kind, Events: s.events(kind)})
	}
}

// events returns the events of a kind. The deadline of an event whose machine is lost at the end of its budget is that end. f.mu is held.
func (s *session) events(kind event.Kind) []event.Event {
	var all []event.Event
	for id, ev := range s.announced {
		if ev.Kind != kind {
			continue
		}
		if t := s.tasks[id]; t != nil && t.lost {
			ev.Deadline = s.fleet.budgetEnd(t).Round(0)
		}
		all = append(all, ev)
	}
	return all
}

// run claims the node, runs an agent for it, and releases the claim.
func (s *session) run(ctx context.Context, t *leaseTerm) {
	f := s.fleet
	held, err := s.claim(ctx, t)
	if err != nil {
		s.end(err)
		return
	}
	claimed, lost := context.WithCancelCause(ctx)
	defer lost(nil)
	text := held.Annotations[ClaimAnnotation]
	if !f.opts.DryRun {
		f.mu.Lock()
		known, _ := f.nodes.find(s.node) // The watch may still show the Node without the claim.
		s.claimed, s.looked, s.lose = text, known.version, lost
		f.mu.Unlock()
	}
	if s.dropStale(claimed, held) {
		s.runAgent(claimed, t, held)
	}
	cause := context.Cause(claimed)
	if !isClaimLost(cause) { // The claim keeps other processes away until all this is written.
		s.handOverCordon(t.leased)
		s.writeNotes(t.leased)
		if !f.opts.DryRun {
			// Before the slot is released, because processes also count claims. If this fails, endOrphans removes the claim.
			if err := f.claims.release(t.leased, s.node, text); err != nil {
				f.opts.Log.WithField(fieldNode, s.node).Debugf("ending the claim: %s", err)
			}
		}
	}
	s.end(cause)
}

// checkClaims looks at the Nodes that bear another claim than that of their session in the watch.
func (f *Fleet) checkClaims(t *leaseTerm) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.sessions {
		if s.lose == nil {
			continue
		}
		if now, there := f.nodes.find(s.node); there && now.claim != s.claimed && now.version != s.looked {
			s.looked = now.version
			t.sessions.Go(func() { s.checkClaim(t.ctx) })
		}
	}
}

// checkClaim ends the session if its claim is not on the Node any more. The watch may only be behind.
func (s *session) checkClaim(ctx context.Context) {
	f := s.fleet
	ctx, leave, err := f.claims.enter(ctx, s.urgent.Load)
	if err != nil {
		return
	}
	defer leave()
	now, err := f.opts.Client.CoreV1().Nodes().Get(ctx, s.node, metav1.GetOptions{})
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case drain.NotFound(err):
	case err != nil:
		s.looked = "" // Look again.
	case now.Annotations[ClaimAnnotation] != s.claimed:
		s.lose(errClaimLost)
	}
}

// claimTries is how often in a row a claim may fail before the messages are returned: another process may be able to reach the API server.
const claimTries = 2

// claim waits until it has claimed the node, and returns the Node with the claim. The error is errGone, errLeaveToOthers, errUnclaimed or
// that of ctx.
func (s *session) claim(ctx context.Context, t *leaseTerm) (*corev1.Node, error) {
	f := s.fleet
	for failures := 0; ; {
		news := f.nodes.changes()
		known, there := f.nodes.find(s.node)
		if !there {
			return nil, errGone
		}
		if f.opts.DryRun {
			return &corev1.Node{}, nil
		}
		if err := s.leaveToOthers(ctx, t.process, known); err != nil {
			return nil, err
		}
		held, err := f.claims.take(ctx, t.process, known, s.urgent.Load)
		switch {
		case err == nil:
			return held, nil
		case drain.NotFound(err):
			return nil, errGone
		case ctx.Err() != nil:
			return nil, ctx.Err()
		}
		var other errClaimed
		wait := time.Second
		if errors.As(err, &other) {
			wait = other.look
		} else {
			news = nil
			s.startBudgets()
			f.opts.Log.WithField(fieldNode, s.node).Warn(err)
			if failures++; failures == claimTries {
				return nil, errUnclaimed
			}
		}
		if !drain.Await(ctx, news, wait) {
			return nil, ctx.Err()
		}
	}
}

// startBudgets makes the budgets of the session's events count from now, or from when an earlier session has begun with them, as its
// record says.
func (s *session) startBudgets() {
	f := s.fleet
	f.mu.Lock()
	defer f.mu.Unlock()
	for id, t := range s.tasks {
		since := time.Now()
		if s.record != nil {
			if e := s.record.entry(id); !e.FirstSeen.IsZero() {
				since = since.Add(min(e.FirstSeen.Sub(since.Round(0)), 0)) // It keeps its monotonic clock.
			}
		}
		for _, same := range append([]*task{t}, t.others...) {
			f.startBudget(same, since)
		}
	}
}

// errUnclaimed means that the API server does not accept the claim.
var errUnclaimed = errors.New("the node cannot be claimed")

// errGone means that the Node does not exist any more.
var errGone = errors.New("there is no such Node any more")

// end removes the session from the fleet and ends its remaining tasks. If the Node is gone, nothing is left to be done for them.
func (s *session) end(cause error) {
	f := s.fleet
	f.mu.Lock()
	s.over, s.sink = true, nil
	tasks := slices.Collect(maps.Values(s.tasks)) // requestReplacement may still remove one.
	if f.sessions[s.node] == s {
		delete(f.sessions, s.node)
	}
	f.mu.Unlock()
	var others errLeaveToOthers
	for _, t := range tasks {
		switch {
		case errors.Is(cause, errGone):
			f.completeTask(t, event.Drained)
		case errors.As(cause, &others):
			t.retryAfter(others.pause)
		case errors.Is(cause, errClaimLost), errors.Is(cause, errUnclaimed):
			t.retry()
		default:
			t.retryAfter(0) // The term is over: another process can continue at once.
		}
	}
	f.wake()
}

// leftAlone reports whether people want the node left alone for all of its tasks; it takes no place of others then. f.mu is held.
func (s *session) leftAlone() bool {
	for id := range s.tasks {
		if s.outcomes[id] != event.LeftAlone {
			return false
		}
	}
	return len(s.tasks) > 0
}

// onOutcome takes in the outcome of an event so far. It implements agent.Config.Settled.
func (s *session) onOutcome(ev event.Event, outcome event.Outcome) {
	f := s.fleet
	f.mu.Lock()
	defer f.mu.Unlock()
	if outcome == event.LeftAlone && s.outcomes[ev.ID] != outcome {
		f.wake()
	}
	s.outcomes[ev.ID] = outcome
}

// rulesAskForMore reports whether the current rules ask for more than the session's. A hook is not completed before that is done.
func (s *session) rulesAskForMore(kind event.Kind) bool {
	return s.fleet.policy()[kind].Action.Exceeds(s.rules[kind].Action)
}

// onRested takes in that nothing is to be done about an event any more, or not before a time. It implements agent.Config.Rested. An event
// whose time has run out ends, too: if its message were received again, the node would be queued and the outcome reported again.
func (s *session) onRested(ctx context.Context, ev event.Event, again time.Time) {
	f := s.fleet
	f.mu.Lock()
	defer f.mu.Unlock()
	t, ours := s.tasks[ev.ID]
	if !ours || t.replaced {
		return
	}
	entry, ends := s.record.entry(ev.ID), again.IsZero() || s.outcomes[ev.ID] == event.OutOfTime
	if ends && f.staysClosed(entry) && (s.staysClosedFor.ID == "" || !revocable(ev.Kind)) {
		s.staysClosedFor = ev
	}
	if t.replaced = ends && s.wantsReplacement(t); t.replaced {
		f.work.Go(func() { s.requestReplacement(ctx, t) })
		return
	}
	s.addNote(t.notice.Event, entry, again)
	switch {
	case ends:
		s.endTask(t)
	case entry.Error == "" && t.listed:
		t.done() // EC2 lists it.
	case entry.Error == "":
		t.retryAfter(time.Until(again))
	case s.overdue(entry):
		return // This is the last attempt, which ends soon.
	default:
		t.retry()
	}
	s.removeTask(ev.ID)
}

// forget removes an event and its task, as if it had never been announced. f.mu is held.
func (s *session) forget(id string) {
	delete(s.tasks, id)
	delete(s.announced, id)
}

// removeTask removes a task that has ended. If the session goes on, the notes are written at once, because they would be lost with its
// claim. f.mu is held.
func (s *session) removeTask(id string) {
	delete(s.tasks, id)
	if len(s.tasks) > 0 {
		s.fleet.background(s.writeNotes)
		return
	}
	s.over = true
	s.stop()
}

// endTask ends a task for whose event nothing more is going to be done. f.mu is held.
func (s *session) endTask(t *task) {
	f, outcome := s.fleet, s.outcomes[t.notice.Event.ID]
	switch {
	case outcome == event.LeftAlone:
		f.endLeftAlone(t)
	case f.groupWaits(t) && s.rulesAskForMore(t.notice.Event.Kind):
		t.retry()
	case f.wantsNodeDeleted(t):
		until := f.keepNodeUntil(t)
		f.background(func(ctx context.Context) { f.deleteNodeFor(ctx, s.node, t, until) })
	default:
		f.completeTask(t, outcome)
	}
}

// overdue reports whether the deadline of an event is over.
func (s *session) overdue(e state.Entry) bool {
	deadline, _ := s.rules.Deadline(e)
	return !deadline.IsZero() && !deadline.After(time.Now())
}

// fieldNode is the log field with the name of a node.
const fieldNode = systemd.FieldNode

// runAgent runs an agent for the node until no task is left or ctx ends.
func (s *session) runAgent(ctx context.Context, t *leaseTerm, held *corev1.Node) {
	f := s.fleet
	f.mu.Lock()
	s.record, s.rules = s.recordFromNode(held), f.policy()
	f.mu.Unlock()
	s.startBudgets()
	var extras sync.WaitGroup
	defer extras.Wait()
	extras.Go(func() {
		marking, end := t.finishing(ctx)
		defer end()
		s.addTaints(marking)
	})
	var listeners []agent.Listener
	if f.opts.Listeners != nil {
		var end func(lost bool)
		listeners, end = f.opts.Listeners(s.node, s.allEntries)
		s.setListeners(listeners)
		defer func() {
			s.setListeners(nil)
			end(isClaimLost(context.Cause(ctx)))
		}()
	}
	source := &sessionSource{session: s}
	_ = agent.New(agent.Config{
		Sources: []agent.Source{source}, Identity: source,
		Node: f.drainNode(s.node, s.urgent.Load), NodeName: s.node, Record: s.record, Policy: s.rules,
		BootID: held.Status.NodeInfo.BootID, NodeSeen: true, ClaimRead: true, Log: f.opts.Log, DryRun: f.opts.DryRun,
		Settled: s.onOutcome, Rested: func(ev event.Event, again time.Time) { s.onRested(ctx, ev, again) }, Listeners: listeners,
	}).Run(ctx) // sessionSource never fails.
}

func (s *session) setListeners(told []agent.Listener) {
	s.fleet.mu.Lock()
	defer s.fleet.mu.Unlock()
	s.listeners = told
}

// allEntries returns the state of the node's events: of those in the session's record, and of others that are noted on the Node.
func (s *session) allEntries() []state.Entry {
	own := s.record.Entries()
	return append(own, s.fleet.otherEntries(s.node, own)...)
}

// drainNode returns the node for the agent to act on. urgent, if not nil, reports whether its requests go before those of other nodes.
func (f *Fleet) drainNode(name string, urgent func() bool) agent.Node {
	options := f.rules.Load().Drain
	options.Writer, options.Requests, options.Urgent = drain.Queue, f.claims.gate, urgent
	if own := f.opts.Own; name == own.Node {
		options.Last = own.Namespace + "/" + own.Pod
	}
	n := drain.New(f.opts.Client, name, options)
	if f.opts.DryRun {
		return drain.NewDryRun(n)
	}
	return n
}

// recordFromNode rebuilds the record from the Node: from its cordon, if nth-queue has set it for one of the session's events. If the node
// is schedulable all the same, people have lifted that cordon, which is an order: only the pods that were there before are evicted for
// that event. A cordon of anybody else, such as nth on the machine, is not the session's to undo. An event without a cordon whose budget
// counts already has not more time for that. f.mu is held.
func (s *session) recordFromNode(held *corev1.Node) *memoryRecord {
	b := &memoryRecord{}
	n := s.fleet.nodes.parse(held)
	for id, t := range s.tasks {
		if since, known := s.fleet.budgetStarts[id]; known {
			seen := time.Now().Round(0).Add(-time.Since(since))
			b.entries = append(b.entries, state.Entry{
				Event: t.notice.Event, Phase: state.Seen, BootID: n.bootID, ListedIn: n.bootID, FirstSeen: seen, Changed: seen,
			})
		}
	}
	claim := n.cordon
	if t, ours := s.tasks[claim.Event]; ours && n.ours {
		since := cmp.Or(event.CredibleTime(claim.Since), time.Now().UTC().Round(0))
		e := state.Entry{
			Event: t.notice.Event, Phase: state.Cordoned, BootID: claim.BootID, ListedIn: n.bootID, OnNode: true,
			FirstSeen: since, Changed: since, CordonedAt: since,
		}
		if e.Event.State != event.Pending { // The agent hears that it is over together with what still stands, lest it open the node in between.
			e.Event.State, e.Missing = event.Pending, time.Now().UTC().Round(0)
		}
		if !held.Spec.Unschedulable {
			// Its message was received again, so its drain, if it is to be drained for, has not ended.
			e.Phase, e.Reopened = state.Draining, true
		}
		b.Put(func(error) {}, e)
	}
	for id, t := range s.tasks { // They were announced before, when their time had not come.
		ev, now := t.notice.Event, time.Now().UTC().Round(0)
		if known, noted := n.notes.find(ev); noted && known.At.Equal(ev.Deadline) && b.entry(id).Phase == "" {
			b.entries = append(b.entries, state.Entry{
				Event: ev, Phase: state.Seen, BootID: n.bootID, ListedIn: n.bootID, FirstSeen: now, Changed: now,
			})
		}
	}
	return b
}

// memoryRecord is an agent.Record in memory.
type memoryRecord struct {
	mu      sync.Mutex
	entries []state.Entry
}

// Entries implements agent.Record.
func (b *memoryRecord) Entries() []state.Entry {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.entries)
}

// Put implements agent.Record.
func (b *memoryRecord) Put(written func(error), entries ...state.Entry) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range entries {
		i := slices.IndexFunc(b.entries, func(other state.Entry) bool { return other.Event.ID == e.Event.ID })
		if i < 0 {
			b.entries = append(b.entries, e)
		} else {
			b.entries[i] = e
		}
	}
	written(nil)
}

// Flush implements agent.Record.
func (b *memoryRecord) Flush(context.Context) error { return nil }

func (b *memoryRecord) entry(id string) state.Entry {
	for _, e := range b.Entries() {
		if e.Event.ID == id {
			return e
		}
	}
	return state.Entry{}
}

// sessionSource is the agent's only source, and its identity.
type sessionSource struct {
	session *session
}

// KeepWarm implements agent.Identity. The credential is the whole process's, and is kept valid elsewhere.
func (m *sessionSource) KeepWarm(ctx context.Context, tell func(node string, err error)) {
	tell(m.session.node, nil)
	<-ctx.Done()
}

// Run implements agent.Source.
func (m *sessionSource) Run(ctx context.Context, sink event.Sink) error {
	s := m.session
	s.fleet.mu.Lock()
	s.sink = sink
	for _, kind := range event.QueuedKinds() {
		if events := s.events(kind); len(events) > 0 {
			sink.Snapshot(event.Snapshot{Kind: kind, Events: events})
		}
	}
	s.fleet.mu.Unlock()
	<-ctx.Done()
	return nil
}

// staysClosed reports whether the node stays cordoned for an event whose message is done, until people or the end of the event say
// otherwise. A cordon with a time to live does not count.
func (f *Fleet) staysClosed(e state.Entry) bool {
	done := e.Phase == state.Drained || e.Phase == state.Cordoned || e.Phase == state.Incomplete || e.LeftAlone
	return done && e.OnNode && !e.Reopened && !f.cordonExpires(e.Event.Kind)
}

// cordonExpires reports whether the cordon for a kind of event has a time to live.
func (f *Fleet) cordonExpires(kind event.Kind) bool {
	rule := f.policy()[kind]
	return rule.Action == policy.Cordon && rule.CordonFor > 0
}

// revocable reports whether EC2 may yet withdraw an event of that kind, so that its cordon is lifted.
func revocable(kind event.Kind) bool {
	return kind == event.ScheduledMaintenance || kind == event.StatusCheck
}

// handOverCordon gives a cordon that expires, or that is lifted when EC2 withdraws its event, to an event for which the node is to stay
// cordoned. Nothing else remembers that event once its message is done, and the node would be uncordoned too early.
func (s *session) handOverCordon(ctx context.Context) {
	f := s.fleet
	f.mu.Lock()
	to := s.staysClosedFor
	f.mu.Unlock()
	if to.ID == "" || f.opts.DryRun {
		return
	}
	err := persistently(ctx, func() error {
		err := f.claims.change(ctx, s.node, nil, func(node *corev1.Node) map[string]any { return f.cordonPatch(node, to) })
		if drain.NotFound(err) {
			return nil
		}
		return err
	})
	if err != nil {
		f.opts.Log.WithField(fieldNode, s.node).Warnf("the node may be opened before its time: %s", err)
	}
}

// cordonPatch returns a patch that gives the cordon on a Node to an event; nil if the cordon is not nth-queue's, or lasts anyway.
func (f *Fleet) cordonPatch(node *corev1.Node, to event.Event) map[string]any {
	text, _ := drain.KeyValue(node.Annotations, drain.CordonAnnotation)
	claim, ours := cordonOf(text)
	kind := event.Kind(claim.Kind)
	expires := f.cordonExpires(kind) || revocable(kind) && !revocable(to.Kind)
	if !node.Spec.Unschedulable || !ours || claim.Event == to.ID || !expires {
		return nil
	}
	claim.Event, claim.Kind, claim.BootID = to.ID, string(to.Kind), node.Status.NodeInfo.BootID
	claim.Events = append(claim.Events, to.ID)
	next, _ := json.Marshal(claim) // a struct of strings and a time always encodes
	return annotationPatch(node.ResourceVersion, drain.KeyPatch(node.Annotations, drain.CordonAnnotation, string(next)))
}
