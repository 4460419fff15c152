// Package agent is the loop: snapshot → decide → act → record → tell.
//
// Sources deliver what is announced; one goroutine folds it into the record, asks the policy for the one goal for the node,
// and sees to it that the work under way pursues it: a guard, as long as the node is to be closed, which is adjusted when the
// goal changes, or the taking back of what nth has set. What is about to be done is in the record before it is done, and what
// came of it afterwards; a crash, an upgrade or a reboot therefore leads back to the same goal. What each event is due follows
// from the state of the node, whatever is under way.
//
// Nothing here waits: not for the node, the disk or a listener. The package owns the interfaces it calls. Run ends when its
// context does, and leaves the node as it is.
package agent

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
)

// Source watches for events until ctx ends and tells the sink. It returns nil when its context has ended, and an error
// only if it can never work.
type Source interface {
	Run(ctx context.Context, sink event.Sink) error
}

// Pulse is a Source that can tell whether it still looks.
type Pulse interface {
	// Stuck says what has come to a stop that should go on; nil if nothing has.
	Stuck() error
}

// Node is the node that is acted upon. Uncordon retries what may pass until ctx ends.
type Node interface {
	Guard(goal drain.Goal, tell func(drain.Progress)) drain.Guard
	Uncordon(ctx context.Context, booted func(bootID string) bool) (drain.UncordonResult, error)
	Claim(ctx context.Context) (claim drain.Claim, ours bool, err error)
}

// Record is the memory. Put takes entries in at once, and calls written, from any goroutine, when they are on disk, or with
// why they are not: then they are remembered until the process ends. Flush waits until all are.
type Record interface {
	Entries() []state.Entry
	Put(written func(error), entries ...state.Entry)
	Flush(ctx context.Context) error
}

// Service is the service manager.
type Service interface {
	Ready()
	Status(format string, args ...any)
	Stopping()
	Beat()
}

// Identity keeps the credential warm until ctx ends. It tells whenever it has learned how things stand: the node's name
// and nil, or what is wrong.
type Identity interface {
	KeepWarm(ctx context.Context, tell func(node string, err error))
}

// Listener is told everything that happens, in order, from one goroutine, after the journal. OnTransition must not block: what
// takes time is done elsewhere, so that nobody who listens can hold a drain up.
type Listener interface {
	OnTransition(state.Transition)
}

// Config is what an Agent is made of. All fields are needed but for those that say otherwise.
type Config struct {
	Sources  []Source
	Node     Node
	Identity Identity
	Record   Record
	// Service is nil for an agent that is one of many in its process: it starts and stops without a word.
	Service Service
	Policy  policy.Settings
	// Unwatched are the kinds that none of the sources tells of; nil if each does.
	Unwatched []event.Kind
	// BootID is the kernel's ID of this boot.
	BootID string
	// NodeName is the node's name where it is known from the start; else the Identity tells it.
	NodeName string
	// NodeSeen tells that there has been a Node in this boot, so that one that is missing was deleted.
	NodeSeen bool
	// ClaimRead tells that the Record has what is ours on the Node already, so that the Node's claim is not asked for.
	ClaimRead bool
	Log       *logrus.Entry
	// Now reads the wall clock; nil is the system's. It is called from one goroutine.
	Now func() time.Time
	// Beat is how often the service manager's watchdog is fed; 0 means that nobody watches.
	Beat time.Duration
	// Settled, if set, is called with what has come of each announced event; "" while something is still to be done for it. The last word
	// counts: people may change their mind. It may be called often and must not block.
	Settled func(event.Event, event.Outcome)
	// Rested, if set, is called for each announced event for which nothing is being done, and says when something may be
	// due for it without further news; zero means never.
	Rested func(ev event.Event, again time.Time)
	// DryRun changes the words, so that nobody believes that something was done. The Node must be one that does nothing.
	DryRun bool
	// Board, if set, is shown how things stand.
	Board StatusWriter
	// Listeners are told what happens.
	Listeners []Listener
}

// Agent is the daemon as a value: New wires it, Run runs it.
type Agent struct {
	cfg   Config
	clock *clock
	inbox *inbox
	tasks sync.WaitGroup
	// journal is the first who is told what happens, and pending the second.
	journal journal

	known   map[event.Kind][]event.Event
	looked  map[event.Kind]time.Time // when each kind's last good look was taken in
	trouble map[event.Kind]trouble
	stuck   bool // a source is, and that was said

	node     string
	waiting  error // why there is no identity; nil once there is
	nodeSeen bool  // there has been a Node since the start
	ready    bool  // and the kubelet of this boot has reported it Ready
	opened   bool  // what was ours has been taken back since the start
	// inherited tells that our cordon was there at the start, and set in an earlier boot, as far as is known: the Node tells.
	inherited bool

	work   *work
	number int // of goals
	// state is what the guard has told of the node under the present goal. It is stale if events have joined since.
	state drain.State
	stale bool
	// lookedFor are the events for which the Node has been looked at since they came, and drainedFor those for which it was drained then.
	lookedFor, drainedFor []string
	result                drain.Result // how far the guard had come when it was last asked
	total, left           int
	pending               pending // what is waited for
	// begun is when the work for an event began that is not done yet.
	begun map[string]time.Time
	// written is closed once what was put last is on disk.
	written <-chan struct{}
	// unsaved is when the record could not be written; zero if it could.
	unsaved time.Time
	// refused is when the record has refused an entry, by the event's ID.
	refused map[string]time.Time

	began time.Time
	shown shown
}

// trouble is an outage of a source.
type trouble struct {
	since time.Time
	err   string
	// over is since when looks are good again; zero while the last one failed.
	over time.Time
}

// New returns an agent that has not started yet.
func New(cfg Config) *Agent {
	return &Agent{
		cfg: cfg, clock: newClock(cfg.Now), inbox: newInbox(), node: cfg.NodeName, nodeSeen: cfg.NodeSeen, inherited: !cfg.ClaimRead,
		known:   map[event.Kind][]event.Event{},
		looked:  map[event.Kind]time.Time{},
		trouble: map[event.Kind]trouble{},
		pending: pending{held: map[string]string{}},
		journal: journal{log: cfg.Log, dryRun: cfg.DryRun, said: map[event.Kind][]string{}},
		begun:   map[string]time.Time{},
		refused: map[string]time.Time{},
	}
}

// SetPolicy replaces the rules: from now on everything is judged by them, also what is announced already and what is under
// way. It may be called from any goroutine, also before Run.
func (a *Agent) SetPolicy(rules policy.Settings) { a.inbox.put(newPolicy{rules: maps.Clone(rules)}) }

// lastWrite is how long the record is waited for when the agent stops.
const lastWrite = 2 * time.Second

// Run watches, decides and acts until ctx ends, and returns nil then. It returns an error if a source gives up.
func (a *Agent) Run(ctx context.Context) error {
	a.began = time.Now()
	inner, stop := context.WithCancel(ctx)
	defer a.tasks.Wait()
	defer stop()
	for _, s := range a.cfg.Sources {
		a.tasks.Go(func() { a.inbox.put(sourceEnded{err: s.Run(inner, a.inbox)}) })
	}
	a.tasks.Go(func() {
		a.cfg.Identity.KeepWarm(inner, func(node string, err error) { a.inbox.put(identity{node: node, err: err}) })
	})
	if a.cfg.Service != nil {
		a.note(state.Transition{Kind: state.Started})
		a.cfg.Service.Ready()
	}
	if !a.cfg.ClaimRead {
		a.tasks.Go(func() { a.readClaim(inner) })
	}

	err := a.loop(inner)
	if a.cfg.Service != nil {
		a.cfg.Service.Stopping()
	}
	a.stopWork()
	a.flush(ctx)
	if err == nil {
		a.showStopped()
		if a.cfg.Service != nil {
			a.note(state.Transition{Kind: state.Stopped})
		}
	}
	return err
}

// flush waits for the record, within bounds, and says if it could not be written.
func (a *Agent) flush(ctx context.Context) {
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastWrite)
	defer cancel()
	if err := a.cfg.Record.Flush(limited); err != nil {
		a.note(state.Transition{Kind: state.RecordUnwritten, Err: err})
	}
}

// tick keeps the status sentence's seconds, the watchdog and the comparison of clocks going.
const tick = time.Second

func (a *Agent) loop(ctx context.Context) error {
	ticks := time.NewTicker(min(tick, cmp.Or(a.cfg.Beat, tick)))
	defer ticks.Stop()
	revisit := time.NewTimer(0)
	defer revisit.Stop()
	for ctx.Err() == nil {
		if next := a.advance(ctx); !next.IsZero() {
			revisit.Reset(max(next.Sub(a.now()), 0))
		}
		a.status()
		select {
		case <-ctx.Done():
		case <-revisit.C:
			a.compareClocks()
		case <-ticks.C:
			a.feedWatchdog()
			a.compareClocks()
			a.reportRecovered()
			a.rewrite()
		case <-a.inbox.ready:
			a.compareClocks()
			if err := a.handleInbox(a.inbox.empty()); err != nil && ctx.Err() == nil {
				a.decide() // What ended at the same time is recorded.
				return err
			}
		}
	}
	return nil
}

// feedWatchdog feeds the service manager's watchdog, unless a source is stuck: a daemon that decides and no longer sees is as
// good as dead, and the service manager is to start it again.
func (a *Agent) feedWatchdog() {
	if a.cfg.Service == nil {
		return
	}
	for _, s := range a.cfg.Sources {
		pulse, ok := s.(Pulse)
		if !ok {
			continue
		}
		if err := pulse.Stuck(); err != nil {
			if !a.stuck {
				a.note(state.Transition{Kind: state.SourceStalled, Err: err})
			}
			a.stuck = true
			return
		}
	}
	a.stuck = false
	a.cfg.Service.Beat()
}

// handleInbox works off the inbox, all of it: also when a source has given up, what came of the work must be recorded.
func (a *Agent) handleInbox(news []any) error {
	var gaveUp error
	for _, n := range news {
		switch n := n.(type) {
		case event.Snapshot:
			a.looked[n.Kind] = a.now()
			a.known[n.Kind] = a.credibleEvents(n)
			a.noteHealthy(n.Kind)
		case lookFailed:
			a.handleTrouble(n)
		case identity:
			a.handleIdentity(n)
		case drain.Progress:
			a.handleProgress(n)
		case workResult:
			a.handleWorkResult(n)
		case adopted:
			a.adoptClaim(n)
		case newPolicy:
			a.cfg.Policy = n.rules
		case unwritten:
			a.unsaved = time.Now()
			if !n.again {
				a.note(state.Transition{Kind: state.RecordUnwritten, Err: n.err})
			}
		case sourceEnded:
			if gaveUp == nil {
				gaveUp = n.err
			}
		}
	}
	return gaveUp
}

// advance brings the record up to date and sees to it that the goal is pursued. It returns when to look again without news.
func (a *Agent) advance(ctx context.Context) time.Time {
	sit, goal := a.decide()
	a.pursueGoal(ctx, goal)
	a.settled(sit)
	return goal.Revisit
}

// decide brings the record up to date and names the goal.
func (a *Agent) decide() (policy.Situation, policy.Goal) {
	sit := a.fold(a.situation())
	goal := a.cfg.Policy.Decide(sit)
	// What a guard has told holds for the events of its own goal, also if others join or some leave at the same moment.
	if w := a.work; w != nil && w.guard != nil && !w.stopping && goal.Action == w.goal.Action {
		sit.Node = policy.Node{Closed: a.state.Closed && !a.stale, Left: a.state.Left, Ours: a.state.Ours, Drained: a.state.Drained}
		sit.NodeFor, sit.LookedFor, sit.DrainedFor, sit.Limited = w.goal.Events, a.lookedFor, a.drainedFor, a.state.Limited
		sit = a.fold(sit)
		goal = a.cfg.Policy.Decide(sit)
	}
	return sit, goal
}

// fold brings the record up to date, tells what has changed, and returns the situation then. Of what the record does not take nothing
// is told, and it is put again after a while.
func (a *Agent) fold(sit policy.Situation) policy.Situation {
	for {
		changed := slices.DeleteFunc(a.cfg.Policy.Fold(sit), a.refusedOfLate)
		if len(changed) == 0 {
			return sit
		}
		for i, e := range changed {
			before, _ := policy.Find(sit.Past, e.Event.ID)
			if e.Phase != before.Phase && (e.Phase == state.Drained || e.Phase == state.Incomplete) {
				changed[i].Result = a.resultNow()
			}
		}
		a.put(changed...)
		past := sit.Past
		sit.Past = a.cfg.Record.Entries()
		for _, e := range changed {
			before, met := policy.Find(past, e.Event.ID)
			if !a.taken(sit.Past, e) {
				continue
			}
			a.changed(before, met, e)
			if met && before.Acted() && e.Phase == state.Seen {
				a.tell(state.Transition{Kind: state.PutOff, Entry: e}) // Something else keeps the node as it is.
			}
		}
	}
}

// taken tells whether the record has taken an entry, and remembers it if not.
func (a *Agent) taken(past []state.Entry, e state.Entry) bool {
	there, met := policy.Find(past, e.Event.ID)
	if met && policy.Same(there, e) {
		delete(a.refused, e.Event.ID)
		return true
	}
	a.refused[e.Event.ID] = time.Now()
	return false
}

// refusedOfLate tells whether the record has refused what it was to say of an event, so that it would refuse it again.
func (a *Agent) refusedOfLate(e state.Entry) bool {
	at, refused := a.refused[e.Event.ID]
	return refused && time.Since(at) < rewriteAfter
}

// settled tells what has come of the announced events, and for which nothing is being done. What the record does not know of an event
// that is announced is no reason to take it for settled.
func (a *Agent) settled(sit policy.Situation) {
	for _, events := range a.known {
		for _, ev := range events {
			if _, refused := a.refused[ev.ID]; refused {
				continue
			}
			if a.cfg.Settled != nil {
				a.cfg.Settled(ev, a.cfg.Policy.Settled(sit, ev))
			}
			if a.cfg.Rested == nil {
				continue
			}
			if again, busy := a.cfg.Policy.Again(sit, ev); !busy {
				a.cfg.Rested(ev, again)
			}
		}
	}
}

func (a *Agent) situation() policy.Situation {
	failing := map[event.Kind]time.Time{}
	for kind, t := range a.trouble {
		if t.over.IsZero() {
			failing[kind] = a.looked[kind]
		}
	}
	unwatched := map[event.Kind]bool{}
	for _, kind := range a.cfg.Unwatched {
		unwatched[kind] = true
	}
	return policy.Situation{
		Now: a.now(), BootID: a.cfg.BootID, Up: time.Since(a.began), Known: a.known, Failing: failing, Unwatched: unwatched, Past: a.cfg.Record.Entries(),
		Before: a.inherited && !a.opened, Ready: a.ready,
	}
}

// put records entries. The loop does not wait for the disk.
func (a *Agent) put(entries ...state.Entry) {
	written := make(chan struct{})
	a.written = written
	again := !slices.ContainsFunc(entries, func(e state.Entry) bool { return a.refused[e.Event.ID].IsZero() })
	a.cfg.Record.Put(func(err error) {
		if err != nil {
			a.inbox.put(unwritten{err: err, again: again})
		}
		close(written)
	}, entries...)
}

// rewriteAfter is how long after the record could not be written it is tried again, if nothing is to be recorded before.
const rewriteAfter = 10 * time.Second

func (a *Agent) rewrite() {
	if !a.unsaved.IsZero() && time.Since(a.unsaved) >= rewriteAfter {
		a.unsaved = time.Time{}
		a.put()
	}
}

// entry is the record's entry of an event.
func (a *Agent) entry(ev event.Event) state.Entry {
	if e, met := policy.Find(a.cfg.Record.Entries(), ev.ID); met {
		return e
	}
	return state.Entry{Event: ev, FirstSeen: a.now(), BootID: a.cfg.BootID}
}

// inbox gathers news from all goroutines for the one that decides. Putting never blocks.
type inbox struct {
	mu    sync.Mutex
	news  []any
	ready chan struct{}
}

// The news, besides event.Snapshot and drain.Progress.
type (
	lookFailed struct {
		kind event.Kind
		err  error
	}
	identity struct {
		node string
		err  error
	}
	adopted struct {
		claim drain.Claim
		ours  bool
	}
	newPolicy struct{ rules policy.Settings }
	unwritten struct {
		err   error
		again bool // as was said before
	}
	sourceEnded struct{ err error }
)

func newInbox() *inbox { return &inbox{ready: make(chan struct{}, 1)} }

func (i *inbox) put(n any) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.news = append(i.news, n)
	select {
	case i.ready <- struct{}{}:
	default:
	}
}

func (i *inbox) empty() []any {
	i.mu.Lock()
	defer i.mu.Unlock()
	news := i.news
	i.news = nil
	return news
}

// Snapshot implements event.Sink.
func (i *inbox) Snapshot(s event.Snapshot) { i.put(s) }

// Trouble implements event.Sink.
func (i *inbox) Trouble(k event.Kind, err error) { i.put(lookFailed{kind: k, err: err}) }
