package asg

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/role"
)

// Action is one lifecycle action: a group waits at a hook until something is done about an instance.
type Action struct {
	Group, Hook, Instance string
	// Token identifies the action, so that no later one of the same instance is meant; empty where it is not known.
	Token string
	// Launch is set if the group waits to put the instance into service, and not to end it, and Back if the instance goes back to a warm
	// pool.
	Launch, Back bool
}

func (a Action) String() string {
	return fmt.Sprintf("the lifecycle hook %s of the Auto Scaling group %s, for %s", a.Hook, a.Group, a.Instance)
}

func (a Action) token() *string {
	if a.Token == "" {
		return nil
	}
	return &a.Token
}

// HookClientOptions are those of a HookClient.
type HookClientOptions struct {
	AWS aws.Config
	// Queue is the queue that the messages come from, as its ARN has it after the partition, such as
	// ":sqs:eu-central-1:123456789012:nth-queue": a hook that notifies it is ours. Empty if there is none.
	Queue string
	// Report is called with each finding, from several goroutines. It must not block.
	Report func(HookReport)
	// Requested, if set, is called after each request about a hook that waits. It must not block.
	Requested func(Request, Answer)
}

// HookClient holds and completes lifecycle actions of any instance, if their hooks are ours by the settings. All that it has to find out
// for that are the groups' hooks. Its methods may be called from several goroutines.
type HookClient struct {
	opts     HookClientOptions
	sdk      *autoscaling.Client
	settings atomic.Pointer[Settings]
	reporter

	mu     sync.Mutex
	groups map[string]*groupHooks
}

// groupHooks are a group's hooks, as far as they are known.
type groupHooks struct {
	turn  chan struct{} // has room for one, who may use what follows
	hooks []hook
	err   error     // why they are not known
	until time.Time // of the next request
}

const (
	// hooksLife is how long a group's hooks are taken to be unchanged, and unknownLife how long nobody asks again after a failure.
	hooksLife, unknownLife = 5 * time.Minute, 3 * time.Second
	// leastTimeout is the shortest that a hook can have, and is used until its own is known; shortTimeout is used if
	// asking for it is not allowed. No hook waits for longer than longestTimeout without a heartbeat.
	// https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_PutLifecycleHook.html
	leastTimeout   = 30 * time.Second
	shortTimeout   = 3 * time.Minute
	longestTimeout = 2 * time.Hour
)

// NewHookClient returns a HookClient that has asked nothing yet.
func NewHookClient(opts HookClientOptions, settings Settings) *HookClient {
	c := &HookClient{opts: opts, sdk: newClient(opts.AWS), reporter: newReporter(opts.Report), groups: map[string]*groupHooks{}}
	c.Use(settings)
	return c
}

// Use replaces the settings.
func (c *HookClient) Use(s Settings) { c.settings.Store(&s) }

// rule returns the rule for the hooks of a transition.
func (c *HookClient) rule(launch bool) rule {
	settings := c.settings.Load()
	if launch {
		return rule{transition: launching, named: settings.LaunchHooks, queue: c.opts.Queue}
	}
	return rule{transition: terminating, named: settings.Hooks, queue: c.opts.Queue}
}

// find returns the hook of an action, and whether it is ours; an error means that this is not known. Until a hook is known it has the
// shortest timeout that it may have.
func (c *HookClient) find(ctx context.Context, a Action) (h hook, ours bool, err error) {
	r := c.rule(a.Launch)
	named := slices.Contains(r.named, a.Hook)
	if !a.Launch && !c.settings.Load().Complete || len(r.named) > 0 && !named {
		return hook{}, false, nil
	}
	hooks, err := c.hooks(ctx, a.Group)
	if ctx.Err() == nil {
		c.failed("asking for the lifecycle hooks of the Auto Scaling group "+a.Group, err)
	}
	h = hook{name: a.Hook, timeout: leastTimeout}
	if unpermitted(err) {
		h.timeout = shortTimeout
	}
	if i := slices.IndexFunc(hooks, func(h hook) bool { return h.name == a.Hook }); i >= 0 {
		h = hooks[i]
	}
	switch {
	case named:
		return h, true, nil
	case err != nil:
		return h, false, err
	}
	chosen, why := choose(a.Group, hooks, r)
	c.once(Found, "%s", why)
	return h, slices.ContainsFunc(chosen, func(h hook) bool { return h.name == a.Hook }), nil
}

// hooks returns the hooks of a group, from memory for a while. Several callers for one group share one request, and its error.
func (c *HookClient) hooks(ctx context.Context, group string) ([]hook, error) {
	c.mu.Lock()
	g, known := c.groups[group]
	if !known {
		g = &groupHooks{turn: make(chan struct{}, 1)}
		c.groups[group] = g
	}
	c.mu.Unlock()
	select {
	case g.turn <- struct{}{}:
		defer func() { <-g.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if time.Now().Before(g.until) {
		return g.hooks, g.err
	}
	hooks, err := c.describeHooks(ctx, group)
	if ctx.Err() != nil {
		return nil, ctx.Err() // This says nothing about the group.
	}
	life := hooksLife
	switch {
	case errors.Is(err, errNothingWaits): // The group exists no more.
		hooks, err = []hook{}, nil
	case unpermitted(err):
		life = longestPause / 2
	case err != nil:
		life = role.Spread(unknownLife)
	}
	g.until = time.Now().Add(life)
	if err == nil || g.hooks == nil { // What was known before is better than nothing.
		g.hooks, g.err = hooks, err
	}
	return g.hooks, g.err
}

// Hold sends heartbeats for an action that is ours, one for each third of the hook's timeout, until ctx ends or nothing waits any more.
// Until it is known whether the hook is ours, it is taken for ours, as a heartbeat does no harm.
func (c *HookClient) Hold(ctx context.Context, a Action) { c.hold(ctx, a, func(error) {}) }

// hold is Hold. heard is called with the answer to each heartbeat.
func (c *HookClient) hold(ctx context.Context, a Action, heard func(error)) {
	for failures := 0; ; {
		h, ours, err := c.find(ctx, a)
		if ctx.Err() != nil || err == nil && !ours {
			return
		}
		if err = c.heartbeat(ctx, a); ctx.Err() != nil {
			return
		}
		if heard(err); errors.Is(err, errNothingWaits) {
			return
		}
		c.failed("holding the machine by "+a.String(), err)
		wait := h.interval()
		if failures++; err == nil {
			failures = 0
		} else if !unpermitted(err) {
			wait = min(wait, pause(failures))
		}
		if !role.Sleep(ctx, wait) {
			return
		}
	}
}

// Complete completes an action that is ours with the result that the outcome calls for, if it calls for one. It retries until that
// succeeds or the hook's own time is over, when the group does not wait any more. The outcome does not matter for a launch. The error is
// ctx's.
func (c *HookClient) Complete(ctx context.Context, a Action, outcome event.Outcome) error {
	if !a.Launch && outcome != event.Drained && outcome != event.OutOfTime {
		return nil // The work that the hook waits for is not done.
	}
	if errors.Is(c.complete(ctx, a, outcome), errNothingWaits) {
		c.once(Completed, "%s does not wait any more", a)
	}
	if ctx.Err() != nil {
		return fmt.Errorf("completing %s: %w", a, ctx.Err())
	}
	return nil
}

// complete is Complete for an outcome that calls for a result. The error is errNothingWaits, or that of ctx.
func (c *HookClient) complete(ctx context.Context, a Action, outcome event.Outcome) error {
	held := time.Now() // when it was last known to wait for a whole timeout
	for failures := 1; ; failures++ {
		h, ours, err := c.find(ctx, a)
		switch {
		case unpermitted(err):
			c.say(Refused, "%s: it is left to its timeout, as it cannot be known whose it is, and %s does not name it",
				a, wordsFor[c.rule(a.Launch).transition].setting)
			return nil
		case err == nil && !ours:
			return nil
		case err != nil: // find has reported it.
			h.timeout = longestTimeout
		default:
			result, unknown := c.result(ctx, a, outcome)
			if err = unknown; err == nil {
				if err = c.conclude(ctx, a, result); err == nil || errors.Is(err, errNothingWaits) {
					return err
				}
			} else if now := time.Now(); c.heartbeat(ctx, a) == nil { // The machine is held until that is known.
				held = now
			}
			if ctx.Err() == nil {
				c.failed("completing "+a.String(), err)
			}
		}
		if time.Since(held) >= h.timeout {
			c.say(Trouble, "%s: it could not be completed before its own time was over, and its default result holds", a)
			return nil
		}
		if !role.Sleep(ctx, min(pause(failures), max(h.interval(), leastTimeout/3))) {
			return ctx.Err()
		}
	}
}

// result is the result of an action that the outcome calls for: abandon only where that makes the group keep the machine. The error says why
// that is not known.
func (c *HookClient) result(ctx context.Context, a Action, outcome event.Outcome) (string, error) {
	if a.Launch || outcome != event.OutOfTime || !c.settings.Load().Abandon {
		return proceed, nil
	}
	keeps, err := c.keeps(ctx, a)
	if keeps {
		return abandon, nil
	}
	return proceed, err
}

// conclude completes an action with a result, and reports what follows for the machine. It tries once.
func (c *HookClient) conclude(ctx context.Context, a Action, result string) error {
	if err := c.end(ctx, a, result); err != nil {
		return err
	}
	switch {
	case result == abandon:
		c.say(Completed, "abandoned %s: pods are left, and the group keeps the machine", a)
	case a.Launch:
		c.say(Completed, "completed %s: its node is Ready", a)
	default:
		c.say(Completed, "completed %s: the machine may go", a)
	}
	return nil
}

// An Auto Scaling group takes an instance whose hook for terminations is abandoned, as it takes one whose hook is completed. Only where
// its instance lifecycle policy says TerminateHookAbandon=retain is the instance kept, in the state Terminating:Retained, until somebody
// ends it. https://docs.aws.amazon.com/autoscaling/ec2/userguide/instance-lifecycle-policy.html

// keeps asks whether the group keeps the machine if the action is abandoned. A missing permission is a no.
func (c *HookClient) keeps(ctx context.Context, a Action) (bool, error) {
	if a.Back {
		c.once(Found, "%s: the machine goes back to a warm pool or gets another root volume, so its hook is completed with %s whatever the outcome", a, proceed)
		return false, nil
	}
	keeps, err := c.retains(ctx, a.Group)
	switch {
	case unpermitted(err):
		c.once(Refused, "%s; %s", err, without(describeGroups))
		return false, nil
	case err != nil:
		return false, fmt.Errorf("finding out whether the group keeps the machine: %w", err)
	case !keeps:
		c.once(Found, "%s", willNotKeep(a.Group))
	}
	return keeps, nil
}

// Loses reports whether the group takes the machine when the time for an action is over and pods are left, although the settings ask to
// keep it. It asks until that is known. The error is ctx's.
func (c *HookClient) Loses(ctx context.Context, a Action) (bool, error) {
	if !c.settings.Load().Abandon {
		return false, nil
	}
	for failures := 1; ; failures++ {
		keeps, err := c.keeps(ctx, a)
		if err == nil {
			return !keeps, nil
		}
		if ctx.Err() == nil {
			c.failed(a.String(), err)
		}
		if !role.Sleep(ctx, pause(failures)) {
			return false, fmt.Errorf("finding out whether the group %s would keep %s: %w", a.Group, a.Instance, ctx.Err())
		}
	}
}

// willNotKeep says what on_incomplete = "abandon" means for a group that keeps no machine.
func willNotKeep(group string) string {
	return fmt.Sprintf(`the Auto Scaling group %s does not keep a machine whose hook is abandoned, its instance lifecycle policy has no `+
		`TerminateHookAbandon=retain: out of time, hooks are completed with %s in spite of on_incomplete = "abandon"`, group, proceed)
}
