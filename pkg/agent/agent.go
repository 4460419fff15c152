// Package agent is the loop: snapshot → decide → record → act → report.
//
// Sources deliver what is announced. One goroutine folds it into the record, asks the policy for the one goal for the node, and
// makes the work in progress pursue it: either a guard, which stands as long as the node is to be closed and is adjusted when
// the goal changes, or an uncordon, which takes back what nth has set. Work is recorded before it begins, and its result
// afterwards, so that after a crash, an upgrade or a reboot the goal is the same. The outcome of each event follows from the
// state of the node, whatever work is in progress.
//
// The loop waits for nothing: not for the node, the disk or a listener. The package owns the interfaces it calls. Run ends when
// its context does, and leaves the node as it is.
//
// A newcomer starts at Agent.loop. What comes from sources is in look.go, what is done to the node in work.go, and what is reported in report.go.
package agent

import (
	"context"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/event"
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
	Claim(ctx context.Context) (claim drain.Claim, ours bool, err error)
}

// Record has the entries of all events. Put adds entries at once. It calls written, from any goroutine, when they are on disk,
// or with the error if they are not: then they last until the process ends. Flush waits until everything is written.
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

// Identity keeps the credential valid until ctx ends. It reports each time what it has learned: the node's name, or an error.
type Identity interface {
	KeepWarm(ctx context.Context, report func(node string, err error))
}

// Listener gets the transitions of events, steps and pods, in order, from one goroutine, after the journal. OnTransition must not block, so that no listener
// can hold up a drain.
type Listener interface {
	OnTransition(state.Transition)
}

// Config has the parts and settings of an Agent. All fields are needed unless they say otherwise.
type Config struct {
	Sources  []Source
	Node     Node
	Identity Identity
	Record   Record
	// Service is nil for one of several agents in a process, which does not log its start and stop.
	Service Service
	Policy  policy.Settings
	// Unwatched are the kinds that no source looks for: nothing of them counts as announced. Nil if there are none.
	Unwatched []event.Kind
	// BootID is the kernel's ID of this boot.
	BootID string
	// NodeName is the node's name, if it is known from the start; otherwise Identity reports it.
	NodeName string
	// Remote: the node is another machine, whose Node has been read. So a missing one was deleted, the Record has its claim, and BootID may be
	// old by the time of an uncordon.
	Remote bool
	Log    *logrus.Entry
	// Now reads the clock by which the times in the Record are, from any goroutine: see record.Store.Now. Nil means time.Now.
	Now func() time.Time
	// Settled, if set, is called with the outcome of each announced event, "" while something is still to be done for it. The
	// latest call counts, as operators may change their minds. It is called often and must not block.
	Settled func(event.Event, event.Outcome)
	// Rested, if set, is called for each announced event for which nothing is being done. again is when something may be due for
	// it without further news; zero if never. It is called often and must not block.
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
	cfg   Config
	tasks sync.WaitGroup
	began time.Time // when Run began, by the loop's clock

	known   map[event.Kind][]event.Event // the last snapshot of each kind
	looked  map[event.Kind]time.Time     // when that came
	trouble map[event.Kind]trouble
	stalled bool          // a source is, and this was logged
	ahead   time.Duration // by how much the loop's clock is ahead of the one that documents are dated by

	node    string // the node's name; empty until it is known
	waiting error  // why there is no identity; nil if there is one

	work        *work        // nil if nothing is being done
	generation  int          // the last generation of a guard's goal
	result      drain.Result // what the guard had done when an event's drain last ended
	total, left int          // pods to evict, as the guard last reported

	// written is closed when the last Put is on disk or has failed.
	written <-chan struct{}

	mu     sync.Mutex
	posted []func()      // what the loop has to call; mu guards it
	news   chan struct{} // has an element if something was posted
}

// New returns an agent that has not started yet.
func New(cfg Config) *Agent {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	known := map[event.Kind][]event.Event{}
	for _, kind := range cfg.Unwatched {
		known[kind] = nil
	}
	return &Agent{
		cfg: cfg, news: make(chan struct{}, 1), node: cfg.NodeName, known: known,
		looked: map[event.Kind]time.Time{}, trouble: map[event.Kind]trouble{},
	}
}

// flushTimeout is how long the agent waits for the record when it stops: a busy disk may take some seconds, and the next process relies on it.
const flushTimeout = 10 * time.Second

// Run watches, decides and acts until ctx ends.
func (a *Agent) Run(ctx context.Context) {
	a.began = a.now()
	defer a.tasks.Wait()
	for _, s := range a.cfg.Sources {
		a.tasks.Go(func() { s.Run(ctx, sink{a}) })
	}
	a.tasks.Go(func() {
		a.cfg.Identity.KeepWarm(ctx, func(node string, err error) { a.post(func() { a.handleIdentity(node, err) }) })
	})
	if !a.cfg.Remote {
		a.tasks.Go(func() { a.readClaim(ctx) })
	}
	if a.cfg.Service != nil {
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
	a.show(a.now())
	if a.cfg.Service != nil {
		a.logger(systemd.Stopping, state.Entry{}).Info("stopped; the node is left as it is")
	}
}

// flush waits until the record is written, for flushTimeout at most.
func (a *Agent) flush(ctx context.Context) {
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
	defer cancel()
	if err := a.cfg.Record.Flush(limited); err != nil {
		a.logUnwritten(err)
	}
}

// logUnwritten logs that the record could not be written.
func (a *Agent) logUnwritten(err error) {
	a.logger(systemd.StateTrouble, state.Entry{}).WithError(err).Error("cannot write the state record; a restart now may forget what was done")
}

// tick is how often the loop decides without news, updates the status, feeds the watchdog and sees whether the guard's deadlines are still right.
const tick = time.Second

// loop decides after all news and at each tick, until ctx ends.
func (a *Agent) loop(ctx context.Context) {
	ticks := time.NewTicker(tick)
	defer ticks.Stop()
	a.show(time.Time{})
	for ctx.Err() == nil {
		sit, goal := a.decide()
		a.pursueGoal(ctx, goal)
		a.reportOutcomes(sit)
		select {
		case <-ctx.Done():
		case <-ticks.C:
			a.feedWatchdog()
			a.endOutages()
			a.show(time.Time{})
		case <-a.news:
			a.handleNews()
		}
	}
}

// feedWatchdog feeds the service manager's watchdog, unless a source has stalled: nth would miss events then, so the service
// manager has to restart it.
func (a *Agent) feedWatchdog() {
	if a.cfg.Service == nil {
		return
	}
	for _, s := range a.cfg.Sources {
		pulse, ok := s.(HealthChecker)
		if !ok {
			continue
		}
		if err := pulse.Stalled(); err != nil {
			if !a.stalled {
				a.logger(systemd.SourceTrouble, state.Entry{}).WithError(err).
					Error("reading events from EC2 or logind has stalled; waiting for the service manager to restart nth")
			}
			a.stalled = true
			return
		}
	}
	a.stalled = false
	a.cfg.Service.Beat()
}

// decide brings the record up to date, and returns the goal and what it was derived from.
func (a *Agent) decide() (policy.Situation, policy.Goal) {
	sit := a.situation()
	for changed := a.cfg.Policy.Fold(sit); len(changed) > 0; changed = a.cfg.Policy.Fold(sit) {
		past := sit.Past
		for i, e := range changed {
			before, _ := policy.Find(past, e.Event.ID)
			if e.Phase != before.Phase && (e.Phase == state.Drained || e.Phase == state.Incomplete) {
				changed[i].Result = a.resultNow()
			}
		}
		a.put(changed...)
		sit.Past = a.cfg.Record.Entries()
		for _, e := range changed {
			before, met := policy.Find(past, e.Event.ID)
			a.emitChange(before, met, e)
		}
	}
	return sit, a.cfg.Policy.Decide(sit)
}

// reportOutcomes calls Config.Settled and Config.Rested for all announced events.
func (a *Agent) reportOutcomes(sit policy.Situation) {
	for _, events := range a.known {
		for _, ev := range events {
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

// situation collects what the policy decides by: the record, and what is known of the sources and the node.
func (a *Agent) situation() policy.Situation {
	failing := map[event.Kind]time.Time{}
	for kind := range a.trouble {
		if a.failing(kind) {
			failing[kind] = a.looked[kind]
		}
	}
	sit := policy.Situation{
		Now: a.now(), BootID: a.cfg.BootID, Known: a.known, Failing: failing, Past: a.cfg.Record.Entries(),
	}
	// What the guard has reported holds for the events of its goal, and for none that joins.
	if w := a.work; w != nil && w.task != nil && !w.stopping && w.reported == a.generation {
		sit.NodeFor = w.goal.Events
		sit.Node = policy.Node{
			Closed: w.state.Closed, Drained: w.state.Drained && w.guardGoal.Evict, Looked: w.state.Looked, NoCordon: w.state.Left, NoDrain: w.state.Limited,
			CordonStamp: w.state.CordonStamp,
		}
	}
	return sit
}

// put records entries, without waiting for the disk. A failure is logged.
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

// entry returns the recorded entry of an event.
func (a *Agent) entry(id string) state.Entry {
	e, _ := policy.Find(a.cfg.Record.Entries(), id)
	return e
}

// post has the loop call f, after what was posted before. It may be called from any goroutine, and does not block.
func (a *Agent) post(f func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.posted = append(a.posted, f)
	loop.Nudge(a.news)
}

// handleNews calls what was posted.
func (a *Agent) handleNews() {
	a.mu.Lock()
	posted := a.posted
	a.posted = nil
	a.mu.Unlock()
	for _, f := range posted {
		f()
	}
}
