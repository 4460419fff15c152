package asg

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/loop"
	"github.com/nth-project/nth/pkg/role"
)

// Options are those of a Keeper.
type Options struct {
	// AWS returns the configuration for clients of AWS's SDK, as role.Metadata.Account does.
	AWS func(context.Context) (aws.Config, error)
	// Metadata reads documents of the instance metadata service: the instance's ID is one.
	Metadata role.Metadata
	// Report is called with each finding. It must not block.
	Report func(HookReport)
	// Requested, if set, is called with the result of each heartbeat and completion. It must not block.
	Requested func(Request, Answer)
}

// Keeper holds and completes the lifecycle hooks of its own instance. The agent reports to it, by Settled, how the drain for a termination goes.
// Run does the work, in shifts: a shift is the work for one outcome of one termination. A new outcome ends the shift before.
type Keeper struct {
	opts     Options
	settings Settings

	mu          sync.Mutex
	termination event.Event   // the latest one; zero before the first
	outcome     event.Outcome // the latest outcome of its drain; "" while the drain is not done
	endShift    func()        // ends the current shift of Run, so that the next begins
}

// New returns a Keeper. It makes no request before a termination is announced.
func New(opts Options, settings Settings) *Keeper {
	return &Keeper{opts: opts, settings: settings, endShift: func() {}}
}

// Settled takes the outcome of the drain for an announced event, "" while the drain is not done. The agent calls it, often with the same outcome.
// Events other than terminations have no effect. Run then acts by the outcome of the termination:
//   - Drained, OutOfTime: it completes the hooks.
//   - LeftAlone: the node is opted out, and the hooks are left to their timeouts.
//   - Any other: it holds the hooks.
func (k *Keeper) Settled(ev event.Event, outcome event.Outcome) {
	if ev.Kind != event.ASGTermination || !k.settings.Complete {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.termination.ID != ev.ID || k.outcome != outcome {
		k.termination, k.outcome = ev, outcome
		k.endShift()
	}
}

// Run works in shifts until ctx ends: one for each outcome that Settled gets. It implements agent.Source, and reports no events.
func (k *Keeper) Run(ctx context.Context, _ event.Sink) {
	var current shift
	for ctx.Err() == nil {
		shiftCtx, end := context.WithCancel(ctx)
		k.mu.Lock()
		k.endShift = end
		termination, outcome := k.termination, k.outcome
		k.mu.Unlock()
		if current.termination.ID != termination.ID {
			// The new reporter repeats texts that were reported for another termination.
			report := func(r HookReport) { r.Event = termination; k.opts.Report(r) }
			current = shift{k, termination, newReporter(report)}
		}
		if termination.ID != "" { // A termination was announced.
			current.keep(shiftCtx, outcome)
		}
		<-shiftCtx.Done() // If keep returns early, wait for Settled to end the shift.
		end()
	}
}

// shift does the work for a termination. Its reporter adds the termination to each report.
type shift struct {
	keeper      *Keeper
	termination event.Event
	*reporter
}

// keep waits for the chosen hooks of the instance. It completes them if the outcome is final, and otherwise holds them. It returns when no hook
// waits any more, or ctx ends.
func (s shift) keep(ctx context.Context, outcome event.Outcome) {
	if outcome == event.LeftAlone {
		s.say(Found, "the Node's annotation nth-project.github.io/action forbids the drain, so nth lets the Auto Scaling lifecycle hooks of this instance time out")
		return
	}
	var hooks sync.WaitGroup
	defer hooks.Wait()
	client, actions := s.awaitHooks(ctx)
	for _, a := range actions {
		hooks.Go(func() {
			if final(outcome) {
				_ = client.Complete(ctx, a, outcome) // The only error is that ctx has ended.
			} else {
				client.Hold(ctx, a)
			}
		})
	}
}

// longestLook is the longest pause before nth asks again whether the hooks wait. It may take minutes until they do, while the group takes the
// instance out of its load balancers.
const longestLook = 15 * time.Second

// awaitHooks asks Auto Scaling until the hooks of the instance wait. It returns an action for each chosen hook, and a client for them. It returns
// no action if the hooks do not wait any more, or ctx ends.
func (s shift) awaitHooks(ctx context.Context) (client *HookClient, actions []Action) {
	instance := ""
	for looks := 1; ; looks++ {
		var err error
		if client == nil { // This is the first look, or the metadata service has not answered.
			client, instance, err = ownClient(ctx, s.keeper.opts, s.keeper.settings, s.reporter)
		}
		var at stage
		if err == nil {
			actions, at, err = s.look(ctx, client, instance)
		}
		switch {
		case ctx.Err() != nil:
			return nil, nil
		case err != nil:
			s.sayFailed("look for lifecycle hooks", err)
		case at == past:
			for _, a := range actions {
				s.say(Completed, "Auto Scaling no longer waits for %s, which has timed out or is completed", a)
			}
			return nil, nil
		case at == waiting && len(actions) > 0:
			return client, actions
		}
		wait := role.Pause(looks, firstPause, longestLook)
		noHooks := err == nil && len(actions) == 0
		if noHooks || unpermitted(err) { // An operator may add a hook or a permission, but not within seconds.
			wait = role.Spread(longestPause)
		}
		if !loop.Await(ctx, nil, wait) {
			return nil, nil
		}
	}
}

// look asks Auto Scaling once: it returns an action for each chosen hook of the instance's group, and at which stage the instance is. An instance that
// is in no group is past: nothing is left to wait for.
func (s shift) look(ctx context.Context, client *HookClient, instance string) (actions []Action, at stage, err error) {
	group, state, err := client.groupOf(ctx, instance)
	if err != nil {
		return nil, approaching, err
	}
	if group == "" {
		s.say(Found, "the instance is in no Auto Scaling group: there is no lifecycle hook to complete")
		return nil, past, nil
	}
	const forLaunches = false
	chosen, why, err := client.choose(ctx, group, forLaunches)
	if err != nil {
		return nil, approaching, err
	}
	s.say(Found, "%s", why)
	target := s.termination.Code
	back := target != "Terminated" && target != "Warmed:Terminated" // The instance comes back. Any other target is a warm pool, or another root volume.
	for _, h := range chosen {
		actions = append(actions, Action{Group: group, Hook: h.name, Instance: instance, Back: back})
	}
	return actions, stageOf(target, state), nil
}

// stage is how far a termination has come.
type stage int

const (
	approaching stage = iota // the hooks do not wait yet
	waiting                  // the hooks wait
	past                     // the hooks do not wait any more
)

// stageOf returns the stage of a termination from the instance's lifecycle state, such as "Terminating:Wait". target is the lifecycle state to
// which the termination leads, such as "Terminated" or "Warmed:Stopped".
// https://docs.aws.amazon.com/autoscaling/ec2/userguide/ec2-auto-scaling-lifecycle.html
func stageOf(target, state string) stage {
	switch {
	case strings.HasSuffix(state, ":Wait"):
		return waiting
	case state == "ReplacingRootVolume": // This is the state before "ReplacingRootVolume:Wait", although the target has the same name.
		return approaching
	case strings.HasSuffix(state, ":Proceed"), strings.HasSuffix(state, ":Retained"), state == target:
		return past
	}
	return approaching
}
