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
	// AWS returns what clients are made from, as role.Metadata.Account does.
	AWS func(context.Context) (aws.Config, error)
	// Metadata reads a document of the instance metadata service, by its path below /latest/meta-data/. The error is
	// fs.ErrNotExist if there is none.
	Metadata role.Metadata
	// Report is called with each finding. It must not block.
	Report func(HookReport)
	// Requested, if set, is called after each request about a hook that waits. It must not block.
	Requested func(Request, Answer)
}

// Keeper keeps the lifecycle hooks of its own instance. It follows what the agent says of a termination: see Settled.
type Keeper struct {
	opts     Options
	settings Settings

	mu          sync.Mutex
	termination event.Event   // the latest one; zero before the first
	outcome     event.Outcome // of its drain, so far
	endShift    func()        // ends the present shift of Run, as there is news
}

// New returns a Keeper that asks nothing before a termination is announced.
func New(opts Options, settings Settings) *Keeper {
	return &Keeper{opts: opts, settings: settings, endShift: func() {}}
}

// Settled takes the outcome so far of the drain for an event that is announced; the agent calls it. If the node is drained, or the time is
// over, Run completes the event's hooks. If the node is opted out, it leaves them to their timeouts. Otherwise it holds them.
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

// Run keeps hooks until ctx ends, in shifts: one for each outcome. It implements agent.Source, and reports no events.
func (k *Keeper) Run(ctx context.Context, _ event.Sink) {
	var at shift
	for ctx.Err() == nil {
		ctx, end := context.WithCancel(ctx)
		k.mu.Lock()
		k.endShift = end
		next, outcome := k.termination, k.outcome
		k.mu.Unlock()
		if at.termination.ID != next.ID { // What was reported of another termination counts no more.
			at = shift{k, next, newReporter(func(r HookReport) { r.Event = next; k.opts.Report(r) })}
		}
		if next.ID != "" {
			at.keep(ctx, outcome)
		}
		<-ctx.Done() // The hooks may be over sooner, and another outcome come.
		end()
	}
}

// shift is the work for one outcome of a termination.
type shift struct {
	keeper      *Keeper
	termination event.Event
	*reporter
}

// keep completes the chosen hooks if the outcome is final, and otherwise holds them. It returns when they are over or ctx ends.
func (s shift) keep(ctx context.Context, outcome event.Outcome) {
	if outcome == event.LeftAlone {
		s.say(Found, "the node is opted out: its lifecycle hooks are left to their timeouts")
		return
	}
	var hooks sync.WaitGroup
	defer hooks.Wait()
	client, actions := s.await(ctx)
	for _, a := range actions {
		hooks.Go(func() {
			if final(outcome) {
				_ = client.Complete(ctx, a, outcome) // Its error is the end of ctx.
			} else {
				client.Hold(ctx, a)
			}
		})
	}
}

// longestLook is the longest pause before nth looks again whether the instance waits for its hooks. It may not wait yet for minutes, while
// the group takes it out of its load balancers.
const longestLook = 15 * time.Second

// await waits until the instance waits for chosen hooks, and returns an action for each, and a client for them. It returns none if the
// instance waits no more, or ctx ends.
func (s shift) await(ctx context.Context) (client *HookClient, actions []Action) {
	instance := ""
	for looks := 1; ; looks++ {
		var err error
		if client == nil {
			client, instance, err = ownClient(ctx, s.keeper.opts, s.keeper.settings, s.reporter)
		}
		var at stage
		if err == nil {
			actions, at, err = s.look(ctx, client, instance)
		}
		wait := role.Pause(looks, firstPause, longestLook)
		switch {
		case ctx.Err() != nil:
			return nil, nil
		case err != nil:
			s.failed("looking for lifecycle hooks", err)
		case at == past:
			for _, a := range actions {
				s.say(Completed, "%s does not wait any more", a)
			}
			return nil, nil
		case at == waiting && len(actions) > 0:
			return client, actions
		}
		if unpermitted(err) || err == nil && len(actions) == 0 { // Neither policies nor hooks change within seconds.
			wait = role.Spread(longestPause)
		}
		if !loop.Await(ctx, nil, wait) {
			return nil, nil
		}
	}
}

// look finds out how far the instance has come, and returns an action for each chosen hook of its group.
func (s shift) look(ctx context.Context, client *HookClient, instance string) (actions []Action, at stage, err error) {
	group, state, err := client.groupOf(ctx, instance)
	if err != nil {
		return nil, approaching, err
	}
	if group == "" {
		s.say(Found, "the instance is in no Auto Scaling group: there is no lifecycle hook to complete")
		return nil, past, nil
	}
	const launch = false
	chosen, why, err := client.choose(ctx, group, launch)
	if err != nil {
		return nil, approaching, err
	}
	s.say(Found, "%s", why)
	target := s.termination.Code
	for _, h := range chosen {
		// Any other target than these is a return to a warm pool, or another root volume.
		back := target != "Terminated" && target != "Warmed:Terminated"
		actions = append(actions, Action{Group: group, Hook: h.name, Instance: instance, Back: back})
	}
	return actions, stageOf(target, state), nil
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
	case strings.HasSuffix(state, ":Wait"):
		return waiting
	case strings.HasSuffix(state, ":Proceed"), strings.HasSuffix(state, ":Retained"), state == target && state != "ReplacingRootVolume":
		return past
	}
	return approaching
}
