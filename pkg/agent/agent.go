// Package agent is the loop: snapshot → decide → record → act → report.
//
// Sources deliver what is announced. One goroutine, the loop, brings the record up to date and asks the policy for the one goal for the node. Then it
// starts, adjusts or stops the work in progress, so that this pursues the goal. Work is either a guard or an uncordon:
//   - A guard (drain.Node.Guard) cordons and drains the node, and runs as long as the node is to be cordoned.
//   - An uncordon takes back what nth has set on the node.
//
// Work is recorded before it begins, and its result afterwards, so that after a crash, an upgrade or a reboot the goal is the same. The outcome of
// each event follows from the record and the state of the node: see policy.Settings.Settled.
//
// The loop does not wait for the node, the disk or a listener: other goroutines post functions, which the loop calls. Run ends when its context
// does, and leaves the node as it is.
//
// pkg/policy explains its terms: look, stand, released, left alone. A step is a cordon, a drain or an uncordon as it is reported for one event; a
// change of an event or a step is reported as a state.Transition.
//
// A newcomer starts at Agent.loop. What is done to the node is in work.go, and what is reported in report.go.
package agent

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/kube"
	"github.com/nth-project/nth/pkg/loop"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/systemd"
)

// Source watches for events until ctx ends and reports them to the sink.
type Source interface {
	Run(ctx context.Context, sink event.Sink)
}

// HealthChecker is a Source that notices when it stalls.
type HealthChecker interface {
	// Stalled says what has stalled; nil if nothing has.
	Stalled() error
}

// Node is the node that is acted upon: see drain.Node.
type Node interface {
	Guard(ctx context.Context, task *drain.Task, report func(drain.Progress))
	Uncordon(ctx context.Context, booted drain.Booted) (drain.UncordonResult, error)
	// Claim reads the claim on the node's cordon. ours is false if nth has set nothing on the node.
	Claim(ctx context.Context) (claim drain.Claim, ours bool, err error)
}

// Record has the entries of all events: see record.Store.
type Record interface {
	Entries() []state.Entry
	// Put adds entries at once, and does not wait for the disk. It calls written, from any goroutine, with nil when the entries are on disk. With
	// an error they are only in memory, until the process ends.
	Put(written func(error), entries ...state.Entry)
	// Flush waits until everything is written.
	Flush(ctx context.Context) error
}

// Service is the service manager.
type Service interface {
	Ready()
	Status(format string, args ...any)
	Stopping()
	// Beat feeds the watchdog.
	Beat()
}

// Identity keeps the kubelet's credential valid.
type Identity interface {
	// KeepWarm runs until ctx ends. After each attempt it reports the node's name, or why there is no credential.
	KeepWarm(ctx context.Context, report func(node string, err error))
}

// Listener gets the transitions of events, steps and pods in sequence, from the loop's goroutine.
type Listener interface {
	// OnTransition is called after the transition was logged. It must not block, so that no listener can hold up a drain.
	OnTransition(state.Transition)
}

// Config has the parts and settings of an Agent. All fields are needed unless they say otherwise.
type Config struct {
	Sources  []Source
	Node     Node
	Identity Identity
	Record   Record
	// Service is nil for one of several agents in a process. Such an agent does not log its start and stop.
	Service Service
	Policy  policy.Settings
	// Unwatched are the kinds that no source looks for: no event of these kinds counts as announced. May be nil.
	Unwatched []event.Kind
	// BootID is the kernel's ID of this boot.
	BootID string
	// NodeName is the node's name, if it is known from the start; otherwise Identity reports it.
	NodeName string
	// Remote: the node is another machine, and the caller has read its Node. So a Node that is missing was deleted, and the Record has what the
	// claim on the Node says. BootID may be old by the time of an uncordon.
	Remote bool
	Log    *logrus.Entry
	// Now reads the clock by which the times in the Record are, from any goroutine: see record.Store.Now. Nil means time.Now.
	Now func() time.Time
	// Reboot requests a reboot of the machine, or what nth-queue does instead. Nil if the Policy asks for none.
	Reboot func(ctx context.Context) error
	// Settled, if set, is called with the outcome of each announced event, "" while something is still to be done for the event. The
	// latest call counts, as operators may change their minds. Settled is called often and must not block.
	Settled func(event.Event, event.Outcome)
	// Rested, if set, is called for each announced event for which nothing is being done. again is when something may be due for
	// the event, even if nothing new is reported; zero means never. Rested is called often and must not block.
	Rested func(ev event.Event, again time.Time)
	// DryRun makes all messages say that nothing is done. Node must be one that does nothing.
	DryRun bool
	// Board, if set, shows the status.
	Board StatusWriter
	// Listeners get all transitions of events and steps.
	Listeners []Listener
}

// Agent is the daemon for one node. After Run has begun, its fields belong to the loop; other goroutines post to it.
type Agent struct {
	cfg            Config
	tasks          sync.WaitGroup
	began, stopped time.Time // when Run began, and when it stopped, by the loop's clock; zero before that

	known    map[event.Kind][]event.Event // the last snapshot of each kind, with times by the loop's clock
	lastGood map[event.Kind]time.Time     // when that came
	outages  map[event.Kind]outage        // of the kinds that have one
	stalled  bool                         // a source has stalled, and this was logged
	ahead    time.Duration                // by how much the loop's clock is ahead of EC2's, by which documents are dated

	node         string // the node's name; empty until it is known
	noCredential error  // why there is no credential; nil if there is one

	work        *work        // the work in progress; nil if nothing is being done
	claimRead   bool         // the claim on the Node was read, or taken back: since the start or, of another machine, by the caller
	generation  int          // the last drain.Goal.Generation
	result      drain.Result // what the guard had done when an event's drain last ended
	total, left int          // how many pods a drain has found to evict, and how many of them are left, as the guard last reported

	// written is closed when the last Put is on disk or has failed.
	written <-chan struct{}

	mu     sync.Mutex
	posted []func()      // what the loop has to call; guarded by mu
	wake   chan struct{} // has an element if something was posted
}

// New returns an agent that has not started yet.
func New(cfg Config) *Agent {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	known := map[event.Kind][]event.Event{}
	for _, kind := range cfg.Unwatched {
		known[kind] = nil // An empty snapshot, which no source replaces.
	}
	return &Agent{
		cfg: cfg, wake: make(chan struct{}, 1), node: cfg.NodeName, known: known, claimRead: cfg.Remote,
		lastGood: map[event.Kind]time.Time{}, outages: map[event.Kind]outage{},
	}
}

// flushTimeout is how long an agent that stops waits for the record, on which the next process relies. A busy disk may take some seconds.
const flushTimeout = 10 * time.Second

// Run watches, decides and acts until ctx ends. Then it stops the work in progress, and waits for the record and for all goroutines that it started.
func (a *Agent) Run(ctx context.Context) {
	a.began = a.now()
	defer a.tasks.Wait()
	for _, s := range a.cfg.Sources {
		a.tasks.Go(func() { s.Run(ctx, sink{a}) })
	}
	a.tasks.Go(func() {
		a.cfg.Identity.KeepWarm(ctx, func(node string, err error) { a.post(func() { a.handleIdentity(node, err) }) })
	})
	if !a.cfg.Remote { // Otherwise the caller has put what the claim says into the Record.
		a.tasks.Go(func() { a.readClaim(ctx) })
	}
	if a.cfg.Service != nil { // Otherwise this is one of several agents.
		dry := ""
		if a.cfg.DryRun {
			dry = ", as a dry run: nothing will be cordoned or evicted"
		}
		a.logger(systemd.Started, state.Entry{}).Info("watching for interruptions" + dry)
		a.cfg.Service.Ready()
	}

	a.loop(ctx)
	if a.cfg.Service != nil {
		a.cfg.Service.Stopping()
	}
	a.stopWork()
	a.flush(ctx)
	a.stopped = a.now()
	a.show()
	if a.cfg.Service != nil {
		a.logger(systemd.Stopping, state.Entry{}).Info("stopped; the node is left as it is: if it is cordoned, it stays cordoned")
	}
}

// flush waits until the record is written, for flushTimeout at most. An error is logged.
func (a *Agent) flush(ctx context.Context) {
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
	defer cancel()
	if err := a.cfg.Record.Flush(limited); err != nil {
		a.logUnwritten(err)
	}
}

// logUnwritten logs that the record could not be written.
func (a *Agent) logUnwritten(err error) {
	a.logger(systemd.StateTrouble, state.Entry{}).Errorf("cannot write nth's state record: %s; after a restart, nth may not know what it has done", err)
}

// tick is how often the loop decides although nothing was posted. At each tick it also feeds the watchdog and updates the status.
const tick = time.Second

// loop decides after everything that was posted, and at each tick, until ctx ends.
func (a *Agent) loop(ctx context.Context) {
	ticks := time.NewTicker(tick)
	defer ticks.Stop()
	a.show()
	// In nth-queue, the agent first waits for a snapshot, which comes at once: events in the record may be over.
	for a.cfg.Remote && len(a.known) == 0 && ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-a.wake:
			a.callPosted()
		}
	}
	for ctx.Err() == nil {
		sit, goal := a.decide()
		a.pursueGoal(ctx, goal)
		if goal.Reboot && a.claimRead { // The claim may say that the record of a reboot was lost: see noteLostReboots.
			a.recordReboot(ctx, goal)
		}
		a.reportOutcomes(sit)
		select {
		case <-ctx.Done():
		case <-ticks.C:
			a.feedWatchdog()
			a.endOutages()
			a.show()
		case <-a.wake:
			a.callPosted()
		}
	}
}

// feedWatchdog feeds the service manager's watchdog, unless a source has stalled. Then nth would miss events, so the service
// manager has to restart nth. The first of several stalls in a row is logged.
func (a *Agent) feedWatchdog() {
	if a.cfg.Service == nil {
		return
	}
	for _, s := range a.cfg.Sources {
		checker, ok := s.(HealthChecker)
		if !ok {
			continue
		}
		if err := checker.Stalled(); err != nil {
			if !a.stalled {
				a.logger(systemd.SourceTrouble, state.Entry{}).Errorf("%s; waiting for systemd's watchdog to restart nth", err)
			}
			a.stalled = true
			return
		}
	}
	a.stalled = false
	a.cfg.Service.Beat()
}

// decide brings the record up to date, and emits what has changed. It returns the goal, and the situation that the goal was derived from.
func (a *Agent) decide() (policy.Situation, policy.Goal) {
	sit := a.situation()
	// Fold takes each entry one phase further at most, and each phase is emitted.
	for changed := a.cfg.Policy.Fold(sit); len(changed) > 0; changed = a.cfg.Policy.Fold(sit) {
		past := sit.Past
		for i, e := range changed {
			before, _ := policy.Find(past, e.Event.ID)
			drainEnds := e.Phase != before.Phase && (e.Phase == state.Drained || e.Phase == state.Incomplete)
			if drainEnds {
				changed[i].Result = a.endResult()
			}
		}
		a.put(changed...)
		sit.Past = a.cfg.Record.Entries()
		for _, e := range changed {
			before, recorded := policy.Find(past, e.Event.ID)
			a.emitChange(before, recorded, e)
		}
	}
	return sit, a.cfg.Policy.Decide(sit)
}

// reportOutcomes calls Config.Settled for all announced events, and Config.Rested for those for which no work is under way.
func (a *Agent) reportOutcomes(sit policy.Situation) {
	for _, events := range a.known {
		for _, ev := range events {
			if a.cfg.Settled != nil {
				a.cfg.Settled(ev, a.cfg.Policy.Settled(sit, ev))
			}
			again, busy := a.cfg.Policy.Again(sit, ev)
			if a.cfg.Rested != nil && !busy {
				a.cfg.Rested(ev, again)
			}
		}
	}
}

// situation returns what the policy decides by: the record, and what is known of the sources and the node.
func (a *Agent) situation() policy.Situation {
	failing := map[event.Kind]time.Time{}
	for kind := range a.outages {
		if a.lastLookFailed(kind) {
			failing[kind] = a.lastGood[kind]
		}
	}
	sit := policy.Situation{
		Now: a.now(), BootID: a.cfg.BootID, Known: a.known, Failing: failing, Past: a.cfg.Record.Entries(),
	}
	w := a.work
	if w == nil || !w.guards() || w.reported != a.generation { // No guard has reported for the present goal.
		return sit
	}
	// The report is about the events of the guard's goal, not about one that joins.
	sit.NodeFor = w.goal.Events
	// A late report of a drain, which came after the goal became a mere cordon, is no proof for a later drain.
	sit.Node = policy.Node{
		Cordoned: w.state.Cordoned, Drained: w.state.Drained && w.guardGoal.Evict,
		Looked: w.state.Looked, MayNotCordon: w.state.MayNotCordon, MayNotEvict: w.state.MayNotEvict,
		CordonStamp: w.state.CordonStamp,
	}
	return sit
}

// put records entries, without waiting for the disk. An error of the disk is logged when it comes.
func (a *Agent) put(entries ...state.Entry) {
	written := make(chan struct{})
	a.written = written
	a.cfg.Record.Put(func(err error) {
		if err != nil {
			a.post(func() { a.logUnwritten(err) })
		}
		close(written)
	}, entries...)
}

// entry returns the recorded entry of an event; the zero value if the record has none.
func (a *Agent) entry(id string) state.Entry {
	e, _ := policy.Find(a.cfg.Record.Entries(), id)
	return e
}

// post has the loop call f, after what was posted before. Any goroutine may call post, which does not block.
func (a *Agent) post(f func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.posted = append(a.posted, f)
	loop.Nudge(a.wake)
}

// callPosted calls the functions that were posted. Only the loop's goroutine calls it.
func (a *Agent) callPosted() {
	a.mu.Lock()
	posted := a.posted
	a.posted = nil
	a.mu.Unlock()
	for _, f := range posted {
		f()
	}
}

// now returns the time by the loop's clock (Config.Now), without a monotonic reading. All times of the record, the policy and the loop are read from
// this clock, so that they stay comparable if somebody sets the machine's clock.
func (a *Agent) now() time.Time { return a.cfg.Now().Round(0) }

// sink is the event.Sink of all sources. Sources call it from their goroutines; it notes the time, and posts the rest to the loop.
type sink struct{ *Agent }

// Snapshot implements event.Sink: the events replace those of the last snapshot.
func (a sink) Snapshot(s event.Snapshot) {
	d := delivery{s, a.now(), time.Now()}
	a.post(func() { a.lastGood[s.Kind], a.known[s.Kind] = d.at, a.credibleEvents(d) })
}

// Trouble implements event.Sink: a look for a kind has failed.
func (a sink) Trouble(kind event.Kind, err error) {
	at := a.now()
	a.post(func() { a.handleFailedLook(kind, err, at) })
}

// delivery is a snapshot, and when it came: by the loop's clock (at), and by the monotonic clock.
type delivery struct {
	event.Snapshot
	at, monotonic time.Time
}

// credibleEvents returns the events of a snapshot, with their times by the loop's clock. A time that is not credible becomes zero.
func (a *Agent) credibleEvents(d delivery) []event.Event {
	a.compareClocks(d)
	// Sources of these kinds give a deadline by the monotonic clock. The other kinds come from documents, dated by the source's clock.
	monotonic := d.Kind.Local() || d.Kind == event.ASGTermination || d.Kind == event.Manual
	events := slices.Clone(d.Events)
	for i, ev := range events {
		ev = ev.Credible()
		if monotonic {
			ev.Deadline = fromMonotonic(ev, d)
		} else if !d.Clock.IsZero() {
			ev.Noticed, ev.Deadline, ev.Until = a.fromDocument(ev.Noticed), a.fromDocument(ev.Deadline), a.fromDocument(ev.Until)
		}
		events[i] = ev
	}
	return events
}

// clockTolerance is by how much the difference of the clocks may be wrong before compareClocks corrects it: sources date their documents in whole
// seconds.
const clockTolerance = 2 * time.Second

// compareClocks updates a.ahead from a snapshot: by how much the loop's clock is ahead of the source's clock. A snapshot bounds that difference.
//
// A difference within the bounds, or outside by no more than clockTolerance, stays as it is, so that no deadline moves from one look to the next.
// Otherwise the lower bound replaces it, so that no deadline becomes later than it is.
func (a *Agent) compareClocks(d delivery) {
	if d.Clock.IsZero() { // The source does not say what its clock reads.
		return
	}
	most := d.at.Sub(d.Clock)
	least := most - d.Within
	if a.ahead < least-clockTolerance || a.ahead > most+clockTolerance {
		a.ahead = least
	}
}

// fromDocument converts a time in a document to the loop's clock. Zero stays zero.
func (a *Agent) fromDocument(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return t.Add(a.ahead)
}

// fromMonotonic returns the deadline, by the loop's clock, of an event whose source gives it by the monotonic clock: a shutdown or hibernation, a
// lifecycle hook, or "nth drain".
func fromMonotonic(ev event.Event, d delivery) time.Time {
	if ev.Deadline.IsZero() {
		return ev.Deadline
	}
	return d.at.Add(ev.Deadline.Sub(d.monotonic))
}

// outage is a time in which looks for a kind fail, perhaps not all of them.
type outage struct {
	since, last time.Time // when its first look and its last look failed
	err         string    // why a look failed
}

// handleFailedLook notes that a look for a kind failed at a time, and why. The first failure of an outage is logged.
func (a *Agent) handleFailedLook(kind event.Kind, err error, at time.Time) {
	o, inOutage := a.outages[kind]
	if !inOutage {
		o.since = at
		a.aboutKind(systemd.SourceTrouble, kind).Warnf("cannot check for %s events: %s; nth keeps the last known state and retries", kind, err)
	}
	if !kube.EqualIgnoringDigits(err.Error(), o.err) { // The status shows o.err, and must not change with each port and time.
		o.err = err.Error()
	}
	o.last = at
	a.outages[kind] = o
}

// lastLookFailed reports whether the last look for a kind failed: no snapshot has come since.
func (a *Agent) lastLookFailed(kind event.Kind) bool {
	o, inOutage := a.outages[kind]
	return inOutage && !a.lastGood[kind].After(o.last)
}

// recoveredAfter is how long after the last failed look an outage is over, if looks succeed again. A source that fails every few seconds has one
// outage, not many.
const recoveredAfter = 10 * time.Second

// endOutages ends and logs the outages that are over.
func (a *Agent) endOutages() {
	for kind, o := range a.outages {
		if !a.lastLookFailed(kind) && a.now().Sub(o.last) >= recoveredAfter {
			delete(a.outages, kind)
			a.aboutKind(systemd.SourceRecovered, kind).Infof("can check for %s events again", kind)
		}
	}
}

// aboutKind returns a logger for a message about a kind of events.
func (a *Agent) aboutKind(id string, kind event.Kind) *logrus.Entry {
	return a.logger(id, state.Entry{Event: event.Event{Kind: kind}})
}

// handleIdentity handles what the Identity reports: the node's name, or why there is no credential. It logs only what is new.
func (a *Agent) handleIdentity(node string, err error) {
	before := a.noCredential
	a.noCredential = err
	if err != nil {
		if before == nil || !kube.EqualIgnoringDigits(before.Error(), err.Error()) {
			a.logger(systemd.IdentityWaiting, state.Entry{}).Warnf("cannot drain the node until the kubelet's credential is confirmed: %s; retrying", err)
		}
		return
	}
	isNew := before != nil || a.node != node
	a.node = node
	if isNew && a.cfg.Service != nil { // Without a Service, the caller has named the node.
		a.logger(systemd.IdentityFound, state.Entry{}).Infof("found the kubelet's credential: this is node %s", node)
	}
}
