// Package asg is the Auto Scaling group's lifecycle hook, as the instance sees it that is to be terminated: while
// the node is being drained, heartbeats hold the machine, and when that is done the hook is completed, so that the group
// need not wait for the hook's timeout.
//
// Which of a group's hooks are ours, and what each is completed with, is the same for a Keeper, which speaks for its own machine, and for a
// HookClient, which is told by messages of hooks that wait for any (messages.go).
//
// A Keeper stands before the source of events (pkg/imds) and lets everything through. When a termination is announced,
// it looks with the instance's own role for the group and its hooks (hooks.go, api.go), settles which of them are nth's
// to complete (hooks.go), and holds and completes those (messages.go). It gives an event a deadline where Auto Scaling
// will take the machine sooner than the drain is meant to end, and where it takes it then although people would have it kept
// (api.go). What to do about the event is decided elsewhere; Settled tells when that is done.
//
// What waits at a hook is a machine that is terminated, returns to a warm pool, or has its root volume replaced; all are held and
// completed alike, and called terminations here.
//
// Nothing is remembered on disk: Auto Scaling knows whether a hook still waits, and a restart asks it again. A hook is
// completed with CONTINUE. It is abandoned only where people ask for that and the group keeps the machine then (api.go), and it is
// left to its own timeout where they want the node left alone. Where a permission is missing, that is told once, and the drain goes on
// without.
package asg

import (
	"context"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/role"
)

// Source watches for events until ctx ends and tells the sink.
type Source interface {
	Run(ctx context.Context, sink event.Sink) error
}

// Settings are what people say about hooks.
type Settings struct {
	// Complete tells whether hooks are looked after at all. Without it Auto Scaling is never asked anything.
	Complete bool
	// Hooks names those to complete. If it is empty, that is the group's only one; see choose. LaunchHooks is the same for those that
	// wait until a new instance is in service, of which only messages tell.
	Hooks, LaunchHooks []string
	// Budget is how long the drain may take from when the event was first seen: a limit of Auto Scaling's that is farther
	// than that is not worth telling. A machine whose node people want left alone is held for so long; 0 is for as long as hooks wait.
	Budget time.Duration
	// Abandon says to abandon the hooks of a termination whose time is over with pods left, where the group keeps the machine then.
	Abandon bool
	// AfterDrain is what HookClient.Replace does; empty is Keep.
	AfterDrain AfterDrain
}

// Options say how Auto Scaling is spoken to.
type Options struct {
	// Region is the region's name, and Endpoint the base URL of the service in it. Empty is as in role.Options.
	Region, Endpoint string
	// Metadata reads a document of the instance metadata service, by its path below /latest/meta-data/. The error is
	// fs.ErrNotExist if there is none.
	Metadata role.Metadata
	// FirstSeen, if set, returns when an event was first seen, in this run or in one before; zero if never.
	FirstSeen func(eventID string) time.Time
	// Tell is called with what people should know, from one goroutine at a time. It must not block.
	Tell func(HookReport)
	// Requested, if set, is told of each request about a hook that waits, once it has ended. It must not block.
	Requested func(Request, Answer)
	// DryRun asks, and changes nothing.
	DryRun bool
}

// What says what kind of news it is.
type What string

// The kinds of news.
const (
	// Found: it is known which hooks there are, and which of them are looked after.
	Found What = "found"
	// Trouble: Auto Scaling does not answer, or not as it should. It is asked again.
	Trouble What = "trouble"
	// Refused: a permission is missing.
	Refused What = "refused"
	// Completed: a hook was completed, or turned out to be done with.
	Completed What = "completed"
)

// HookReport is one thing that people should know, in words. What a message told of has no Event.
type HookReport struct {
	What  What
	Event event.Event
	Text  string
}

// Keeper is an event source that keeps lifecycle hooks. Make one with New.
type Keeper struct {
	source Source
	opts   Options
	dial   dialer
	now    func() time.Time // reads the wall clock

	mu       sync.Mutex
	settings Settings
	current  *termination // the one that is announced; nil if none is, or nothing is to be done for it
	// former is the one that is begun anew, by other settings.
	former *termination
	ctx    context.Context
	tasks  sync.WaitGroup
}

// dialer makes a connection; nil means the network's own.
type dialer func(ctx context.Context, network, address string) (net.Conn, error)

// New returns a Keeper for the terminations that the source announces. It asks nothing before there is one.
func New(source Source, opts Options, settings Settings) *Keeper {
	return &Keeper{source: source, opts: opts, settings: settings, now: time.Now}
}

// Run watches until ctx ends, and returns what the source returns once all requests have ended.
func (k *Keeper) Run(ctx context.Context, sink event.Sink) error {
	ctx, stop := context.WithCancel(ctx)
	defer k.tasks.Wait()
	defer stop()
	k.mu.Lock()
	k.ctx = ctx
	k.mu.Unlock()
	return k.source.Run(ctx, tap{sink, k})
}

// Stuck says what has come to a stop in the source that should go on; nil if nothing has, or if it cannot tell.
func (k *Keeper) Stuck() error {
	if pulse, ok := k.source.(interface{ Stuck() error }); ok {
		return pulse.Stuck()
	}
	return nil
}

// Use replaces the settings. A termination under way is begun anew by them.
func (k *Keeper) Use(s Settings) {
	k.mu.Lock()
	defer k.mu.Unlock()
	before, t := k.settings, k.current
	k.settings = s
	switch {
	case !s.Complete:
		k.leave()
		k.former = nil // What has come of it is not what comes of it when hooks are looked after again.
	case t == nil:
	case !slices.Equal(s.Hooks, before.Hooks):
		k.leave()
		k.former = t
	default:
		t.use(s)
	}
}

// Settled says what has come of an event: its hooks are completed when it is drained or out of time, and held else. In particular they
// are held when the rules that are in force ask for no drain: settings and rules do not change in one moment. It may be called often,
// and the last word counts until the completion has been sent.
func (k *Keeper) Settled(ev event.Event, outcome event.Outcome) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.current != nil && k.current.event.ID == ev.ID {
		k.current.settle(outcome)
	}
}

// tap is the sink that the source speaks to.
type tap struct {
	event.Sink
	keeper *Keeper
}

// Snapshot implements event.Sink.
func (t tap) Snapshot(s event.Snapshot) {
	if s.Kind == event.ASGTermination {
		s.Events = t.keeper.see(s.Events)
	}
	t.Sink.Snapshot(s)
}

// see takes in which terminations are announced, and returns them with their deadlines. There is one at most: a machine
// has one target state.
func (k *Keeper) see(events []event.Event) []event.Event {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(events) == 0 {
		k.leave()
		k.former = nil
		return events
	}
	if !k.settings.Complete {
		return events
	}
	if k.current == nil || k.current.event.ID != events[0].ID {
		k.leave()
		k.begin(events[0])
	}
	events = slices.Clone(events)
	events[0].Deadline = k.current.deadline(k.settings.Budget, k.now())
	return events
}

// begin looks after the hooks of a termination from now on.
func (k *Keeper) begin(ev event.Event) {
	ctx, cancel := context.WithCancel(k.ctx)
	t := newTermination(ev, k.firstSeen(ev), cancel, k.settings)
	if k.former != nil && k.former.event.ID == ev.ID {
		t.inherit(k.former)
	}
	k.current, k.former = t, nil
	w := &watch{opts: k.opts, dial: k.dial, named: k.settings.Hooks, termination: t}
	k.tasks.Go(func() { w.run(ctx) })
}

// leave stops looking after the current termination.
func (k *Keeper) leave() {
	if k.current != nil {
		k.current.cancel()
		k.current = nil
	}
}

func (k *Keeper) firstSeen(ev event.Event) time.Time {
	now, wall := time.Now(), k.now().Round(0)
	if k.opts.FirstSeen == nil {
		return now
	}
	if seen := k.opts.FirstSeen(ev.ID); !seen.IsZero() && seen.Before(wall) {
		// With now's monotonic reading: whoever sets the clock does not move Auto Scaling's.
		return now.Add(seen.Sub(wall))
	}
	return now
}
