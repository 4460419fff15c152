package fleet

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nth-project/nth/pkg/agent"
	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/systemd"
)

// session is what is being done for one node: from when its first event comes until nothing is left to be done for any.
type session struct {
	fleet   *Fleet
	node    string
	group   string
	nodeKey nodeKey
	since   time.Time // when its first event came
	// urgent tells that what is done for it waits behind no other node.
	urgent atomic.Bool

	// The fleet's mutex guards what follows.
	begun    bool      // it waits no longer
	deadline time.Time // the nearest of its events, while it waits; zero if there is none
	tasks    map[string]*task
	// announced are the events of all tasks that it ever had: that a message has come to its end takes nothing back of what it says.
	announced map[string]event.Event
	// outcomes are what has come of its events so far.
	outcomes map[string]event.Outcome
	// notes are what is to be noted on the Node of what has come of events; nil is for what needs no note any more.
	notes map[string]*note
	// staysClosedFor is an event that the node was drained or cordoned for and whose message has come to its end.
	staysClosedFor event.Event
	// sink gets the events while there is an agent; nil without one.
	sink event.Sink
	// over tells that it takes no more tasks.
	over bool
	stop context.CancelFunc
	// ended is closed when nothing more is done for the node.
	ended chan struct{}
	// claimed is the text of its claim on the Node. lose, if not nil, ends it when something else stands there; looked is the version of
	// the Node, as the watch has shown it, that was last looked at for that.
	claimed, looked string
	lose            context.CancelCauseFunc
	record          *memoryRecord
	// listeners are told what happens to the node while there is an agent.
	listeners []agent.Listener
	// rules are those by which it was begun, and goes on.
	rules policy.Settings
}

// join gives a task to its node's session. A new one goes into the line.
func (f *Fleet) join(n node, t *task) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.Paused() {
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

// announce tells the agent, if there is one, of the events of a kind. f.mu is held.
func (s *session) announce(kind event.Kind) {
	if s.sink != nil {
		s.sink.Snapshot(event.Snapshot{Kind: kind, Events: s.events(kind)})
	}
}

// events are those of a kind that the session is or was for. One has the end of its budget as its deadline where the machine is lost then
// although people would have it kept. f.mu is held.
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

// run claims the node, lets an agent do what is to be done for it, and ends the claim.
func (s *session) run(ctx context.Context, t *leaseTerm) {
	held, err := s.claim(ctx, t)
	if err != nil {
		s.end(err)
		return
	}
	claimed, lost := context.WithCancelCause(ctx)
	defer lost(nil)
	text := held.Annotations[ClaimAnnotation]
	if !s.fleet.opts.DryRun {
		s.noteClaim(text, lost)
	}
	if s.dropStale(claimed, held) {
		s.runAgent(claimed, t, held)
	}
	cause := context.Cause(claimed)
	if !isClaimLost(cause) {
		s.handOverCordon(t.leased) // While the claim stands, so that no other works on the node.
		s.writeNotes(t.leased)
	}
	if !s.fleet.opts.DryRun && !isClaimLost(cause) {
		// Before its place is another's: whoever counts claims counts it until then. If it does not work out, endOrphans ends the claim.
		if err := s.fleet.claims.release(t.leased, s.node, text); err != nil {
			s.fleet.opts.Log.WithField(fieldNode, s.node).Debugf("ending the claim: %s", err)
		}
	}
	s.end(cause)
}

// noteClaim takes in the claim that the Node bears from now on. What the watch shows of the Node may be from before.
func (s *session) noteClaim(text string, lost context.CancelCauseFunc) {
	f := s.fleet
	f.mu.Lock()
	defer f.mu.Unlock()
	known, _ := f.nodes.find(s.node)
	s.claimed, s.looked, s.lose = text, known.version, lost
}

// checkClaims looks at the Nodes on which the watch shows something else than our claims.
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

// checkClaim ends the session if its claim is not on its Node any more. The watch may only have been behind.
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
	case apierrors.IsNotFound(err):
	case err != nil:
		s.looked = "" // It is looked at again.
	case now.Annotations[ClaimAnnotation] != s.claimed:
		s.lose(errClaimLost)
	}
}

// claimTries is how often in a row a claim may fail before its messages go back into the queue.
const claimTries = 2

// claim waits until the node is ours to drain, and returns the Node as it is then, with the claim. It fails with
// the context's error, because there is no such Node, because another process is to drain it, or because the API server does not
// take the claim: another process may have a better way to it.
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
		case apierrors.IsNotFound(err):
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

// startBudgets takes in that the budgets of the session's events count from now on, or from when an earlier session has begun with them, as the
// book says.
func (s *session) startBudgets() {
	f := s.fleet
	f.mu.Lock()
	defer f.mu.Unlock()
	for id, t := range s.tasks {
		since := time.Now()
		if s.record != nil {
			if e := s.record.entry(id); !e.FirstSeen.IsZero() {
				since = since.Add(min(e.FirstSeen.Sub(since.Round(0)), 0))
			}
		}
		for _, same := range append([]*task{t}, t.others...) {
			f.startBudget(same, since)
		}
	}
}

// errUnclaimed says that the API server does not take the claim.
var errUnclaimed = errors.New("the node cannot be claimed")

// errGone says that the Node is not there any more.
var errGone = errors.New("there is no such Node any more")

// end takes the session out of the fleet, and gives back what is left of it. Without a Node nothing is left to be done.
func (s *session) end(cause error) {
	f := s.fleet
	f.mu.Lock()
	s.over, s.sink = true, nil
	tasks := s.tasks
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
			t.retryAfter(0) // We are to stop, or have no Lease: others can go on at once.
		}
	}
	f.wake()
}

// leftAlone tells whether people want the node left alone for all that it waits for: others need not wait in line for that. f.mu is held.
func (s *session) leftAlone() bool {
	for id := range s.tasks {
		if s.outcomes[id] != event.LeftAlone {
			return false
		}
	}
	return len(s.tasks) > 0
}

// onOutcome takes in what has come of an event so far.
func (s *session) onOutcome(ev event.Event, outcome event.Outcome) {
	f := s.fleet
	f.mu.Lock()
	defer f.mu.Unlock()
	if outcome == event.LeftAlone && s.outcomes[ev.ID] != outcome {
		f.wake()
	}
	s.outcomes[ev.ID] = outcome
}

// rulesAskForMore tells whether the rules that hold now ask for more than those by which the session goes on: a hook is not completed before that is
// done.
func (s *session) rulesAskForMore(kind event.Kind) bool {
	return s.fleet.policy()[kind].Action.Exceeds(s.rules[kind].Action)
}

// onRested takes in that nothing is being done about an event now: for ever, or until a time. What is out of time is at its end, too: a
// message that came again would take a place in the line for it again, and tell of its end again.
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
		t.done() // EC2 keeps it in mind.
	case entry.Error == "":
		t.retryAfter(time.Until(again))
	case s.overdue(entry):
		return // What is done now is the last effort, and comes to its end soon.
	default:
		t.retry()
	}
	s.removeTask(ev.ID)
}

// forget drops an event and what was to be done for it. f.mu is held.
func (s *session) forget(id string) {
	delete(s.tasks, id)
	delete(s.announced, id)
}

// removeTask takes in that the session is done with an event. What is known of it by then is noted at once if the session goes on: if it loses its
// claim, nobody else would know. f.mu is held.
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

// overdue tells whether the time of an event has come to its end.
func (s *session) overdue(e state.Entry) bool {
	deadline, _ := s.rules.Deadline(e)
	return !deadline.IsZero() && !deadline.After(time.Now())
}

// fieldNode is the field of what is said about a node.
const fieldNode = systemd.FieldNode

// runAgent runs an agent for the node until nothing is left for it to do, or ctx ends.
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
	mind := &sessionSource{session: s}
	_ = agent.New(agent.Config{
		Sources: []agent.Source{mind}, Identity: mind,
		Node: f.drainNode(s.node, s.urgent.Load), NodeName: s.node, Record: s.record, Policy: s.rules,
		BootID: held.Status.NodeInfo.BootID, NodeSeen: true, ClaimRead: true, Log: f.opts.Log, DryRun: f.opts.DryRun,
		Settled: s.onOutcome, Rested: func(ev event.Event, again time.Time) { s.onRested(ctx, ev, again) }, Listeners: listeners,
	}).Run(ctx) // Its one source never gives up.
}

func (s *session) setListeners(told []agent.Listener) {
	s.fleet.mu.Lock()
	defer s.fleet.mu.Unlock()
	s.listeners = told
}

// allEntries are what is known of the node's events: of those that the session is for, and of others.
func (s *session) allEntries() []state.Entry {
	own := s.record.Entries()
	return append(own, s.fleet.otherEntries(s.node, own)...)
}

// drainNode is a node as it is acted upon. urgent, if not nil, tells whether that waits behind nothing else.
func (f *Fleet) drainNode(name string, urgent func() bool) agent.Node {
	options := f.rules.Load().Drain
	options.Writer, options.Requests, options.Urgent = drain.Queue, f.claims.gate, urgent
	if urgent != nil && options.RestartWait > 0 {
		options.Restart = f.restart.of(name, urgent)
	}
	if own := f.opts.Own; name == own.Node {
		options.Last = own.Namespace + "/" + own.Pod
	}
	n := drain.New(f.opts.Client, name, options)
	if f.opts.DryRun {
		return drain.NewDryRun(n)
	}
	return n
}

// recordFromNode is the book that the node itself has kept: the cordon that it bears, if nth-queue has set it for one of these events.
// Where the node takes pods all the same, people have lifted that cordon, which is an order: only those pods go for the event that
// were there before. What others have cordoned it for, the nth on the machine among them, is theirs to undo. An event that has begun before
// has no more time because it left no cordon. f.mu is held.
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
		if !held.Spec.Unschedulable {
			// Its message is back, so that a drain, if its rule asks for one, has not come to its end.
			e.Phase, e.Reopened = state.Draining, true
		}
		b.Put(func(error) {}, e)
	}
	return s.addNotes(b, n)
}

// addNotes adds to a book what was told before of events whose time had not come then. f.mu is held.
func (s *session) addNotes(b *memoryRecord, n node) *memoryRecord {
	for id, t := range s.tasks {
		ev, now := t.notice.Event, time.Now().UTC().Round(0)
		if known, noted := n.notes.find(ev); noted && known.At.Equal(ev.Deadline) && b.entry(id).Phase == "" {
			b.entries = append(b.entries, state.Entry{
				Event: ev, Phase: state.Seen, BootID: n.bootID, ListedIn: n.bootID, FirstSeen: now, Changed: now,
			})
		}
	}
	return b
}

// memoryRecord is a record in memory.
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

// sessionSource is what the agent is told by: which node it is, and what is announced for it.
type sessionSource struct {
	session *session
}

// KeepWarm implements agent.Identity. The credential is everybody's, and is kept warm elsewhere.
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

// addTaints puts the taints on the node that its events bring. It is done beside the drain and never holds it up.
func (s *session) addTaints(ctx context.Context) {
	f := s.fleet
	var wanted []corev1.Taint
	f.mu.Lock()
	for _, t := range s.tasks {
		if ev := t.notice.Event; f.policy()[ev.Kind].Action != policy.Notify && ev.State == event.Pending && !t.lifts {
			wanted = append(wanted, f.opts.Taints.wanted(t.notice.Event, t.notice.Stopped)...)
		}
	}
	f.mu.Unlock()
	if len(wanted) == 0 || f.opts.DryRun {
		return
	}
	if err := f.taint(ctx, s.node, wanted); err != nil && ctx.Err() == nil {
		f.opts.Log.WithField(fieldNode, s.node).Warn(err)
	}
}

// staysClosed tells whether a node stays closed for an entry whose message has come to its end: until people or the event's own end say
// otherwise, unlike a cordon with a time to live. f.mu is held.
func (f *Fleet) staysClosed(e state.Entry) bool {
	done := e.Phase == state.Drained || e.Phase == state.Cordoned || e.Phase == state.Incomplete || e.LeftAlone
	return done && e.OnNode && !e.Reopened && !f.cordonExpires(e.Event.Kind)
}

// cordonExpires tells whether a kind's cordon has a time to live.
func (f *Fleet) cordonExpires(kind event.Kind) bool {
	rule := f.policy()[kind]
	return rule.Action == policy.Cordon && rule.CordonFor > 0
}

// revocable tells whether EC2 may yet say that a kind's event is over, so that its cordon is lifted.
func revocable(kind event.Kind) bool {
	return kind == event.ScheduledMaintenance || kind == event.StatusCheck
}

// handOverCordon gives a cordon that has a time to live, or that is lifted when EC2 says so, to the event that the node was drained or cordoned for
// meanwhile. Nobody else remembers that one once its message is gone, and the node would be opened when the time to live is over.
func (s *session) handOverCordon(ctx context.Context) {
	f := s.fleet
	f.mu.Lock()
	to := s.staysClosedFor
	f.mu.Unlock()
	if to.ID == "" || f.opts.DryRun {
		return
	}
	err := persistently(ctx, func() error {
		// If anything has changed on the Node since it was read, the cordon may be another's now.
		err := f.claims.change(ctx, s.node, nil, func(node *corev1.Node) map[string]any { return f.cordonPatch(node, to) })
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
	if err != nil {
		f.opts.Log.WithField(fieldNode, s.node).Warnf("the node may be opened before its time: %s", err)
	}
}

// cordonPatch gives the cordon on a Node to another event; nil if it is not ours, or stays for as long as that event needs it anyway.
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
