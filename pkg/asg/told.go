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
	Tell func(News)
	// Requested, if set, is told of each request about a hook that waits, once it has ended. It must not block.
	Requested func(Request, Answer)
}

// Told holds and completes the lifecycle actions that messages tell of, of any instance, if their hooks are ours by the settings. Nothing
// has to be found out for that but the groups' hooks. Its methods may be called from several goroutines.
type Told struct {
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

// NewTold returns a Told that has asked nothing yet.
func NewTold(opts ToldOptions, settings Settings) *Told {
	t := &Told{opts: opts, sdk: newClient(opts.AWS), known: map[string]*groupHooks{}, said: map[string]bool{}}
	t.Use(settings)
	return t
}

// Use replaces the settings.
func (t *Told) Use(s Settings) { t.settings.Store(&s) }

func (t *Told) service(a Action) *service {
	s := &service{sdk: t.sdk, instance: a.Instance, requested: t.opts.Requested}
	if a.Token != "" {
		s.token = &a.Token
	}
	return s
}

// rule is that for the hooks of an action's transition.
func (t *Told) rule(a Action) rule {
	settings := t.settings.Load()
	if a.Launch {
		return rule{transition: launching, named: settings.LaunchHooks, queue: t.opts.Queue}
	}
	return rule{transition: terminating, named: settings.Hooks, queue: t.opts.Queue}
}

// settled tells whether an action is ours as far as the settings alone can tell.
func (t *Told) settled(a Action) (ours, known bool) {
	if !a.Launch && !t.settings.Load().Complete {
		return false, true
	}
	named := t.rule(a).named
	return slices.Contains(named, a.Hook), len(named) > 0
}

// ours tells whether an action is ours, by the hooks that its group has.
func (t *Told) ours(a Action, hooks []hook) bool {
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
func (t *Told) Hold(ctx context.Context, a Action) {
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
func (t *Told) Complete(ctx context.Context, a Action, outcome event.Outcome) error {
	s, began, told := t.service(a), time.Now(), ""
	held := &action{active: true}
	held.release(began)
	for !held.over {
		if !wait(ctx, held.next) {
			return fmt.Errorf("completing %s: %w", a, ctx.Err())
		}
		err := t.end(ctx, s, a, outcome, held)
		if ctx.Err() != nil || held.over {
			continue
		}
		told = t.trouble(a, err, told)
		if !time.Now().Before(t.limit(ctx, s, a, began)) {
			t.tell(Trouble, "%s: it could not be completed before its own time was over, and its default result holds", a)
			return nil
		}
	}
	return nil
}

// end tries once to end the waiting for an action. Nothing is left to be done if held is over then.
func (t *Told) end(ctx context.Context, s *service, a Action, outcome event.Outcome, held *action) error {
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
func (t *Told) result(ctx context.Context, s *service, a Action, outcome event.Outcome) (string, error) {
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

// limit is when Auto Scaling has stopped to wait for an action that is not held any more since then.
func (t *Told) limit(ctx context.Context, s *service, a Action, then time.Time) time.Time {
	is := hook{timeout: longestTimeout, global: longestGlobal}
	hooks, _, _ := t.hooks(ctx, s, a) // What is not known has the longest times.
	if i := slices.IndexFunc(hooks, func(h hook) bool { return h.name == a.Hook }); i >= 0 {
		is = hooks[i]
	}
	limit := then.Add(is.timeout)
	if a.Since.IsZero() {
		return limit
	}
	end := time.Now().Add(time.Until(a.Since.Add(is.global)))
	if end.Before(limit) && end.After(then) {
		return end
	}
	return limit
}

// Loses tells whether the group takes the machine when the time for an action is over and pods are left, although people would have it
// kept. It asks until that is known. The error is ctx's.
func (t *Told) Loses(ctx context.Context, a Action) (bool, error) {
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
		if !wait(ctx, time.Now().Add(pause(failures))) {
			return false, fmt.Errorf("finding out whether the group %s would keep %s: %w", a.Group, a.Instance, ctx.Err())
		}
	}
}

func (t *Told) tell(what What, format string, args ...any) {
	t.opts.Tell(News{What: what, Text: fmt.Sprintf(format, args...)})
}

// once tells what was found, if it was not told before.
func (t *Told) once(text string) {
	t.mu.Lock()
	said := t.said[text]
	t.said[text] = true
	t.mu.Unlock()
	if !said {
		t.tell(Found, "%s", text)
	}
}

// trouble tells why a request about an action failed, unless that was what was told last. It returns what was.
func (t *Told) trouble(a Action, err error, last string) string {
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
func (t *Told) learn(ctx context.Context, s *service, a Action, tell chan<- learned) {
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
		if err == nil || !wait(ctx, again) {
			return
		}
	}
}

// hooks returns the hooks of the action's group. Where they cannot be asked for, it says when they may be again, to all who ask for the
// same group. Those who do meanwhile wait for the answer.
func (t *Told) hooks(ctx context.Context, s *service, a Action) (hooks []hook, again time.Time, err error) {
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
func (t *Told) group(name string) *groupHooks {
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

// wait waits until a time, and tells whether ctx still goes on.
func wait(ctx context.Context, until time.Time) bool {
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
	return ctx.Err() == nil
}
