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

// Action is one lifecycle action, of which a message tells: a group waits at a hook until something is done about an instance.
type Action struct {
	Group, Hook, Instance string
	// Token identifies the action, so that no later one of the same instance is meant; empty where the message has none.
	Token string
	// Launch is set if the group waits to put the instance into service, and not to end it, and Back if the instance goes back to a warm
	// pool.
	Launch, Back bool
	// Since is when the waiting began; zero if that is not known.
	Since time.Time
}

func (a Action) String() string {
	return fmt.Sprintf("the lifecycle hook %s of the Auto Scaling group %s, for %s", a.Hook, a.Group, a.Instance)
}

// HookClientOptions are those of a HookClient.
type HookClientOptions struct {
	AWS aws.Config
	// Queue is the queue that the messages come from, as its ARN has it after the partition, such as
	// ":sqs:eu-central-1:123456789012:nth-queue": a hook that notifies it is ours. Empty if there is none.
	Queue string
	// Tell is called with what people should know, from several goroutines. It must not block.
	Tell func(HookReport)
	// Requested, if set, is told of each request about a hook that waits, once it has ended. It must not block.
	Requested func(Request, Answer)
}

// HookClient holds and completes the lifecycle actions that messages tell of, of any instance, if their hooks are ours by the settings.
// All that it has to find out for that are the groups' hooks. Its methods may be called from several goroutines.
type HookClient struct {
	opts     HookClientOptions
	sdk      *autoscaling.Client
	settings atomic.Pointer[Settings]
	reporter

	mu    sync.Mutex
	known map[string]*groupHooks
}

// groupHooks are a group's hooks, as far as they are known.
type groupHooks struct {
	turn     chan struct{} // has room for one, who may use what follows
	hooks    []hook
	err      error // why they are not known
	failures int
	until    time.Time // of the next request
}

const (
	// hooksLife is how long a group's hooks are taken to be unchanged.
	hooksLife = 5 * time.Minute
	// leastTimeout is the shortest that a hook can have, and is used until its own is known; shortTimeout is used if
	// asking for it is not allowed, or the hook is not there.
	leastTimeout = 30 * time.Second
	shortTimeout = 3 * time.Minute
)

// NewHookClient returns a HookClient that has asked nothing yet.
func NewHookClient(opts HookClientOptions, settings Settings) *HookClient {
	c := &HookClient{opts: opts, sdk: newClient(opts.AWS), reporter: reporter{report: opts.Tell}, known: map[string]*groupHooks{}}
	c.Use(settings)
	return c
}

// Use replaces the settings.
func (c *HookClient) Use(s Settings) { c.settings.Store(&s) }

func (c *HookClient) service(a Action) *service {
	s := &service{sdk: c.sdk, instance: a.Instance, requested: c.opts.Requested}
	if a.Token != "" {
		s.token = &a.Token
	}
	return s
}

// rule returns the rule for the hooks of an action's transition.
func (c *HookClient) rule(a Action) rule {
	settings := c.settings.Load()
	if a.Launch {
		return rule{transition: launching, named: settings.LaunchHooks, queue: c.opts.Queue}
	}
	return rule{transition: terminating, named: settings.Hooks, queue: c.opts.Queue}
}

// named reports whether an action is ours, if the settings alone decide that.
func (c *HookClient) named(a Action) (ours, known bool) {
	if !a.Launch && !c.settings.Load().Complete {
		return false, true
	}
	names := c.rule(a).named
	return slices.Contains(names, a.Hook), len(names) > 0
}

// ours reports whether an action is ours, by the hooks that its group has.
func (c *HookClient) ours(a Action, hooks []hook) bool {
	if ours, known := c.named(a); known {
		return ours
	}
	chosen, why := choose(a.Group, hooks, c.rule(a))
	c.once(Found, "%s", why)
	return slices.ContainsFunc(chosen, func(h hook) bool { return h.name == a.Hook })
}

// Hold sends heartbeats for an action that is ours, until ctx ends, the hook's global timeout is over, or nothing waits any more.
// It asks meanwhile whether the hook is ours, and for its timeout. Until that is known, it takes the hook for ours, as a heartbeat does
// nobody any harm, and the timeout for the shortest that there is.
func (c *HookClient) Hold(ctx context.Context, a Action) {
	if ours, known := c.named(a); known && !ours {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	var asking sync.WaitGroup
	defer asking.Wait()
	defer cancel()
	s := c.service(a)
	now := time.Now()
	began := now
	if !a.Since.IsZero() {
		began = now.Add(min(a.Since.Sub(now.Round(0)), 0)) // It has begun; if it is later than now, a clock is wrong.
	}
	held := &action{hook: hook{name: a.Hook, timeout: leastTimeout, global: longestGlobal}, active: true}
	held.begin(began, now)
	if a.Since.IsZero() {
		held.until = time.Time{} // It may be about to time out: the first heartbeat does not wait.
	}
	held.next = latest(held.until.Add(-held.timeout+held.interval()), now.Add(firstPause))
	found := make(chan foundHook)
	asking.Go(func() { c.findHook(ctx, s, a, found) })
	told := ""
	for !held.over && !held.next.IsZero() {
		select {
		case <-ctx.Done():
			return
		case is := <-found:
			if is.others {
				return
			}
			held.setHook(is.hook, began, time.Now())
		case <-time.After(time.Until(held.next)):
			err := s.heartbeat(ctx, a.Group, a.Hook)
			if ctx.Err() != nil {
				return
			}
			told = c.trouble(a, err, told)
			held.heartbeatSent(time.Now(), err)
		}
	}
}

// foundHook is an action's hook, and whether it is somebody else's.
type foundHook struct {
	hook
	others bool
}

// Complete completes an action that is ours with the result that the outcome calls for, if it calls for one. It retries until that
// succeeds or the hook's own time is over, when the group does not wait any more. The outcome does not matter for a launch. The error is
// ctx's.
func (c *HookClient) Complete(ctx context.Context, a Action, outcome event.Outcome) error {
	s, began, told := c.service(a), time.Now(), ""
	held := &action{active: true}
	held.release(began)
	for !held.over {
		if !role.Sleep(ctx, time.Until(held.next)) {
			return fmt.Errorf("completing %s: %w", a, ctx.Err())
		}
		err := c.complete(ctx, s, a, outcome, held)
		if ctx.Err() != nil || held.over {
			continue
		}
		told = c.trouble(a, err, told)
		if !time.Now().Before(c.expiry(ctx, s, a, began)) {
			c.tell(Trouble, "%s: it could not be completed before its own time was over, and its default result holds", a)
			return nil
		}
	}
	return nil
}

// complete tries once to complete an action. Nothing is left to be done if held is over then.
func (c *HookClient) complete(ctx context.Context, s *service, a Action, outcome event.Outcome, held *action) error {
	ours, known := c.named(a)
	if !known {
		hooks, again, err := c.hooks(ctx, s, a)
		switch {
		case unpermitted(err) && len(hooks) == 0:
			held.over = true
			setting := wordsFor[c.rule(a).transition].setting
			c.tell(Refused, "%s: it is left to its timeout, as it cannot be known whose it is, and %s does not name it", a, setting)
			return nil
		case err != nil && len(hooks) == 0:
			held.next = again
			return nil // hooks has reported it.
		}
		ours = c.ours(a, hooks)
	}
	if held.over = !ours; held.over {
		return nil
	}
	result, err := c.result(ctx, s, a, outcome)
	if result == "" {
		held.failures++
		held.over, held.next = err == nil, time.Now().Add(pause(held.failures))
		return err
	}
	err = s.complete(ctx, a.Group, a.Hook, result)
	held.completionSent(time.Now(), err)
	switch {
	case err != nil:
	case result == abandon:
		c.tell(Completed, "abandoned %s: pods are left, and the group keeps the machine", a)
	case a.Launch:
		c.tell(Completed, "completed %s: its node is Ready", a)
	default:
		c.tell(Completed, "completed %s: the machine may go", a)
	}
	return err
}

// result returns what an action is completed with; empty if it is not completed, or with an error if that is not known yet.
func (c *HookClient) result(ctx context.Context, s *service, a Action, outcome event.Outcome) (string, error) {
	if a.Launch {
		return proceed, nil
	}
	result, why, err := s.result(ctx, a.Group, outcome, c.settings.Load().Abandon && !a.Back)
	switch {
	case result == "":
		return "", err
	case err != nil:
		c.once(Found, "%s; %s", err, without(err))
	case why != "":
		c.once(Found, "%s", why)
	}
	return result, nil
}

// expiry is when Auto Scaling no longer waits for an action whose last heartbeat was at lastHeld: the hook's heartbeat timeout after
// it, and no later than its global timeout after the action began.
func (c *HookClient) expiry(ctx context.Context, s *service, a Action, lastHeld time.Time) time.Time {
	is := hook{timeout: longestTimeout, global: longestGlobal}
	hooks, _, _ := c.hooks(ctx, s, a) // What is not known has the longest times.
	if i := slices.IndexFunc(hooks, func(h hook) bool { return h.name == a.Hook }); i >= 0 {
		is = hooks[i]
	}
	expiry := lastHeld.Add(is.timeout)
	if a.Since.IsZero() {
		return expiry
	}
	// Since is a message's, by the wall clock; what it is compared with is by the monotonic one.
	end := time.Now().Add(time.Until(a.Since.Add(is.global)))
	if end.Before(expiry) && end.After(lastHeld) {
		return end
	}
	return expiry
}

// Loses reports whether the group takes the machine when the time for an action is over and pods are left, although people want it
// kept. It asks until that is known. The error is ctx's.
func (c *HookClient) Loses(ctx context.Context, a Action) (bool, error) {
	if !c.settings.Load().Abandon {
		return false, nil
	}
	if a.Back {
		return true, nil
	}
	s, told := c.service(a), ""
	for failures := 1; ; failures++ {
		keeps, err := s.retains(ctx, a.Group)
		switch {
		case err == nil && !keeps:
			c.once(Found, "%s", willNotKeep(a.Group))
			return true, nil
		case err == nil:
			return false, nil
		case unpermitted(err):
			c.once(Found, "%s; %s", err, without(err))
			return true, nil
		case ctx.Err() == nil:
			told = c.trouble(a, err, told)
		}
		if !role.Sleep(ctx, pause(failures)) {
			return false, fmt.Errorf("finding out whether the group %s would keep %s: %w", a.Group, a.Instance, ctx.Err())
		}
	}
}

// trouble reports why a request about an action failed, unless that is the last text that was reported. It returns the last text.
func (c *HookClient) trouble(a Action, err error, last string) string {
	if err == nil {
		return ""
	}
	if text := err.Error(); errors.Is(err, errNothingWaits) || text == last {
		return last
	}
	what := Trouble
	if unpermitted(err) {
		what = Refused
	}
	c.tell(what, "%s: %s", a, err)
	return err.Error()
}

// findHook asks for the action's hook until it is known, and sends it. Where asking is not allowed, it sends one with a short timeout
// first.
func (c *HookClient) findHook(ctx context.Context, s *service, a Action, to chan<- foundHook) {
	for sent := false; ; {
		hooks, again, err := c.hooks(ctx, s, a)
		is := foundHook{hook: hook{name: a.Hook, timeout: shortTimeout, global: longestGlobal}}
		if i := slices.IndexFunc(hooks, func(h hook) bool { return h.name == a.Hook }); i >= 0 {
			is.hook = hooks[i]
		}
		is.others = err == nil && !c.ours(a, hooks)
		if err == nil || unpermitted(err) && !sent {
			select {
			case to <- is:
				sent = true
			case <-ctx.Done():
			}
		}
		if err == nil || !role.Sleep(ctx, time.Until(again)) {
			return
		}
	}
}

// hooks returns the hooks of the action's group, from memory for a while. After an error, again is when they are asked for next. Several
// callers for one group share one request.
func (c *HookClient) hooks(ctx context.Context, s *service, a Action) (hooks []hook, again time.Time, err error) {
	g := c.group(a.Group)
	select {
	case g.turn <- struct{}{}:
		defer func() { <-g.turn }()
	case <-ctx.Done():
		return nil, time.Time{}, ctx.Err()
	}
	if time.Now().Before(g.until) {
		return g.hooks, g.until, g.err
	}
	before := ""
	if g.err != nil {
		before = g.err.Error()
	}
	hooks, err = s.hooks(ctx, a.Group)
	switch now := time.Now(); {
	case ctx.Err() != nil:
		return nil, time.Time{}, ctx.Err() // This is no answer about the group.
	case err == nil || errors.Is(err, errNothingWaits): // There is no such group any more.
		g.hooks, g.err, g.failures, g.until = hooks, nil, 0, now.Add(hooksLife)
	case unpermitted(err):
		g.err, g.until = err, now.Add(role.Spread(longestPause))
		c.trouble(a, err, before)
	default:
		g.failures++
		g.err, g.until = err, now.Add(pause(g.failures))
		c.trouble(a, err, before)
	}
	return g.hooks, g.until, g.err
}

// group returns the memory about a group.
func (c *HookClient) group(name string) *groupHooks {
	c.mu.Lock()
	defer c.mu.Unlock()
	g, there := c.known[name]
	if !there {
		g = &groupHooks{turn: make(chan struct{}, 1)}
		c.known[name] = g
	}
	return g
}

func latest(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// action is one hook that waits, or will wait, for an instance. Times have a monotonic reading.
type action struct {
	hook
	// until is when Auto Scaling stops waiting unless there is a heartbeat, and end when it stops in any case. They
	// are zero before the waiting has begun.
	until, end time.Time
	// next is when the next request is due; zero if none is.
	next time.Time
	// active is set once Auto Scaling has confirmed the waiting; denials counts its answers in a row that nothing waits.
	active  bool
	denials int
	// refused is set if heartbeats are not allowed, and over if nothing is left to be done for the hook.
	refused, over bool
	failures      int
}

// maxDenials is how many times Auto Scaling must say that nothing waits before that is believed of a hook which it has
// never confirmed: the hook may begin to wait a moment after the instance's state says so.
const maxDenials = 3

// interval is the time between two heartbeats: two may get lost without harm.
func (a *action) interval() time.Duration { return a.timeout / 3 }

// begin is called when the hook waits, since then or for a while. A heartbeat is due at once: from that on it is known
// how long Auto Scaling waits.
func (a *action) begin(since, now time.Time) {
	a.until, a.end, a.next = since.Add(a.timeout), since.Add(a.global), now
}

// setHook sets the hook of an action that began then, of which only the name was known. The last heartbeat still counts.
func (a *action) setHook(h hook, began, now time.Time) {
	last := a.until.Add(-a.timeout)
	a.hook, a.until, a.end = h, last.Add(h.timeout), began.Add(h.global)
	if !a.refused {
		a.next = latest(last.Add(a.interval()), now)
	}
}

// heartbeatSent is called with the result of a heartbeat.
func (a *action) heartbeatSent(now time.Time, err error) {
	_, refused := errors.AsType[refusedError](err)
	switch {
	case err == nil:
		a.active, a.denials, a.failures = true, 0, 0
		a.until, a.next = now.Add(a.timeout), now.Add(a.interval())
		if !a.end.After(now) { // It still waits, so the time at which the waiting began came from a clock that is wrong.
			a.end = now.Add(a.global)
		}
	case errors.Is(err, errNothingWaits):
		a.denied(now)
	case refused:
		a.refused, a.next = true, time.Time{}
	default:
		a.failures++
		a.next = now.Add(min(pause(a.failures), a.interval()))
	}
	if !a.next.Before(a.end) {
		a.next = time.Time{}
	}
}

// release makes the completion due.
func (a *action) release(now time.Time) { a.denials, a.failures, a.next = 0, 0, now }

// completionSent is called with the result of a completion.
func (a *action) completionSent(now time.Time, err error) {
	_, refused := errors.AsType[refusedError](err)
	switch {
	case err == nil:
		a.over = true
	case errors.Is(err, errNothingWaits):
		a.denied(now)
	case refused:
		a.next = now.Add(role.Spread(longestPause))
	default:
		a.failures++
		a.next = now.Add(pause(a.failures))
	}
}

// denied is called when Auto Scaling says that nothing waits.
func (a *action) denied(now time.Time) {
	a.denials++
	a.over = a.active || a.denials >= maxDenials
	a.next = now.Add(pause(a.denials + 1))
}

// limit is when the hook stops holding the machine: at the end where heartbeats get through, sooner where they do not. Zero
// if that is unknown.
func (a *action) limit(now time.Time) time.Time {
	switch {
	case a.over || a.end.IsZero():
		return time.Time{}
	case a.until.Before(now): // It still waits: an earlier process has sent a heartbeat.
	case a.until.Before(a.end) && (a.refused || a.until.Sub(now) < a.interval()):
		return a.until
	}
	return a.end
}

// firstPause and longestPause bound the backoff.
const (
	firstPause   = time.Second
	longestPause = time.Minute
)

// pause is the backoff after so many failures in a row.
func pause(failures int) time.Duration {
	return role.Pause(failures, firstPause, longestPause)
}
