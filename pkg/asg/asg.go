// Package asg handles the lifecycle hooks of an Auto Scaling group: heartbeats hold the instance while its node is drained, and then the
// hook is completed, so that the group need not wait for the hook's timeout.
//
// A HookClient (client.go) holds and completes lifecycle actions of any instance: nth-queue hears of them from its queue. A Keeper stands
// before the source of events on the machine itself (pkg/imds), and passes everything on. When a termination is announced it finds the
// hooks that wait for its own instance (termination.go), and has a HookClient hold and complete them. Which hooks are ours is decided
// in one place (choose.go), and so is what is asked of Auto Scaling (api.go).
//
// Hooks wait for an instance that is terminated, that returns to a warm pool, or whose root volume is replaced. All three are held and
// completed alike, and are called terminations here.
//
// Nothing is remembered on disk: Auto Scaling knows whether a hook still waits, and is asked again after a restart. A missing permission
// is reported once, and the drain continues without it.
package asg

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/role"
)

// Settings say what is done about hooks.
type Settings struct {
	// Complete enables the hooks of terminations. Without it a Keeper never asks Auto Scaling anything.
	Complete bool
	// Hooks names the hooks of terminations to complete, and LaunchHooks those that wait until a new instance is in service, of which
	// only a HookClient hears. Without names, choose decides.
	Hooks, LaunchHooks []string
	// Budget is how long the drain may take from when the event was first seen: a later limit of Auto Scaling's gives the event no
	// deadline. A machine whose node is opted out is held for as long; with 0, for as long as its hooks wait.
	Budget time.Duration
	// Abandon says to abandon the hooks of a termination whose time is over with pods left, where the group keeps the machine then.
	Abandon bool
}

// Outcome is the kind of a HookReport.
type Outcome string

// The kinds of reports.
const (
	// Found: it is known which hooks the group has, and which of them are ours.
	Found Outcome = "found"
	// Trouble: Auto Scaling does not answer, or not as it should. It is asked again.
	Trouble Outcome = "trouble"
	// Refused: a permission is missing.
	Refused Outcome = "refused"
	// Completed: a hook was completed, or does not wait any more.
	Completed Outcome = "completed"
)

// HookReport is one finding for the log, in words. A HookClient's reports have no Event.
type HookReport struct {
	Outcome Outcome
	Event   event.Event
	Text    string
}

// mostSaid is how many texts a reporter remembers: many name an instance, and nth-queue sees thousands.
const mostSaid = 256

// reporter reports what is found out and what fails.
type reporter struct {
	report func(HookReport)

	mu   sync.Mutex
	said map[string]bool
}

// say reports a finding, however often it was reported before.
func (r *reporter) say(what Outcome, format string, args ...any) {
	r.report(HookReport{Outcome: what, Text: fmt.Sprintf(format, args...)})
}

// once says what was not said before.
func (r *reporter) once(what Outcome, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	r.mu.Lock()
	said := r.said[text]
	if r.said == nil || !said && len(r.said) >= mostSaid {
		r.said = map[string]bool{}
	}
	r.said[text] = true
	r.mu.Unlock()
	if !said {
		r.say(what, "%s", text)
	}
}

// failed says why a request failed, unless last says it, the text of the failure before. It returns the text; empty if nothing failed.
func (r *reporter) failed(doing string, err error, last string) string {
	if err == nil {
		return ""
	}
	what, text := Trouble, fmt.Sprintf("%s: %s; Auto Scaling is asked again", doing, err)
	if unpermitted(err) {
		refused, _ := errors.AsType[refusedError](err)
		what, text = Refused, fmt.Sprintf("%s: %s; %s (docs/lifecycle.md has the policy)", doing, err, without(refused.Action))
	}
	if text != last {
		r.say(what, "%s", text)
	}
	return text
}

// Source watches for events until ctx ends and passes them to the sink. Stuck says what has stalled in it; nil if nothing has.
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
type Keeper struct {
	source Source
	opts   Options

	mu       sync.Mutex
	settings Settings
	current  *termination // the one that is announced; nil if none is, or nothing is to be done for it
	ctx      context.Context
	running  sync.WaitGroup
}

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
	k.running.Wait()
	return err
}

// Stalled says what has stalled in the source; nil if nothing has.
func (k *Keeper) Stalled() error { return k.source.Stalled() }

// Use replaces the settings. A termination under way is handled by the new ones.
func (k *Keeper) Use(s Settings) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if reflect.DeepEqual(s, k.settings) {
		return
	}
	k.settings = s
	if t := k.current; t != nil {
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

// see begins and ends the handling of the termination that is announced, and returns the events with their deadlines. There is one
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
	events[0].Deadline = k.current.deadline()
	return events
}

// begin starts to handle a termination, if the settings say so.
func (k *Keeper) begin(t *termination) {
	if !k.settings.Complete {
		return
	}
	t.opts, t.settings = k.opts, k.settings
	t.reporter.report = func(n HookReport) {
		n.Event = t.event
		k.opts.Report(n)
	}
	t.start(k.ctx)
	k.current = t
	k.running.Go(t.run)
}

// leave ends the handling of the current termination.
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
