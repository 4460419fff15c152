package asg

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/role"
)

// Source watches for events until ctx ends and passes them to the sink. Stalled says what has stalled in it; nil if nothing has.
type Source interface {
	Run(ctx context.Context, sink event.Sink) error
	Stalled() error
}

// Options are those of a Keeper.
type Options struct {
	// AWS returns what clients are made from, as role.Metadata.Account does.
	AWS func(context.Context) (aws.Config, error)
	// Metadata reads a document of the instance metadata service, by its path below /latest/meta-data/. The error is
	// fs.ErrNotExist if there is none.
	Metadata role.Metadata
	// FirstSeen, if set, returns when an event was first seen, in this run or in one before, with a reading of the monotonic clock; zero
	// if never.
	FirstSeen func(eventID string) time.Time
	// Report is called with each finding. It must not block.
	Report func(HookReport)
	// Requested, if set, is called after each request about a hook that waits. It must not block.
	Requested func(Request, Answer)
	// DryRun asks, and changes nothing.
	DryRun bool
}

// Keeper is an event source that keeps lifecycle hooks. Make one with New.
//
// What it does follows from the termination that is announced, the settings, and the outcome of the drain so far. When one of them changes,
// its work is ended and begun again; only what was found out about the termination stays.
type Keeper struct {
	source Source
	opts   Options

	mu       sync.Mutex
	settings Settings
	current  *termination    // the one that is announced; nil if none is
	ctx      context.Context // Run's
	end      func()          // ends the work for the current termination, or the one before
	ended    chan struct{}   // closed when that work has ended
}

// termination is one announced end of the instance, and what was found out about it. Its work uses it, and the Keeper's mutex guards what
// others read.
type termination struct {
	event     event.Event
	firstSeen time.Time // with a monotonic reading
	reporter
	client          *HookClient // nil before the metadata service has answered
	instance, group string

	outcome event.Outcome
	held    map[string]*held // our hooks, by their names
	// lost is set if it is known that the machine is gone once the hooks are over, although the settings ask to keep it.
	lost bool
}

// held is what is known of one of our hooks.
type held struct {
	hook
	// since is when it did not wait yet, as far as is known, and beaten when the last heartbeat was accepted; zero if none was.
	since, beaten time.Time
	// limit is when Auto Scaling stops waiting for it, with a monotonic reading; zero before the first heartbeat.
	limit time.Time
	// over is set if it was completed, or does not wait any more.
	over bool
}

// heard notes the answer to a heartbeat, or to a completion that finds nothing. A hook ends one timeout after the last heartbeat that was
// accepted, and with its global timeout whatever is sent.
func (h *held) heard(answer error) {
	now, last, end := time.Now(), h.since, h.since.Add(h.global)
	if !h.beaten.IsZero() {
		last = h.beaten
	}
	switch until := last.Add(h.timeout); {
	case answer == nil:
		h.beaten, h.limit = now, end
	case errors.Is(answer, errNothingWaits): // It does not wait yet, or not any more.
		h.since, h.over = now, !h.beaten.IsZero()
	case until.Before(end) && until.After(now) && (unpermitted(answer) || now.Sub(last) > 2*h.interval()):
		h.limit = until // Heartbeats do not get through: two were missed, or none is allowed.
	case h.limit.Before(now): // It waits all the same: an earlier process has sent heartbeats.
		h.limit = end
	}
}

// New returns a Keeper for the terminations that the source announces. It asks nothing before there is one.
func New(source Source, opts Options, settings Settings) *Keeper {
	k := &Keeper{source: source, opts: opts, settings: settings, end: func() {}, ended: make(chan struct{})}
	close(k.ended)
	return k
}

// Run watches until ctx ends, and returns what the source returns once all requests have ended.
func (k *Keeper) Run(ctx context.Context, sink event.Sink) error {
	ctx, stop := context.WithCancel(ctx)
	k.mu.Lock()
	k.ctx = ctx
	k.mu.Unlock()
	err := k.source.Run(ctx, tap{sink, k})
	stop()
	k.mu.Lock()
	ended := k.ended
	k.mu.Unlock()
	<-ended
	return err
}

// Stalled says what has stalled in the source; nil if nothing has.
func (k *Keeper) Stalled() error { return k.source.Stalled() }

// Use replaces the settings. A termination under way is handled by the new ones.
func (k *Keeper) Use(s Settings) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !reflect.DeepEqual(s, k.settings) {
		k.settings = s
		k.begin()
	}
}

// Settled says what has come of an event: its hooks are completed when the node is drained or out of time, and held otherwise. They
// are also held while the rules ask for no drain, as settings and rules are not replaced at the same moment. It may be called often,
// and the last outcome counts until the completion has been sent.
func (k *Keeper) Settled(ev event.Event, outcome event.Outcome) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if t := k.current; t != nil && t.event.ID == ev.ID && t.outcome != outcome {
		t.outcome = outcome
		k.begin()
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

// see notes which termination is announced, and returns the events with their deadlines. There is one at most, as an instance has one
// target state.
func (k *Keeper) see(events []event.Event) []event.Event {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(events) == 0 {
		k.current = nil
		k.end()
		return events
	}
	if k.current == nil || k.current.event.ID != events[0].ID {
		k.current = k.newTermination(events[0])
		k.begin()
	}
	events = slices.Clone(events)
	events[0].Deadline = k.deadline()
	return events
}

func (k *Keeper) newTermination(ev event.Event) *termination {
	t := &termination{event: ev, firstSeen: time.Now(), held: map[string]*held{}}
	t.reporter = newReporter(func(r HookReport) {
		r.Event = ev
		k.opts.Report(r)
	})
	if k.opts.FirstSeen != nil {
		if seen := k.opts.FirstSeen(ev.ID); !seen.IsZero() && seen.Before(t.firstSeen) {
			t.firstSeen = seen
		}
	}
	return t
}

// deadline is the deadline of the announced event, with a reading of the monotonic clock: when Auto Scaling takes the machine, if that is
// before the end of the budget, or the end of the budget if the machine is lost then although the settings ask to keep it; zero otherwise.
// k.mu is held.
func (k *Keeper) deadline() time.Time {
	t := k.current
	end := t.firstSeen.Add(k.settings.Budget)
	nearest := end
	for _, h := range t.held {
		if !h.limit.IsZero() && h.limit.Before(nearest) {
			nearest = h.limit
		}
	}
	if k.settings.Complete && (nearest.Before(end) || k.settings.Abandon && t.lost) {
		return nearest
	}
	return time.Time{}
}

// begin ends the work for a termination, and begins it again as the settings and the outcome ask for now. k.mu is held.
func (k *Keeper) begin() {
	k.end()
	if k.current == nil || !k.settings.Complete {
		return
	}
	before, ended := k.ended, make(chan struct{})
	ctx, end := context.WithCancel(k.ctx)
	w := work{k, k.current, k.settings, k.current.outcome}
	k.end, k.ended = end, ended
	go func() {
		defer close(ended)
		<-before
		w.run(ctx)
	}()
}

// work is what is done for a termination while neither the settings nor the outcome change.
type work struct {
	keeper      *Keeper
	termination *termination
	settings    Settings
	outcome     event.Outcome
}

// note changes the termination while nobody asks for its deadline.
func (w work) note(change func()) {
	w.keeper.mu.Lock()
	defer w.keeper.mu.Unlock()
	change()
}

// longestLook is the longest time between two looks whether hooks wait: while the group takes the instance out of its load balancers,
// which can take minutes, nothing else happens.
const longestLook = 15 * time.Second

// run looks for the hooks that are ours until there are some, and serves them until they are over or ctx ends.
func (w work) run(ctx context.Context) {
	for looks := 1; ; looks++ {
		ours, err := w.look(ctx)
		if ctx.Err() != nil {
			return
		}
		if len(ours) > 0 {
			w.serveAll(ctx, ours)
			return
		}
		w.termination.failed("looking for lifecycle hooks", err)
		wait := role.Pause(looks, firstPause, longestLook)
		if err == nil || unpermitted(err) { // No hook of ours holds the machine, as far as nth may know.
			w.note(func() { w.termination.lost = true })
			wait = role.Spread(longestPause)
		}
		if !role.Sleep(ctx, wait) {
			return
		}
	}
}

// look finds the lifecycle actions of the instance that are ours: those of its group's hooks.
func (w work) look(ctx context.Context) (ours []Action, err error) {
	t := w.termination
	if t.client == nil {
		if t.client, t.instance, err = ownClient(ctx, w.keeper.opts, w.settings, t.reporter); err != nil {
			return nil, err
		}
	}
	if t.client.Use(w.settings); t.group == "" {
		if t.group, err = t.client.groupOf(ctx, t.instance); err != nil {
			return nil, err
		}
	}
	if t.group == "" {
		t.once(Found, "the instance is in no Auto Scaling group: there is no lifecycle hook to complete")
		return nil, nil
	}
	hooks, err := t.client.hooks(ctx, t.group)
	if err != nil {
		return nil, err
	}
	chosen, why := choose(t.group, hooks, t.client.rule(false))
	t.once(Found, "%s", why)
	known := map[string]*held{}
	for _, h := range chosen {
		if known[h.name] = t.held[h.name]; known[h.name] == nil {
			known[h.name] = &held{hook: h, since: t.firstSeen}
		}
		ours = append(ours, Action{Group: t.group, Hook: h.name, Instance: t.instance, Back: !ends(t.event.Code)})
	}
	w.note(func() { t.held = known })
	return ours, nil
}

// serveAll serves hooks, and finds out whether the group would keep the machine when time is over with pods left.
func (w work) serveAll(ctx context.Context, actions []Action) {
	var serving sync.WaitGroup
	defer serving.Wait()
	for _, a := range actions {
		serving.Go(func() { w.serve(ctx, a) })
	}
	if lost, err := w.termination.client.Loses(ctx, actions[0]); err == nil {
		w.note(func() { w.termination.lost = lost })
	}
}

// serve holds one hook, or completes it, as the outcome calls for. While Auto Scaling answers that it does not wait yet, that is tried again
// and again. It returns when the hook is over, is to be left alone, or ctx ends.
func (w work) serve(ctx context.Context, a Action) {
	completes := w.outcome == event.Drained || w.outcome == event.OutOfTime
	if w.outcome == event.LeftAlone {
		w.termination.once(Found, "the node is opted out: %s, is held for the budget of the termination, and then left to its own timeout", a)
		if w.settings.Budget > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithDeadline(ctx, w.termination.firstSeen.Add(w.settings.Budget))
			defer cancel()
		}
	}
	if w.keeper.opts.DryRun {
		if completes {
			w.termination.say(Completed, "dry run: not completing %s", a)
		}
		return
	}
	h := w.termination.held[a.Hook]
	heard := func(answer error) { w.note(func() { h.heard(answer) }) }
	for tries := 1; !h.over; tries++ {
		if !completes {
			w.termination.client.hold(ctx, a, heard)
		} else if err := w.termination.client.complete(ctx, a, w.outcome); errors.Is(err, errNothingWaits) {
			heard(err)
		} else {
			h.over = err == nil
			return
		}
		if h.over {
			w.termination.once(Completed, "%s does not wait any more", a)
		} else if !role.Sleep(ctx, role.Pause(tries, firstPause, longestLook)) {
			return
		}
	}
}

// ends reports whether a target state is the end of the instance.
func ends(target string) bool { return target == "Terminated" || target == "Warmed:Terminated" }
