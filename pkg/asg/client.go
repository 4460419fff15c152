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
	"github.com/nth-project/nth/pkg/loop"
	"github.com/nth-project/nth/pkg/role"
)

// Action is one lifecycle action: a group waits at a hook before it terminates an instance or puts it into service.
type Action struct {
	Group, Hook, Instance string
	// Token identifies the action, so that a request does not affect a later action for the same instance; empty if it is not known.
	Token string
	// Launch is set if the group waits before it puts the instance into service. Back is set if the instance is not terminated, but goes
	// back to a warm pool or gets another root volume.
	Launch, Back bool
}

// String names the action in messages.
func (a Action) String() string {
	return fmt.Sprintf("the lifecycle hook %s of the Auto Scaling group %s, for %s", a.Hook, a.Group, a.Instance)
}

// transition returns the transition that the hook is for, by its name in the API.
func (a Action) transition() string {
	if a.Launch {
		return launching
	}
	return terminating
}

// token returns the token for a request; nil if it is not known.
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
	// ":sqs:eu-central-1:123456789012:nth-queue". A hook that notifies it is chosen. Empty if there is none.
	Queue string
	// Report is called with each finding, from several goroutines. It must not block.
	Report func(HookReport)
	// Requested, if set, is called after each request about a hook that waits. It must not block.
	Requested func(Request, Answer)
}

// HookClient holds and completes lifecycle actions of any instance, but only at hooks that choose chooses. For that it asks Auto Scaling for
// the hooks of a group, and remembers them. Its methods may be called from several goroutines.
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
	turn  chan struct{} // a lock for the other fields: it has an element while one goroutine uses them
	hooks []hook
	err   error     // why the hooks are not known
	until time.Time // when Auto Scaling is to be asked for them again
}

const (
	// hooksLife is how long a group's hooks are taken to be unchanged, and unknownLife how long nobody asks again after a failure.
	hooksLife, unknownLife = 5 * time.Minute, 3 * time.Second
	// leastTimeout is the shortest that a hook can have, and is used until its own is known; shortTimeout is used if
	// asking for it is not allowed.
	// https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_PutLifecycleHook.html
	leastTimeout = 30 * time.Second
	shortTimeout = 3 * time.Minute
)

// NewHookClient returns a HookClient that has asked nothing yet.
func NewHookClient(opts HookClientOptions, settings Settings) *HookClient {
	c := &HookClient{opts: opts, sdk: newClient(opts.AWS), reporter: newReporter(opts.Report), groups: map[string]*groupHooks{}}
	c.Use(settings)
	return c
}

// Use replaces the settings from now on.
func (c *HookClient) Use(s Settings) { c.settings.Store(&s) }

// rule returns the rule of the current settings for hooks for a transition.
func (c *HookClient) rule(transition string) rule {
	settings := c.settings.Load()
	if transition == launching {
		return rule{transition, settings.LaunchHooks, c.opts.Queue}
	}
	return rule{transition, settings.Hooks, c.opts.Queue}
}

// find returns the hook of an action, and whether it is chosen. An error, which find has reported, means that neither is known: Auto Scaling
// has not said which hooks the group has. Then h has the hook's name, the shortest heartbeat timeout, and the longest global timeout.
func (c *HookClient) find(ctx context.Context, a Action) (h hook, chosen bool, err error) {
	r := c.rule(a.transition())
	named := slices.Contains(r.named, a.Hook)
	if !a.Launch && !c.settings.Load().Complete || len(r.named) > 0 && !named {
		return hook{}, false, nil // The settings exclude it, whatever the group has.
	}
	hooks, err := c.hooks(ctx, a.Group)
	if ctx.Err() == nil {
		c.failed("asking for the lifecycle hooks of the Auto Scaling group "+a.Group, err)
	}
	h = hook{name: a.Hook, timeout: leastTimeout, global: longestGlobal}
	if unpermitted(err) {
		h.timeout = shortTimeout
	}
	if i := slices.IndexFunc(hooks, func(h hook) bool { return h.name == a.Hook }); i >= 0 { // Otherwise the guess above stands.
		h = hooks[i]
	}
	switch {
	case named: // The settings suffice, even if Auto Scaling has not answered.
		return h, true, nil
	case err != nil:
		return h, false, err
	}
	all, why := choose(a.Group, hooks, r)
	c.once(Found, "%s", why)
	return h, slices.ContainsFunc(all, func(h hook) bool { return h.name == a.Hook }), nil
}

// hooks returns the hooks of a group. It remembers them for hooksLife, and an error for seconds. Callers that ask for one group at the same
// time share one request. If a request fails, hooks returns those that were known before, without an error.
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
	case unpermitted(err): // A policy does not change within seconds.
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

// Hold sends heartbeats for an action whose hook is chosen: three in each timeout of the hook. It also sends them while it is not known
// whether the hook is chosen, as a heartbeat does no harm. It returns when ctx ends, when Auto Scaling says that nothing waits, or when the hook
// turns out not to be chosen.
func (c *HookClient) Hold(ctx context.Context, a Action) { c.hold(ctx, a, func(error) {}) }

// hold is Hold, and calls answered with the result of each heartbeat: nil if Auto Scaling accepts it.
func (c *HookClient) hold(ctx context.Context, a Action, answered func(error)) {
	for failures := 0; ; {
		h, chosen, err := c.find(ctx, a)
		if ctx.Err() != nil || err == nil && !chosen {
			return
		}
		if err = c.heartbeat(ctx, a); ctx.Err() != nil {
			return // The result of a canceled request says nothing.
		}
		if answered(err); errors.Is(err, errNothingWaits) {
			return
		}
		c.failed("holding the machine by "+a.String(), err)
		wait := h.interval()
		if failures++; err == nil {
			failures = 0
		} else if !unpermitted(err) { // A missing permission is tried again only when the next heartbeat is due.
			wait = min(wait, pause(failures))
		}
		if !loop.Await(ctx, nil, wait) {
			return
		}
	}
}

// Complete completes an action, so that the group need not wait for the hook's timeout. It does nothing if the hook is not chosen, or if
// the outcome of a drain is not final. It retries until it succeeds, or until the group does not wait any more: that is certain after the
// hook's global timeout. An action for a launch is completed whatever the outcome. Everything is reported; the only error is ctx's.
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

// complete is Complete for a final outcome. It returns nil if the action is completed, or if nth is to leave it alone from now on. The error
// is errNothingWaits if nothing waited, or that of ctx.
func (c *HookClient) complete(ctx context.Context, a Action, outcome event.Outcome) error {
	began := time.Now()
	for failures := 1; ; failures++ {
		h, chosen, err := c.find(ctx, a)
		switch {
		case unpermitted(err): // Another program may wait for the hook.
			c.say(Refused, "%s: nth may not ask whether another program completes it, and %s does not name it; it is left to its timeout",
				a, wordsFor[a.transition()].setting)
			return nil
		case err == nil && !chosen: // Another program completes the hook.
			return nil
		case err == nil: // Otherwise find has reported the error.
			if err = c.conclude(ctx, a, outcome); err == nil || errors.Is(err, errNothingWaits) {
				return err
			}
			if ctx.Err() == nil {
				c.failed("completing "+a.String(), err)
			}
		}
		if time.Since(began) >= h.global {
			c.say(Trouble, "%s: it could not be completed before its own time was over, and its default result holds", a)
			return nil
		}
		wait := pause(failures)
		if unpermitted(err) {
			wait = max(h.interval(), longestPause) // A policy does not change within seconds.
		}
		if !loop.Await(ctx, nil, wait) {
			return ctx.Err()
		}
	}
}

// result returns the result with which an action is to be completed: proceed, or abandon. It is abandon if pods are left, the settings ask to
// keep such a machine, and the group would keep it. The error says why that is not known.
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

// conclude tries once to complete an action, and reports what follows for the machine. It holds the machine while the result is not known.
func (c *HookClient) conclude(ctx context.Context, a Action, outcome event.Outcome) error {
	result, err := c.result(ctx, a, outcome)
	if err != nil {
		if held := c.heartbeat(ctx, a); errors.Is(held, errNothingWaits) {
			return held
		}
		return err
	}
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

// keeps reports whether the group keeps the machine if the action is abandoned, and reports why if not. Without the permission to ask, it
// is false. The error says why the answer is not known.
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

// Loses reports whether the settings ask to keep a machine on which pods are left, and the group takes it all the same. Then the end of
// the budget is the machine's end, and the drain has a deadline. Loses asks until Auto Scaling answers. The error is ctx's.
func (c *HookClient) Loses(ctx context.Context, a Action) (bool, error) {
	if !c.settings.Load().Abandon {
		return false, nil // The settings do not ask to keep it.
	}
	for failures := 1; ; failures++ {
		keeps, err := c.keeps(ctx, a)
		if err == nil {
			return !keeps, nil
		}
		if ctx.Err() == nil {
			c.failed(a.String(), err)
		}
		if !loop.Await(ctx, nil, pause(failures)) {
			return false, fmt.Errorf("finding out whether the group %s would keep %s: %w", a.Group, a.Instance, ctx.Err())
		}
	}
}

// willNotKeep says in words what the setting on_incomplete = "abandon" means for a group that keeps no machine.
func willNotKeep(group string) string {
	return fmt.Sprintf(`the Auto Scaling group %s does not keep a machine whose hook is abandoned, its instance lifecycle policy has no `+
		`TerminateHookAbandon=retain: out of time, hooks are completed with %s in spite of on_incomplete = "abandon"`, group, proceed)
}
