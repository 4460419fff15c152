// Package asg handles the lifecycle hooks of an Auto Scaling group: while the node is being drained, heartbeats hold the
// instance, and when that is done the hook is completed, so that the group need not wait for the hook's timeout.
//
// There are two clients. A Keeper handles the hooks of its own instance, and a HookClient those of any instance, as messages tell
// of them (messages.go). Both choose the hooks that are ours, and the result that each is completed with, in the same way.
//
// A Keeper stands before the source of events (pkg/imds) and passes everything on. When a termination is announced,
// it asks with the instance's own role for the group and its hooks (api.go), chooses those that are nth's
// to complete (hooks.go), and holds and completes them (messages.go). It gives the event a deadline where Auto Scaling
// takes the machine before the drain's budget is used up, or at the end of the budget although people want it kept
// (api.go). What to do about the event is decided elsewhere; Settled tells when that is done.
//
// Hooks wait for an instance that is terminated, that returns to a warm pool, or whose root volume is replaced. All three are held
// and completed alike, and are called terminations here.
//
// Nothing is remembered on disk: Auto Scaling knows whether a hook still waits, and is asked again after a restart. A hook is
// completed with CONTINUE. It is abandoned only where people ask for that and the group keeps the machine then (api.go), and it is
// left to its own timeout where they want the node left alone. A missing permission is reported once, and the drain goes on
// without it.
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
	// Complete enables all of this. Without it Auto Scaling is never asked anything.
	Complete bool
	// Hooks names the hooks to complete. If it is empty, that is the group's only one; see choose. LaunchHooks is the same for hooks
	// that wait until a new instance is in service, of which only messages tell.
	Hooks, LaunchHooks []string
	// Budget is how long the drain may take from when the event was first seen: a later limit of Auto Scaling's gives the event no
	// deadline. A machine whose node people want left alone is held for as long; with 0, for as long as the hooks wait.
	Budget time.Duration
	// Abandon says to abandon the hooks of a termination whose time is over with pods left, where the group keeps the machine then.
	Abandon bool
	// AfterDrain is what HookClient.Replace does; empty is Keep.
	AfterDrain AfterDrain
}

// Options are those of a Keeper.
type Options struct {
	// Region is the region's name, and Endpoint the base URL of the service in it. Empty is as in role.Options.
	Region, Endpoint string
	// Metadata reads a document of the instance metadata service, by its path below /latest/meta-data/. The error is
	// fs.ErrNotExist if there is none.
	Metadata role.Metadata
	// FirstSeen, if set, returns when an event was first seen, in this run or in one before, with a reading of the monotonic clock; zero
	// if never.
	FirstSeen func(eventID string) time.Time
	// Tell is called with what people should know. It must not block.
	Tell func(HookReport)
	// Requested, if set, is told of each request about a hook that waits, once it has ended. It must not block.
	Requested func(Request, Answer)
	// DryRun asks, and changes nothing.
	DryRun bool
}

// What is the kind of a HookReport.
type What string

// The kinds of reports.
const (
	// Found: it is known which hooks there are, and which of them are looked after.
	Found What = "found"
	// Trouble: Auto Scaling does not answer, or not as it should. It is asked again.
	Trouble What = "trouble"
	// Refused: a permission is missing.
	Refused What = "refused"
	// Completed: a hook was completed, or turned out not to wait any more.
	Completed What = "completed"
)

// HookReport is one thing that people should know, in words. A HookClient's reports have no Event.
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

	mu       sync.Mutex
	settings Settings
	current  *termination // the one that is announced; nil if none is, or nothing is to be done for it
	ctx      context.Context
	watches  sync.WaitGroup
}

// dialer makes a connection; nil means the network's own.
type dialer func(ctx context.Context, network, address string) (net.Conn, error)

// New returns a Keeper for the terminations that the source announces. It asks nothing before there is one.
func New(source Source, opts Options, settings Settings) *Keeper {
	return &Keeper{source: source, opts: opts, settings: settings}
}

// Run watches until ctx ends, and returns what the source returns once all requests have ended.
func (k *Keeper) Run(ctx context.Context, sink event.Sink) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	k.mu.Lock()
	k.ctx = ctx
	k.mu.Unlock()
	err := k.source.Run(ctx, tap{sink, k})
	k.mu.Lock()
	k.leave()
	k.mu.Unlock()
	k.watches.Wait()
	return err
}

// Stuck says what has come to a stop in the source that should go on; nil if nothing has, or if it cannot tell.
func (k *Keeper) Stuck() error {
	if pulse, ok := k.source.(interface{ Stuck() error }); ok {
		return pulse.Stuck()
	}
	return nil
}

// Use replaces the settings. The hooks of a termination under way are chosen anew if others are named.
func (k *Keeper) Use(s Settings) {
	k.mu.Lock()
	defer k.mu.Unlock()
	before, t := k.settings, k.current
	k.settings = s
	switch {
	case !s.Complete:
		k.leave()
	case t == nil:
	case slices.Equal(s.Hooks, before.Hooks):
		t.use(s)
	default:
		k.leave()
		k.begin(t.again())
	}
}

// Settled says what has come of an event: its hooks are completed when the node is drained or out of time, and held otherwise. They
// are also held while the rules ask for no drain, as settings and rules are not replaced at the same moment. It may be called often,
// and the last outcome counts until the completion has been sent.
func (k *Keeper) Settled(ev event.Event, outcome event.Outcome) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.current != nil && k.current.event.ID == ev.ID {
		k.current.settle(outcome)
	}
}

// tap is the sink that the source writes to.
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

// see begins and ends the watch for the termination that is announced, and returns the events with their deadlines. There is one
// at most, as an instance has one target state.
func (k *Keeper) see(events []event.Event) []event.Event {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(events) == 0 {
		k.leave()
		return events
	}
	if !k.settings.Complete {
		return events
	}
	if k.current == nil || k.current.event.ID != events[0].ID {
		k.leave()
		k.begin(&termination{event: events[0], firstSeen: k.firstSeen(events[0])})
	}
	events = slices.Clone(events)
	events[0].Deadline = k.current.deadline(k.settings.Budget)
	return events
}

// begin starts the watch of a termination.
func (k *Keeper) begin(t *termination) {
	ctx, cancel := context.WithCancel(k.ctx)
	t.cancel, t.settings, t.changed = cancel, k.settings, make(chan struct{}, 1)
	k.current = t
	w := &watch{
		opts: k.opts, dial: k.dial, named: k.settings.Hooks, termination: t, since: t.firstSeen,
		reporter: reporter{report: k.opts.Tell, about: t.event},
	}
	k.watches.Go(func() { w.run(ctx) })
}

// leave ends the watch of the current termination.
func (k *Keeper) leave() {
	if k.current != nil {
		k.current.cancel()
		k.current = nil
	}
}

func (k *Keeper) firstSeen(ev event.Event) time.Time {
	now := time.Now()
	if k.opts.FirstSeen == nil {
		return now
	}
	if seen := k.opts.FirstSeen(ev.ID); !seen.IsZero() && seen.Before(now) {
		return seen
	}
	return now
}
