// Package agent is the loop: snapshot → decide → act → record → tell.
//
// Sources deliver what is announced; one goroutine folds it into the record, asks the policy for the one step to take,
// and has at most one step in flight. A step that is no longer the one to take is called back before the next begins,
// so that a nearer deadline overtakes and a withdrawn event stops. What is about to be done is on disk before it is
// done, and what came of it afterwards; a crash, an upgrade or a reboot therefore leads back to the same step.
//
// The package owns the interfaces it calls. Run ends when its context does, and leaves the node as it is.
package agent

import (
	"context"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/record"
)

// Source watches for events until ctx ends and tells the sink. It returns nil when its context has ended, and an error
// only if it can never work.
type Source interface {
	Run(ctx context.Context, sink event.Sink) error
}

// Node is the node that is acted upon. Its methods retry what may pass until ctx ends.
type Node interface {
	Cordon(ctx context.Context, claim drain.Claim) (drain.CordonResult, error)
	Drain(ctx context.Context, plan drain.Plan) (drain.Result, error)
	Uncordon(ctx context.Context, ready bool) (drain.UncordonResult, error)
	Claim(ctx context.Context) (claim drain.Claim, ok bool, err error)
}

// Record is the memory. Put returns when the entry is on disk; if it cannot be put there it is remembered until the
// process ends, and the error says so.
type Record interface {
	Entries() []record.Entry
	Put(record.Entry) error
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

// Config is what an Agent is made of. All fields are needed but for those that say otherwise.
type Config struct {
	Sources  []Source
	Node     Node
	Identity Identity
	Record   Record
	// Service is nil for an agent that is one of many in its process: it starts and stops without a word.
	Service Service
	Policy  policy.Settings
	// BootID is the kernel's ID of this boot.
	BootID string
	Log    *logrus.Entry
	// Now reads the wall clock; nil is the system's. It is called from one goroutine.
	Now func() time.Time
	// Beat is how often the service manager's watchdog is fed; 0 means that nobody watches.
	Beat time.Duration
	// Settled, if set, is called whenever an event is announced and nothing more is to be done for it now: the drain has
	// ended, or none was wanted. It may be called often and must not block.
	Settled func(event.Event)
	// Rested, if set, is called like Settled, and says when a step may be due for the event without further news; zero
	// means never.
	Rested func(ev event.Event, again time.Time)
	// DryRun changes the words, so that nobody believes that something was done. The Node must be one that does nothing.
	DryRun bool
	// Board, if set, is shown how things stand.
	Board Board
	// Listeners are told what happens.
	Listeners []Listener
}

// Agent is the daemon as a value: New wires it, Run runs it.
type Agent struct {
	cfg   Config
	clock *clock
	inbox *inbox
	tasks sync.WaitGroup

	known   map[event.Kind][]event.Event
	looked  map[event.Kind]time.Time // when each kind's last good look was taken in
	flight  *flight
	node    string
	waiting error // why there is no identity; nil once there is
	trouble map[event.Kind]trouble
	held    map[string]string // pods held in the drain under way, and by what
	total   int
	left    int
	began   time.Time
	shown   shown
	stuck   bool // a source is, and that was said
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
		cfg: cfg, clock: newClock(cfg.Now), inbox: newInbox(),
		known:   map[event.Kind][]event.Event{},
		looked:  map[event.Kind]time.Time{},
		trouble: map[event.Kind]trouble{},
		held:    map[string]string{},
	}
}

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
		a.started()
		a.cfg.Service.Ready()
	}
	a.tasks.Go(func() { a.adopt(inner) })

	err := a.loop(inner)
	if a.cfg.Service != nil {
		a.cfg.Service.Stopping()
	}
	a.land()
	if err == nil {
		a.showStopped()
		a.stopped()
	}
	return err
}

// tick keeps the status sentence's seconds, the watchdog and the comparison of clocks going.
const tick = time.Second

func (a *Agent) loop(ctx context.Context) error {
	ticks := time.NewTicker(a.interval())
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
			a.beat()
			a.compareClocks()
			a.recovered()
		case <-a.inbox.ready:
			a.compareClocks()
			if err := a.take(a.inbox.empty()); err != nil && ctx.Err() == nil {
				return err
			}
		}
	}
	return nil
}

func (a *Agent) interval() time.Duration {
	if a.cfg.Beat > 0 {
		return min(tick, a.cfg.Beat)
	}
	return tick
}

// take works off the inbox, all of it: also when a source has given up, what came of a step must be recorded.
func (a *Agent) take(news []any) error {
	var gaveUp error
	for _, n := range news {
		switch n := n.(type) {
		case event.Snapshot:
			a.looked[n.Kind] = a.now()
			a.known[n.Kind] = a.believed(n)
			a.healed(n.Kind)
		case lookFailed:
			a.troubled(n)
		case identity:
			a.identified(n)
		case drain.Progress:
			a.progressed(n)
		case landed:
			a.settle(n)
		case adopted:
			a.adoptClaim(n.claim)
		case order:
			a.cfg.Policy = n.rules
		case sourceEnded:
			if gaveUp == nil {
				gaveUp = n.err
			}
		}
	}
	return gaveUp
}

// advance brings the record up to date and sees to it that the step to take is the one in flight. It returns when to
// look again without news.
func (a *Agent) advance(ctx context.Context) time.Time {
	sit := a.situation()
	for _, e := range a.rules().Fold(sit) {
		a.put(e)
		if before, met := find(sit.Past, e.Event.ID); met && policy.SameNews(before, e) {
			continue
		}
		a.folded(e)
		a.happenedTo(e)
	}
	sit.Past = a.cfg.Record.Entries()
	step := a.rules().Decide(sit)
	switch {
	case a.flight == nil && step.Action != policy.Wait:
		a.takeOff(ctx, step)
	case a.flight != nil && !step.Same(a.flight.step):
		a.callBack(step)
	}
	a.settled(sit)
	a.rested(sit)
	return step.Revisit
}

// settled tells which announced events have got what they are due.
func (a *Agent) settled(sit policy.Situation) {
	if a.flight != nil || a.cfg.Settled == nil {
		return
	}
	for _, events := range a.known {
		for _, ev := range events {
			if a.rules().Settled(sit, ev) {
				a.cfg.Settled(ev)
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
	return policy.Situation{
		Now: a.now(), BootID: a.cfg.BootID, Known: a.known, Failing: failing, Past: a.cfg.Record.Entries(),
	}
}
