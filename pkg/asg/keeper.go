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
// its work is ended and begun again.
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

// termination is one announced end of the instance.
type termination struct {
	event     event.Event
	firstSeen time.Time // with a monotonic reading
	outcome   event.Outcome
	// limits are when Auto Scaling stops waiting for the hooks that are held, by their names, with a monotonic reading.
	limits map[string]time.Time

	// Only the work for the termination uses what follows.
	reporter
	client   *HookClient // nil before the metadata service has answered
	instance string
	// since is the latest time at which the instance is known not to have waited yet.
	since time.Time
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
	<-ended // the latest work; closed from the start if there was none
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
		if k.current != nil {
			clear(k.current.limits) // Other hooks may be chosen.
		}
		k.begin()
	}
}

// Settled takes the outcome so far of the drain for an event; the agent calls it. If the node is drained, or the time is over, the Keeper
// completes the event's hooks. If the node is opted out, it leaves them to their timeouts. Otherwise it holds them, also while the rules ask for
// no drain: a reload replaces settings and rules one after the other.
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
	t := &termination{event: ev, firstSeen: time.Now(), limits: map[string]time.Time{}}
	t.reporter = newReporter(func(r HookReport) {
		r.Event = ev
		k.opts.Report(r)
	})
	if k.opts.FirstSeen != nil {
		if seen := k.opts.FirstSeen(ev.ID); !seen.IsZero() && seen.Before(t.firstSeen) {
			t.firstSeen = seen
		}
	}
	t.since = t.firstSeen
	return t
}

// deadline returns when Auto Scaling takes the machine, with a reading of the monotonic clock; zero if that is not before the end of the
// budget. The caller holds k.mu.
func (k *Keeper) deadline() (nearest time.Time) {
	end := k.current.firstSeen.Add(k.settings.Budget)
	for _, limit := range k.current.limits {
		if limit.Before(end) {
			nearest, end = limit, limit
		}
	}
	return nearest
}

// begin ends the work for a termination, and begins it again by the present settings and outcome. The caller holds k.mu.
func (k *Keeper) begin() {
	k.end()
	if k.current == nil || !k.settings.Complete {
		return // Nothing is announced, or the settings leave hooks alone.
	}
	before, ended := k.ended, make(chan struct{})
	ctx, end := context.WithCancel(k.ctx)
	t, settings, outcome := k.current, k.settings, k.current.outcome
	k.end, k.ended = end, ended
	go func() {
		defer close(ended)
		<-before // Two works never use one termination.
		k.work(ctx, t, settings, outcome)
	}()
}

// longestLook is the longest pause before nth looks again whether the instance waits for its hooks. It may not wait yet for minutes, while
// the group takes it out of its load balancers.
const longestLook = 15 * time.Second

// work completes the chosen hooks of a termination if the outcome is final, and otherwise holds them. It returns when they are over or ctx ends.
func (k *Keeper) work(ctx context.Context, t *termination, settings Settings, outcome event.Outcome) {
	if outcome == event.LeftAlone {
		t.once(Found, "the node is opted out: its lifecycle hooks are left to their timeouts")
		return
	}
	var serving sync.WaitGroup
	defer serving.Wait()
	for _, a := range k.await(ctx, t, settings) {
		serving.Go(func() {
			switch {
			case k.opts.DryRun: // It sends no heartbeats either.
				if final(outcome) {
					t.say(Completed, "dry run: not completing %s", a)
				}
			case final(outcome):
				if t.client.Complete(ctx, a, outcome) == nil {
					k.setLimit(t, a.Hook, time.Time{})
				}
			default:
				k.hold(ctx, t, a)
			}
		})
	}
}

// await waits until the instance waits for chosen hooks, and returns an action for each. It returns none if the instance waits no more, or
// ctx ends.
func (k *Keeper) await(ctx context.Context, t *termination, settings Settings) []Action {
	for looks := 1; ; looks++ {
		actions, stage, err := k.look(ctx, t, settings)
		wait := role.Pause(looks, firstPause, longestLook)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			t.failed("looking for lifecycle hooks", err)
		case stage == past:
			for _, a := range actions {
				t.once(Completed, "%s does not wait any more", a)
			}
			return nil
		case stage == waiting && len(actions) > 0:
			return actions
		case stage == approaching:
			t.since = time.Now()
		}
		if unpermitted(err) || err == nil && len(actions) == 0 { // Neither policies nor hooks change within seconds.
			wait = role.Spread(longestPause)
		}
		if !loop.Await(ctx, nil, wait) {
			return nil
		}
	}
}

// look finds out how far the instance has come, and returns an action for each chosen hook of its group.
func (k *Keeper) look(ctx context.Context, t *termination, settings Settings) (actions []Action, stage stage, err error) {
	if t.client == nil {
		if t.client, t.instance, err = ownClient(ctx, k.opts, settings, t.reporter); err != nil {
			return nil, approaching, err
		}
	}
	t.client.Use(settings)
	group, state, err := t.client.groupOf(ctx, t.instance)
	if err != nil {
		return nil, approaching, err
	}
	if group == "" {
		t.once(Found, "the instance is in no Auto Scaling group: there is no lifecycle hook to complete")
		return nil, past, nil
	}
	const launch = false
	chosen, why, err := t.client.choose(ctx, group, launch)
	if err != nil {
		return nil, approaching, err
	}
	t.once(Found, "%s", why)
	for _, h := range chosen {
		actions = append(actions, Action{Group: group, Hook: h.name, Instance: t.instance, Back: !ends(t.event.Code)})
	}
	return actions, stageOf(t.event.Code, state), nil
}

// hold holds the machine by one hook, and keeps the hook's limit. Auto Scaling stops waiting after the global timeout, whatever is sent. If
// heartbeats do not get through, it stops one timeout after the last one that it accepted.
func (k *Keeper) hold(ctx context.Context, t *termination, a Action) {
	last := t.since // when the hook's timeout began
	t.client.hold(ctx, a, func(h hook, answer error) {
		limit, until := t.since.Add(h.global), last.Add(h.timeout)
		switch {
		case answer == nil:
			last = time.Now()
		case errors.Is(answer, errNothingWaits):
			limit = time.Time{}
			t.once(Completed, "%s does not wait any more", a)
		case until.Before(limit) && until.After(time.Now()) && (unpermitted(answer) || time.Since(last) > 2*h.interval()):
			limit = until
		}
		k.setLimit(t, a.Hook, limit)
	})
}

// setLimit notes when Auto Scaling stops waiting for a hook; zero if it does not wait.
func (k *Keeper) setLimit(t *termination, hook string, limit time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if limit.IsZero() {
		delete(t.limits, hook)
	} else {
		t.limits[hook] = limit
	}
}

// stage is how far an instance has come on its way to a target state.
type stage int

const (
	approaching stage = iota // it does not wait for its hooks yet
	waiting                  // it waits for them
	past                     // it does not wait any more
)

// stageOf returns the stage of an instance in a state of its lifecycle, such as "Terminating:Wait". target is where its lifecycle leads, such
// as "Terminated" or "Warmed:Stopped". "ReplacingRootVolume" is a target, and also the state before its own ":Wait".
// https://docs.aws.amazon.com/autoscaling/ec2/userguide/ec2-auto-scaling-lifecycle.html
func stageOf(target, state string) stage {
	switch {
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
