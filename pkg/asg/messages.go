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

// Action is one lifecycle action that a message tells of: a group waits at a hook for what is done about an instance.
type Action struct {
	Group, Hook, Instance string
	// Token names the action, so that no later one of the same instance is meant; empty where the message does not tell.
	Token string
	// Launch tells that the group waits until the instance may go into service, not for its end, and Back that it goes back to a warm
	// pool.
	Launch, Back bool
	// Since is when the waiting began; zero if that is not known.
	Since time.Time
}

func (a Action) String() string {
	return fmt.Sprintf("the lifecycle hook %s of the Auto Scaling group %s, for %s", a.Hook, a.Group, a.Instance)
}

// ToldOptions say how Auto Scaling is spoken to.
type ToldOptions struct {
	AWS aws.Config
	// Queue is the queue that the messages come from, as its ARN has it after the partition, such as
	// ":sqs:eu-central-1:123456789012:nth-queue": a hook that notifies it is ours. Empty if there is none.
	Queue string
	// Tell is called with what people should know, from several goroutines. It must not block.
	Tell func(HookReport)
	// Requested, if set, is told of each request about a hook that waits, once it has ended. It must not block.
	Requested func(Request, Answer)
}

// HookClient holds and completes the lifecycle actions that messages tell of, of any instance, if their hooks are ours by the settings. Nothing
// has to be found out for that but the groups' hooks. Its methods may be called from several goroutines.
type HookClient struct {
	opts     ToldOptions
	sdk      *autoscaling.Client
	settings atomic.Pointer[Settings]

	mu    sync.Mutex
	known map[string]*groupHooks
	said  map[string]bool // what was found
}

// groupHooks are a group's hooks, as far as they are known, and until when they need not, or should not, be asked for again. They
// belong to who has its turn.
type groupHooks struct {
	turn     chan struct{} // has room for one
	hooks    []hook
	err      error // why they are not known
	failures int
	until    time.Time
}

const (
	// hooksLife is how long it is believed that a group's hooks are as they were.
	hooksLife = 5 * time.Minute
	// leastTimeout is the shortest that a hook can have, and stands for one that is not known yet; shortTimeout stands for
	// one that may not be asked for, or is not there.
	leastTimeout = 30 * time.Second
	shortTimeout = 3 * time.Minute
)

// NewTold returns a HookClient that has asked nothing yet.
func NewTold(opts ToldOptions, settings Settings) *HookClient {
	t := &HookClient{opts: opts, sdk: newClient(opts.AWS), known: map[string]*groupHooks{}, said: map[string]bool{}}
	t.Use(settings)
	return t
}

// Use replaces the settings.
func (t *HookClient) Use(s Settings) { t.settings.Store(&s) }

func (t *HookClient) service(a Action) *service {
	s := &service{sdk: t.sdk, instance: a.Instance, requested: t.opts.Requested}
	if a.Token != "" {
		s.token = &a.Token
	}
	return s
}

// rule is that for the hooks of an action's transition.
func (t *HookClient) rule(a Action) rule {
	settings := t.settings.Load()
	if a.Launch {
		return rule{transition: launching, named: settings.LaunchHooks, queue: t.opts.Queue}
	}
	return rule{transition: terminating, named: settings.Hooks, queue: t.opts.Queue}
}

// settled tells whether an action is ours as far as the settings alone can tell.
func (t *HookClient) settled(a Action) (ours, known bool) {
	if !a.Launch && !t.settings.Load().Complete {
		return false, true
	}
	named := t.rule(a).named
	return slices.Contains(named, a.Hook), len(named) > 0
}

// ours tells whether an action is ours, by the hooks that its group has.
func (t *HookClient) ours(a Action, hooks []hook) bool {
	if ours, known := t.settled(a); known {
		return ours
	}
	chosen, why := choose(a.Group, hooks, t.rule(a))
	t.once(why)
	return slices.ContainsFunc(chosen, func(h hook) bool { return h.name == a.Hook })
}

// Hold sends heartbeats for an action that is ours, from the time that its hook leaves to its global limit, until ctx ends or nothing
// is left to be held. Whose the hook is, and what its timeout is, is asked beside that: until it is known, it is taken to be ours, and the
// shortest that there is. A heartbeat takes nothing from anybody.
func (t *HookClient) Hold(ctx context.Context, a Action) {
	if ours, known := t.settled(a); known && !ours {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	var asking sync.WaitGroup
	defer asking.Wait()
	defer cancel()
	s := t.service(a)
	now := time.Now()
	began := now.Add(min(a.Since.Sub(now.Round(0)), 0)) // It has begun, whatever the clock here says.
	held := &action{hook: hook{name: a.Hook, timeout: leastTimeout, global: longestGlobal}, active: true}
	held.begin(began, now)
	held.next = latest(held.until.Add(-held.timeout+held.interval()), now.Add(firstPause))
	found := make(chan learned)
	asking.Go(func() { t.learn(ctx, s, a, found) })
	told := ""
	for !held.over && !held.next.IsZero() {
		timer := time.NewTimer(time.Until(held.next))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case is := <-found:
			timer.Stop()
			if is.others {
				return
			}
			held.learn(is.hook, began, time.Now())
		case <-timer.C:
			err := s.heartbeat(ctx, a.Group, a.Hook)
			if ctx.Err() != nil {
				return
			}
			told = t.trouble(a, err, told)
			held.beaten(time.Now(), err)
		}
	}
}

// learned is what was found out about an action's hook. others tells that it is somebody else's.
type learned struct {
	hook
	others bool
}

// Complete ends the waiting for an action that is ours with the result that the outcome calls for, if it calls for one, and repeats that until
// it holds or the hook's own time is over: nobody waits any more then. A launch has no outcome. The error is ctx's.
func (t *HookClient) Complete(ctx context.Context, a Action, outcome event.Outcome) error {
	s, began, told := t.service(a), time.Now(), ""
	held := &action{active: true}
	held.release(began)
	for !held.over {
		if !role.Sleep(ctx, time.Until(held.next)) {
			return fmt.Errorf("completing %s: %w", a, ctx.Err())
		}
		err := t.end(ctx, s, a, outcome, held)
		if ctx.Err() != nil || held.over {
			continue
		}
		told = t.trouble(a, err, told)
		if !time.Now().Before(t.abandonedAt(ctx, s, a, began)) {
			t.tell(Trouble, "%s: it could not be completed before its own time was over, and its default result holds", a)
			return nil
		}
	}
	return nil
}

// end tries once to end the waiting for an action. Nothing is left to be done if held is over then.
func (t *HookClient) end(ctx context.Context, s *service, a Action, outcome event.Outcome, held *action) error {
	ours, known := t.settled(a)
	if !known {
		hooks, again, err := t.hooks(ctx, s, a)
		switch {
		case unpermitted(err) && len(hooks) == 0:
			held.over = true
			_, setting := t.rule(a).words()
			t.tell(Refused, "%s: it is left to its timeout, as it cannot be known whose it is, and %s does not name it", a, setting)
			return nil
		case err != nil && len(hooks) == 0:
			held.next = again
			return nil // It is told where it was asked.
		}
		ours = t.ours(a, hooks)
	}
	if held.over = !ours; held.over {
		return nil
	}
	result, err := t.result(ctx, s, a, outcome)
	if result == "" {
		held.failures++
		held.over, held.next = err == nil, time.Now().Add(pause(held.failures))
		return err
	}
	err = s.complete(ctx, a.Group, a.Hook, result)
	held.completed(time.Now(), err)
	switch {
	case err != nil:
	case result == abandon:
		t.tell(Completed, "abandoned %s: pods are left, and the group keeps the machine", a)
	case a.Launch:
		t.tell(Completed, "completed %s: its node is Ready", a)
	default:
		t.tell(Completed, "completed %s: the machine may go", a)
	}
	return err
}

// result is that with which an action is completed; empty if it is not, or if that could not be found out yet.
func (t *HookClient) result(ctx context.Context, s *service, a Action, outcome event.Outcome) (string, error) {
	if a.Launch {
		return proceed, nil
	}
	result, why, err := s.result(ctx, a.Group, outcome, t.settings.Load().Abandon && !a.Back)
	switch {
	case result == "":
		return "", err
	case err != nil:
		t.once(fmt.Sprintf("%s; %s", err, without(err)))
	case why != "":
		t.once(why)
	}
	return result, nil
}

// abandonedAt is when Auto Scaling no longer waits for an action whose last heartbeat was at lastHeld: the hook's heartbeat timeout after
// it, and no later than its global timeout after the action began.
func (t *HookClient) abandonedAt(ctx context.Context, s *service, a Action, lastHeld time.Time) time.Time {
	is := hook{timeout: longestTimeout, global: longestGlobal}
	hooks, _, _ := t.hooks(ctx, s, a) // What is not known has the longest times.
	if i := slices.IndexFunc(hooks, func(h hook) bool { return h.name == a.Hook }); i >= 0 {
		is = hooks[i]
	}
	abandoned := lastHeld.Add(is.timeout)
	if a.Since.IsZero() {
		return abandoned
	}
	// Since is a message's, by the wall clock; what it is compared with is by the monotonic one.
	end := time.Now().Add(time.Until(a.Since.Add(is.global)))
	if end.Before(abandoned) && end.After(lastHeld) {
		return end
	}
	return abandoned
}

// Loses tells whether the group takes the machine when the time for an action is over and pods are left, although people would have it
// kept. It asks until that is known. The error is ctx's.
func (t *HookClient) Loses(ctx context.Context, a Action) (bool, error) {
	if !t.settings.Load().Abandon {
		return false, nil
	}
	if a.Back {
		return true, nil
	}
	s, told := t.service(a), ""
	for failures := 1; ; failures++ {
		keeps, err := s.retains(ctx, a.Group)
		switch {
		case err == nil && !keeps:
			t.once(willNotKeep(a.Group))
			return true, nil
		case err == nil:
			return false, nil
		case unpermitted(err):
			t.once(fmt.Sprintf("%s; %s", err, without(err)))
			return true, nil
		case ctx.Err() == nil:
			told = t.trouble(a, err, told)
		}
		if !role.Sleep(ctx, pause(failures)) {
			return false, fmt.Errorf("finding out whether the group %s would keep %s: %w", a.Group, a.Instance, ctx.Err())
		}
	}
}

func (t *HookClient) tell(what What, format string, args ...any) {
	t.opts.Tell(HookReport{What: what, Text: fmt.Sprintf(format, args...)})
}

// once tells what was found, if it was not told before.
func (t *HookClient) once(text string) {
	t.mu.Lock()
	said := t.said[text]
	t.said[text] = true
	t.mu.Unlock()
	if !said {
		t.tell(Found, "%s", text)
	}
}

// trouble tells why a request about an action failed, unless that was what was told last. It returns what was.
func (t *HookClient) trouble(a Action, err error, last string) string {
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
	t.tell(what, "%s: %s", a, err)
	return err.Error()
}

// learn asks for the action's hook with its timeouts until they are known, and tells it.
func (t *HookClient) learn(ctx context.Context, s *service, a Action, tell chan<- learned) {
	for told := false; ; {
		hooks, again, err := t.hooks(ctx, s, a)
		is := learned{hook: hook{name: a.Hook, timeout: shortTimeout, global: longestGlobal}}
		if i := slices.IndexFunc(hooks, func(h hook) bool { return h.name == a.Hook }); i >= 0 {
			is.hook = hooks[i]
		}
		is.others = err == nil && !t.ours(a, hooks)
		if err == nil || unpermitted(err) && !told {
			select {
			case tell <- is:
				told = true
			case <-ctx.Done():
			}
		}
		if err == nil || !role.Sleep(ctx, time.Until(again)) {
			return
		}
	}
}

// hooks returns the hooks of the action's group. Where they cannot be asked for, it says when they may be again, to all who ask for the
// same group. Those who do meanwhile wait for the answer.
func (t *HookClient) hooks(ctx context.Context, s *service, a Action) (hooks []hook, again time.Time, err error) {
	g := t.group(a.Group)
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
		return nil, time.Time{}, ctx.Err() // It says nothing of the group.
	case err == nil || errors.Is(err, errNothingWaits): // There is no such group any more.
		g.hooks, g.err, g.failures, g.until = hooks, nil, 0, now.Add(hooksLife)
	case unpermitted(err):
		g.err, g.until = err, now.Add(role.Spread(longestPause))
		t.trouble(a, err, before)
	default:
		g.failures++
		g.err, g.until = err, now.Add(pause(g.failures))
		t.trouble(a, err, before)
	}
	return g.hooks, g.until, g.err
}

// group returns what is known of a group.
func (t *HookClient) group(name string) *groupHooks {
	t.mu.Lock()
	defer t.mu.Unlock()
	g, there := t.known[name]
	if !there {
		g = &groupHooks{turn: make(chan struct{}, 1)}
		t.known[name] = g
	}
	return g
}

func latest(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// action is one hook that waits, or will wait, for this instance. Times have a monotonic reading.
type action struct {
	hook
	// until is when Auto Scaling stops to wait unless it hears a heartbeat, and end when it stops whatever it hears. They
	// are zero before the waiting has begun.
	until, end time.Time
	// next is when a heartbeat is due; zero if none is.
	next time.Time
	// active tells that Auto Scaling has confirmed the waiting; strange counts its answers in a row that nothing waits.
	active  bool
	strange int
	// refused tells that heartbeats are not allowed, and over that nothing is left to be done for the hook.
	refused, over bool
	failures      int
}

// believed is how many times Auto Scaling must say that nothing waits before that is believed of a hook which it has
// never confirmed: what the instance's state says and what a hook waits for need not become true at once.
const believed = 3

// interval is the time between two heartbeats: two may get lost without harm.
func (a *action) interval() time.Duration { return a.timeout / 3 }

// begin takes in that the waiting has begun, at since or later. A heartbeat is due at once: from then on it is known
// how long Auto Scaling waits.
func (a *action) begin(since, now time.Time) {
	a.until, a.end, a.next = since.Add(a.timeout), since.Add(a.global), now
}

// learn takes in the hook of an action that began then, of which only the name was known. What was heard of it last still counts.
func (a *action) learn(h hook, began, now time.Time) {
	last := a.until.Add(-a.timeout)
	a.hook, a.until, a.end = h, last.Add(h.timeout), began.Add(h.global)
	if !a.refused {
		a.next = latest(last.Add(a.interval()), now)
	}
}

// beaten takes in what became of a heartbeat.
func (a *action) beaten(now time.Time, err error) {
	var refused refusedError
	switch {
	case err == nil:
		a.active, a.strange, a.failures = true, 0, 0
		a.until, a.next = now.Add(a.timeout), now.Add(a.interval())
		if !a.end.After(now) { // It waits all the same: when the waiting began was told by a clock that is wrong.
			a.end = now.Add(a.global)
		}
	case errors.Is(err, errNothingWaits):
		a.nothing(now)
	case errors.As(err, &refused):
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
func (a *action) release(now time.Time) { a.strange, a.failures, a.next = 0, 0, now }

// completed takes in what became of a completion.
func (a *action) completed(now time.Time, err error) {
	var refused refusedError
	switch {
	case err == nil:
		a.over = true
	case errors.Is(err, errNothingWaits):
		a.nothing(now)
	case errors.As(err, &refused):
		a.next = now.Add(role.Spread(longestPause))
	default:
		a.failures++
		a.next = now.Add(pause(a.failures))
	}
}

// nothing takes in that Auto Scaling says that nothing waits.
func (a *action) nothing(now time.Time) {
	a.strange++
	a.over = a.active || a.strange >= believed
	a.next = now.Add(pause(a.strange + 1))
}

// limit is when Auto Scaling takes the machine: at its end where heartbeats get through, sooner where they do not. Zero
// if that is unknown.
func (a *action) limit(now time.Time) time.Time {
	switch {
	case a.over || a.end.IsZero():
		return time.Time{}
	case a.until.Before(now): // It waits longer than is known here: an earlier process has heard of it since.
	case a.until.Before(a.end) && (a.refused || a.until.Sub(now) < a.interval()):
		return a.until
	}
	return a.end
}

// The pauses before what failed is tried again: they grow from the first to the longest.
const (
	firstPause   = time.Second
	longestPause = time.Minute
)

func pause(failures int) time.Duration {
	return role.Pause(failures, firstPause, longestPause)
}
