package asg

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
	// Token is Auto Scaling's ID of the action. With it, a request does not affect a later action for the same instance. Empty if not known.
	Token string
	// Launch is set if the group waits before it puts the instance into service; otherwise the action is a termination. Back is set if a
	// termination does not end the instance: the instance goes back to a warm pool, or gets another root volume.
	Launch, Back bool
}

// String names the action in messages.
func (a Action) String() string {
	return fmt.Sprintf("the lifecycle hook %q of the Auto Scaling group %q for %s", a.Hook, a.Group, a.Instance)
}

// token returns Token as the SDK takes it; nil if Token is empty.
func (a Action) token() *string {
	if a.Token == "" {
		return nil
	}
	return &a.Token
}

// HookClientOptions are those of a HookClient.
type HookClientOptions struct {
	AWS aws.Config
	// Queue is the part of the ARN of nth-queue's queue after the partition, such as ":sqs:eu-central-1:123456789012:nth-queue". A hook that
	// notifies this queue is chosen. Empty for nth.
	Queue string
	// Report is called with each finding, from several goroutines. It must not block.
	Report func(HookReport)
	// Requested, if set, is called with the result of each heartbeat and completion. It must not block.
	Requested func(Request, Answer)
}

// HookClient holds and completes lifecycle actions of any instance, but only at hooks that choose chooses. For that, it asks Auto Scaling for
// the hooks of a group, and caches the answer. Its methods may be called from several goroutines.
type HookClient struct {
	*reporter
	opts     HookClientOptions
	settings Settings
	sdk      *autoscaling.Client
	asking   singleflight.Group    // requests for the hooks of a group, by the group's name
	groups   *cache.LRUExpireCache // their results (groupHooks), by the group's name
}

// groupHooks is the result of a request for the hooks of a group.
type groupHooks struct {
	hooks []hook
	err   error
}

const (
	// mostGroups is how many results are cached. hooksLife is for how long, and failureLife for how long if the request has failed.
	mostGroups             = 4096
	hooksLife, failureLife = 5 * time.Minute, 3 * time.Second
	// leastTimeout is the shortest timeout that a hook can have: nth assumes it while the hook's timeout is not known. longestWait is the
	// longest time that Auto Scaling waits at a hook, whatever the heartbeats.
	// https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_PutLifecycleHook.html
	leastTimeout, longestWait = 30 * time.Second, 48 * time.Hour
)

// NewHookClient returns a HookClient. It makes no request.
func NewHookClient(opts HookClientOptions, settings Settings) *HookClient {
	// The SDK must not retry: Hold, Complete and the Keeper do, each with its own pauses.
	sdk := autoscaling.NewFromConfig(opts.AWS, func(o *autoscaling.Options) { o.Retryer = aws.NopRetryer{} })
	return &HookClient{reporter: newReporter(opts.Report), opts: opts, settings: settings, sdk: sdk, groups: cache.NewLRUExpireCache(mostGroups)}
}

// rule returns the rule for the hooks for launches if launch is true, and for terminations otherwise.
func (c *HookClient) rule(launch bool) rule {
	if launch {
		return rule{transition: launching, kind: "launches", until: "the node is Ready", setting: "fleet.launch_hooks", named: c.settings.LaunchHooks}
	}
	return rule{transition: terminating, kind: "terminations", until: "the drain ends", setting: "events.asg-termination.hooks", named: c.settings.Hooks}
}

// choose asks for a group's hooks and returns those that the function choose chooses, with its sentence for the log.
func (c *HookClient) choose(ctx context.Context, group string, launch bool) (chosen []hook, why string, err error) {
	hooks, err := c.hooks(ctx, group)
	if err != nil {
		return nil, "", err
	}
	chosen, why = choose(group, hooks, c.rule(launch), c.opts.Queue)
	return chosen, why, nil
}

// find returns the hook of an action, and whether nth is to complete the hook (chosen). The error says why that is not known; find has reported
// it unless ctx has ended, and chosen is false then. h has a timeout in any case, as Hold sends heartbeats even then: leastTimeout if the hook's own is
// not known.
func (c *HookClient) find(ctx context.Context, a Action) (h hook, chosen bool, err error) {
	h = hook{name: a.Hook, timeout: leastTimeout}
	if !a.Launch && !c.settings.Complete {
		return h, false, nil // The settings leave all hooks for terminations to their timeouts.
	}
	hooks, why, err := c.choose(ctx, a.Group, a.Launch)
	if err != nil {
		if ctx.Err() == nil {
			c.sayFailed(fmt.Sprintf("list the lifecycle hooks of the Auto Scaling group %q", a.Group), err)
		}
		return h, false, err
	}
	c.say(Found, "%s", why)
	if i := slices.IndexFunc(hooks, func(h hook) bool { return h.name == a.Hook }); i >= 0 {
		return hooks[i], true, nil
	}
	return h, false, nil
}

// hooks returns the hooks of a group, from the cache or by a request. Callers that ask for the same group at the same time share the request.
func (c *HookClient) hooks(ctx context.Context, group string) ([]hook, error) {
	answer := c.asking.DoChan(group, func() (any, error) {
		if known, found := c.groups.Get(group); found {
			return known, nil
		}
		// The end of ctx must not cancel the request: other callers may wait for the result.
		hooks, err := c.describeHooks(context.WithoutCancel(ctx), group)
		life := hooksLife
		if err != nil {
			life = role.Spread(failureLife)
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

// Hold sends heartbeats for an action, three in each timeout of the hook, until ctx ends. It returns earlier if the hook is not chosen, Auto
// Scaling does not wait any more, or IAM refuses a request. While it is not known whether the hook is chosen, Hold sends heartbeats, as they do
// no harm. It reports what fails.
func (c *HookClient) Hold(ctx context.Context, a Action) {
	for failures := 0; ; {
		h, chosen, err := c.find(ctx, a)
		notChosen := err == nil && !chosen
		if notChosen || unpermitted(err) {
			return
		}
		err = c.heartbeat(ctx, a)
		wait := h.timeout / 3 // Two heartbeats may get lost without harm.
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, errNoAction):
			c.say(Completed, "Auto Scaling no longer waits for %s, which has timed out or is completed", a)
			return
		case err != nil:
			c.sayFailed("send a heartbeat for "+a.String(), err)
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

// Complete completes an action, so that the group need not wait for the hook's timeout. outcome is that of the instance's drain; for a launch it
// has no effect. Complete does nothing if the hook is not chosen, or the outcome is not final. After a failure it tries again, until it succeeds,
// IAM refuses, or the group does not wait any more. It reports all this. It returns an error only if ctx ends first.
func (c *HookClient) Complete(ctx context.Context, a Action, outcome event.Outcome) error {
	if !a.Launch && !final(outcome) {
		return nil // The drain that the hook waits for is not done.
	}
	result, said := Continue, "CONTINUE"
	if outcome == event.OutOfTime && !a.Back && c.settings.Abandon { // ABANDON may keep an instance, but one that goes back is kept anyway.
		result, said = Abandon, "ABANDON, because the drain ran out of time"
	}
	began := time.Now()
	for failures := 1; ; failures++ {
		_, chosen, err := c.find(ctx, a)
		if err == nil && !chosen {
			return nil // Another program completes the hook.
		}
		if chosen {
			err = c.end(ctx, a, result)
		}
		switch {
		case err == nil:
			c.say(Completed, "completed %s with %s", a, said)
			return nil
		case errors.Is(err, errNoAction):
			c.say(Completed, "Auto Scaling no longer waits for %s, which has timed out or is completed", a)
			return nil
		case chosen && ctx.Err() == nil: // If the hook is not chosen, the error is find's, which has reported it.
			c.sayFailed("complete "+a.String(), err)
		}
		if unpermitted(err) || time.Since(began) > longestWait {
			return nil // The hook is left to its timeout.
		}
		if !loop.Await(ctx, nil, role.Pause(failures, firstPause, longestPause)) {
			return fmt.Errorf("completing %s: %w", a, ctx.Err())
		}
	}
}

// final reports whether the outcome of a drain is one after which hooks are completed.
func final(outcome event.Outcome) bool { return outcome == event.Drained || outcome == event.OutOfTime }
