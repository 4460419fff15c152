package asg

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/loop"
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

// termination is one announced end of the instance, and what was found out about it. The goroutine that works on it changes it: what the
// Keeper reads, too, only by work.update.
type termination struct {
	event     event.Event
	firstSeen time.Time // with a monotonic reading
	reporter
	client          *HookClient // nil before the metadata service has answered
	instance, group string
	stage           stage

	outcome event.Outcome
	held    map[string]*held // the chosen hooks, by their names
	// lost is set if it is known that the machine is gone once the hooks are over, although the settings ask to keep it.
	lost bool
}

// held is what is known of one chosen hook.
type held struct {
	hook
	// since is the latest time at which the instance is known not to have waited yet. beaten is when the last heartbeat was accepted; zero if
	// none was.
	since, beaten time.Time
	// limit is when Auto Scaling stops waiting for the hook, with a monotonic reading; zero before the first heartbeat.
	limit time.Time
	// over is set if the hook was completed, or does not wait any more.
	over bool
}

// heard takes in Auto Scaling's answer to a heartbeat, or a completion's errNothingWaits, and sets limit and over by it. Auto Scaling stops
// waiting one timeout after the last heartbeat that it accepted. After the global timeout it stops whatever is sent.
func (h *held) heard(answer error) {
	now, last, end := time.Now(), h.since, h.since.Add(h.global)
	if !h.beaten.IsZero() {
		last = h.beaten
	}
	switch until := last.Add(h.timeout); {
	case answer == nil:
		h.beaten, h.limit = now, end
	case errors.Is(answer, errNothingWaits):
		h.over = true
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

// Run runs the source until ctx ends, passes its events on to sink, and works on terminations. It returns the source's error once all
// requests have ended.
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

// Settled takes the outcome so far of the drain for an event; the agent calls it. If the node is drained, or the time is over, the Keeper
// completes the event's hooks. Otherwise it holds them, also while the rules ask for no drain: a reload replaces settings and rules one after
// the other. The last outcome counts until the completion was sent.
func (k *Keeper) Settled(ev event.Event, outcome event.Outcome) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if t := k.current; t != nil && t.event.ID == ev.ID && t.outcome != outcome {
		t.outcome = outcome
		k.begin()
	}
}

// tap is the sink that the source writes to. It shows terminations to the Keeper, and passes everything on.
type tap struct {
	event.Sink
	keeper *Keeper
}

// Snapshot implements event.Sink.
func (t tap) Snapshot(s event.Snapshot) {
	if s.Kind == event.ASGTermination {
		s.Events = t.keeper.announced(s.Events)
	}
	t.Sink.Snapshot(s)
}

// announced takes in the terminations that the source announces now, begins or ends the work on them, and returns them with their
// deadlines. There is one event at most, as an instance has one target state.
func (k *Keeper) announced(events []event.Event) []event.Event {
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
	events = slices.Clone(events) // The source keeps its own.
	events[0].Deadline = k.deadline()
	return events
}

// newTermination returns a termination of which only the event is known. Its reports name the event.
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

// deadline returns the deadline of the announced event, with a reading of the monotonic clock. There are three cases:
//   - Auto Scaling takes the machine before the budget ends: the moment at which it does.
//   - The settings ask to keep the machine at the end of the budget, and the group takes it all the same: that end.
//   - Otherwise: zero.
//
// The caller holds k.mu.
func (k *Keeper) deadline() time.Time {
	t := k.current
	end := t.firstSeen.Add(k.settings.Budget)
	nearest := end
	for _, h := range t.held {
		if !h.over && !h.limit.IsZero() && h.limit.Before(nearest) {
			nearest = h.limit
		}
	}
	if k.settings.Complete && (nearest.Before(end) || k.settings.Abandon && t.lost) {
		return nearest
	}
	return time.Time{}
}

// begin ends the work for a termination, and begins it again by the present settings and outcome. The caller holds k.mu.
func (k *Keeper) begin() {
	k.end()
	if k.current == nil || !k.settings.Complete {
		return // Nothing is announced, or the settings leave hooks alone.
	}
	before, ended := k.ended, make(chan struct{})
	ctx, end := context.WithCancel(k.ctx)
	w := work{k, k.current, k.settings, k.current.outcome}
	k.end, k.ended = end, ended
	go func() {
		defer close(ended)
		<-before // Two works never use one termination.
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

// update changes the termination under the Keeper's mutex, as the Keeper reads it for the event's deadline.
func (w work) update(change func()) {
	w.keeper.mu.Lock()
	defer w.keeper.mu.Unlock()
	change()
}

// longestLook is the longest pause before nth looks again whether the instance waits for its hooks. It may not wait yet for minutes, while
// the group takes it out of its load balancers.
const longestLook = 15 * time.Second

// run finds the chosen hooks, and serves them when the instance waits for them. It returns when they are over or ctx ends.
func (w work) run(ctx context.Context) {
	t := w.termination
	actions := w.find(ctx)
	if len(actions) == 0 {
		return // ctx has ended.
	}
	var serving sync.WaitGroup
	defer serving.Wait()
	serving.Go(func() {
		if lost, err := t.client.Loses(ctx, actions[0]); err == nil {
			w.update(func() { t.lost = lost })
		}
	})
	for looks := 1; t.stage == approaching; looks++ {
		if !loop.Await(ctx, nil, role.Pause(looks, firstPause, longestLook)) {
			return
		}
		if err := w.lookAtInstance(ctx); ctx.Err() == nil {
			t.failed("looking whether the instance waits for its lifecycle hooks", err)
		}
	}
	for _, a := range actions {
		serving.Go(func() { w.serve(ctx, a) })
	}
}

// find looks for chosen hooks until it has found some, and returns an action for each. It returns none if ctx has ended.
func (w work) find(ctx context.Context) []Action {
	for looks := 1; ; looks++ {
		actions, err := w.look(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if len(actions) > 0 {
			return actions
		}
		w.termination.failed("looking for lifecycle hooks", err)
		wait := role.Pause(looks, firstPause, longestLook)
		if err == nil || unpermitted(err) { // No chosen hook holds the machine, as far as nth may know.
			w.update(func() { w.termination.lost = true })
			wait = role.Spread(longestPause)
		}
		if !loop.Await(ctx, nil, wait) {
			return nil
		}
	}
}

// look finds out the instance's group and the group's hooks, and returns an action for each chosen hook. It returns none without an error if
// the instance is in no group, or no hook is chosen.
func (w work) look(ctx context.Context) (actions []Action, err error) {
	t := w.termination
	if t.client == nil {
		if t.client, t.instance, err = ownClient(ctx, w.keeper.opts, w.settings, t.reporter); err != nil {
			return nil, err
		}
	}
	if t.client.Use(w.settings); t.group == "" || t.stage == approaching {
		if err = w.lookAtInstance(ctx); err != nil {
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
	chosen, why := choose(t.group, hooks, t.client.rule(terminating))
	t.once(Found, "%s", why)
	known := map[string]*held{}
	for _, h := range chosen {
		if known[h.name] = t.held[h.name]; known[h.name] == nil {
			known[h.name] = &held{hook: h, since: t.firstSeen}
		}
		actions = append(actions, Action{Group: t.group, Hook: h.name, Instance: t.instance, Back: !ends(t.event.Code)})
	}
	w.update(func() { t.held = known })
	return actions, nil
}

// lookAtInstance finds out the instance's group, and whether the instance waits for hooks.
func (w work) lookAtInstance(ctx context.Context) error {
	t := w.termination
	group, state, err := t.client.groupOf(ctx, t.instance)
	if err != nil {
		return err
	}
	w.update(func() {
		t.group, t.stage = group, stageOf(t.event.Code, state)
		for _, h := range t.held {
			if t.stage == approaching {
				h.since = time.Now()
			}
		}
	})
	return nil
}

// serve completes one hook if the outcome is final, and otherwise holds it. It returns when the hook is over, is to be left alone, or ctx
// ends.
func (w work) serve(ctx context.Context, a Action) {
	t, h := w.termination, w.termination.held[a.Hook]
	heard := func(answer error) { w.update(func() { h.heard(answer) }) }
	completes := w.outcome == event.Drained || w.outcome == event.OutOfTime
	if w.outcome == event.LeftAlone {
		t.once(Found, "the node is opted out: %s, is held for the budget of the termination, and then left to its own timeout", a)
		if w.settings.Budget > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithDeadline(ctx, t.firstSeen.Add(w.settings.Budget))
			defer cancel()
		}
	}
	switch {
	case h.over: // An earlier work has completed it.
		return
	case t.stage == past:
		heard(errNothingWaits)
	case w.keeper.opts.DryRun: // It sends no heartbeats either.
		if completes {
			t.say(Completed, "dry run: not completing %s", a)
		}
	case !completes:
		t.client.hold(ctx, a, heard)
	default:
		err := t.client.complete(ctx, a, w.outcome)
		if err == nil { // It is completed and reported, or to be left alone.
			w.update(func() { h.over = true })
			return
		}
		if errors.Is(err, errNothingWaits) {
			heard(err)
		}
	}
	if h.over {
		t.once(Completed, "%s does not wait any more", a)
	}
}

// stage is how far an instance has come on its way to a target state.
type stage int

const (
	approaching stage = iota // it does not wait for its hooks yet
	waiting                  // it waits for them
	past                     // it does not wait any more
)

// stageOf returns the stage of an instance in a state of its lifecycle; the state is "" if the instance is in no group.
// https://docs.aws.amazon.com/autoscaling/ec2/userguide/ec2-auto-scaling-lifecycle.html
func stageOf(target, state string) stage {
	switch {
	case state == "":
		return past
	case ends(target) && !strings.Contains(state, "Terminat"):
		return approaching // Such as "Warmed:Pending:Wait": on its way into the pool, it waits for hooks of launches.
	case strings.HasSuffix(state, ":Wait"):
		return waiting
	case strings.HasSuffix(state, ":Proceed"), strings.HasSuffix(state, ":Retained"), state == target && state != "ReplacingRootVolume":
		return past
	}
	return approaching
}

// ends reports whether a target state is the end of the instance. Others are its return to a warm pool, or another root volume.
func ends(target string) bool { return target == "Terminated" || target == "Warmed:Terminated" }
