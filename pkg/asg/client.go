package asg

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"golang.org/x/sync/singleflight"
	"k8s.io/apimachinery/pkg/util/cache"

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
	*reporter
	opts     HookClientOptions
	settings Settings
	sdk      *autoscaling.Client
	asking   singleflight.Group    // requests for the hooks of groups, by the group
	groups   *cache.LRUExpireCache // their answers (groupHooks), by the group
}

// groupHooks is an answer about the hooks of a group.
type groupHooks struct {
	hooks []hook
	err   error
}

const (
	// mostGroups is how many answers are remembered, hooksLife how long, and unknownLife how long a failure is.
	mostGroups             = 4096
	hooksLife, unknownLife = 5 * time.Minute, 3 * time.Second
	// leastTimeout is the shortest timeout that a hook can have, which is used until the hook's own is known. longestWait is how long Auto
	// Scaling waits for a hook at the very most.
	// https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_PutLifecycleHook.html
	leastTimeout, longestWait = 30 * time.Second, 48 * time.Hour
)

// NewHookClient returns a HookClient that has asked nothing yet.
func NewHookClient(opts HookClientOptions, settings Settings) *HookClient {
	// The SDK retries nothing: each caller knows how long its request is worth retrying.
	sdk := autoscaling.NewFromConfig(opts.AWS, func(o *autoscaling.Options) { o.Retryer = aws.NopRetryer{} })
	return &HookClient{reporter: newReporter(opts.Report), opts: opts, settings: settings, sdk: sdk, groups: cache.NewLRUExpireCache(mostGroups)}
}

// rule returns the rule for hooks for launches, or else for terminations.
func (c *HookClient) rule(launch bool) rule {
	if launch {
		return rule{launching, "launches", "fleet.launch_hooks", c.settings.LaunchHooks, c.opts.Queue}
	}
	return rule{terminating, "terminations", "events.asg-termination.hooks", c.settings.Hooks, c.opts.Queue}
}

// choose returns those of a group's hooks that are to be completed, and says in words why.
func (c *HookClient) choose(ctx context.Context, group string, launch bool) (chosen []hook, why string, err error) {
	hooks, err := c.hooks(ctx, group)
	if err != nil {
		return nil, "", err
	}
	chosen, why = choose(group, hooks, c.rule(launch))
	return chosen, why, nil
}

// find returns the hook of an action, and whether it is chosen. The error, which find has reported, says why that is not known. h has a
// timeout in any case.
func (c *HookClient) find(ctx context.Context, a Action) (h hook, chosen bool, err error) {
	h = hook{name: a.Hook, timeout: leastTimeout}
	if !a.Launch && !c.settings.Complete {
		return h, false, nil
	}
	all, why, err := c.choose(ctx, a.Group, a.Launch)
	if err != nil {
		if ctx.Err() == nil {
			c.failed("asking for the lifecycle hooks of the Auto Scaling group "+a.Group, err)
		}
		return h, false, err
	}
	c.say(Found, "%s", why)
	if i := slices.IndexFunc(all, func(h hook) bool { return h.name == a.Hook }); i >= 0 {
		return all[i], true, nil
	}
	return h, false, nil
}

// hooks returns the hooks of a group, as remembered or by a request. Callers that ask for one group at the same time share the request.
func (c *HookClient) hooks(ctx context.Context, group string) ([]hook, error) {
	answer := c.asking.DoChan(group, func() (any, error) {
		if known, found := c.groups.Get(group); found {
			return known, nil
		}
		hooks, err := c.describeHooks(context.WithoutCancel(ctx), group) // Others may still wait for it.
		life := hooksLife
		if err != nil {
			life = role.Spread(unknownLife)
		}
		c.groups.Add(group, groupHooks{hooks, err}, life)
		return groupHooks{hooks, err}, nil
	})
	select {
	case got := <-answer:
		known := got.Val.(groupHooks)
		return known.hooks, known.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Hold sends heartbeats for an action whose hook is chosen: three in each timeout of the hook. It also sends them while it is not known
// whether the hook is chosen, as a heartbeat does no harm. It returns when ctx ends, or the hook turns out not to be chosen. It also returns
// when Auto Scaling says that nothing waits, or IAM refuses. What fails is reported.
func (c *HookClient) Hold(ctx context.Context, a Action) {
	for failures := 0; ; {
		h, chosen, err := c.find(ctx, a)
		if err == nil && !chosen || unpermitted(err) {
			return
		}
		err = c.heartbeat(ctx, a)
		wait := h.timeout / 3 // Two heartbeats may get lost without harm.
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, errNothingWaits):
			c.say(Completed, "%s does not wait any more", a)
			return
		case err != nil:
			c.failed("holding the machine by "+a.String(), err)
			failures++
			wait = min(wait, role.Pause(failures, firstPause, longestPause))
		default:
			failures = 0
		}
		if unpermitted(err) || !loop.Await(ctx, nil, wait) {
			return
		}
	}
}

// Complete completes an action, so that the group need not wait for the hook's timeout. It does nothing if the hook is not chosen, or if
// the outcome of a drain is not final. It retries until it succeeds, IAM refuses, or the group does not wait any more. An action for a launch
// is completed whatever the outcome. Everything is reported; the only error is ctx's.
func (c *HookClient) Complete(ctx context.Context, a Action, outcome event.Outcome) error {
	if !a.Launch && !final(outcome) {
		return nil // The work that the hook waits for is not done.
	}
	result := Continue
	if outcome == event.OutOfTime && !a.Back && c.settings.Abandon {
		result = Abandon
	}
	began := time.Now()
	for failures := 1; ; failures++ {
		_, chosen, err := c.find(ctx, a)
		if chosen {
			err = c.end(ctx, a, result)
		}
		switch {
		case err == nil && chosen:
			c.say(Completed, "completed %s with %s", a, strings.ToUpper(string(result)))
			return nil
		case errors.Is(err, errNothingWaits):
			c.say(Completed, "%s does not wait any more", a)
			return nil
		case err == nil: // Another program completes the hook.
			return nil
		case chosen && ctx.Err() == nil: // Otherwise find has reported the error.
			c.failed("completing "+a.String(), err)
		}
		if unpermitted(err) || time.Since(began) > longestWait {
			return nil // The hook is left to its timeout.
		}
		if !loop.Await(ctx, nil, role.Pause(failures, firstPause, longestPause)) {
			return fmt.Errorf("completing %s: %w", a, ctx.Err())
		}
	}
}

// final reports whether hooks are completed after an outcome.
func final(outcome event.Outcome) bool { return outcome == event.Drained || outcome == event.OutOfTime }
