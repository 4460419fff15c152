package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"

	"github.com/nth-project/nth/pkg/role"
)

// Action is one lifecycle action that a message tells of: a group waits at a hook for what is done about an instance.
type Action struct {
	Group, Hook, Instance string
	// Since is when the waiting began.
	Since time.Time
}

// Told holds and completes the lifecycle actions that messages tell of, of any instance. Nothing has to be found out for
// that but the hooks' timeouts. Its methods may be called from several goroutines.
type Told struct {
	sdk *autoscaling.Client
	// trouble hears why a request failed, each time, and requested what came of each about a hook that waits.
	trouble   func(Action, error)
	requested func(Request, Answer)

	mu    sync.Mutex
	known map[string]*groupHooks
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

// NewTold returns a Told that asks Auto Scaling as the configuration says. trouble hears why a request failed, and requested, which
// may be nil, what came of each about a hook that waits. Both are called from several goroutines, and must not block.
func NewTold(cfg aws.Config, trouble func(Action, error), requested func(Request, Answer)) *Told {
	return &Told{sdk: newClient(cfg), trouble: trouble, requested: requested, known: map[string]*groupHooks{}}
}

func (t *Told) service(a Action) *service {
	return &service{sdk: t.sdk, instance: a.Instance, requested: t.requested}
}

// Hold sends heartbeats for an action, from the time that its hook leaves to its global limit, until ctx ends or nothing
// is left to be held. What the hook's timeout is, is asked beside that: until it is known, it is taken to be the shortest that there is.
func (t *Told) Hold(ctx context.Context, a Action) {
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
	found := make(chan hook)
	asking.Go(func() { t.learn(ctx, s, a, found) })
	for !held.over && !held.next.IsZero() {
		timer := time.NewTimer(time.Until(held.next))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case is := <-found:
			timer.Stop()
			held.learn(is, began, time.Now())
		case <-timer.C:
			err := s.heartbeat(ctx, a.Group, a.Hook)
			if ctx.Err() != nil {
				return
			}
			t.tell(a, err)
			held.beaten(time.Now(), err)
		}
	}
}

// Complete completes an action, and repeats that until it holds. The error is ctx's.
func (t *Told) Complete(ctx context.Context, a Action) error {
	s := t.service(a)
	held := &action{active: true}
	held.release(time.Now())
	for !held.over {
		if !wait(ctx, held.next) {
			return fmt.Errorf("completing the lifecycle hook %s of the Auto Scaling group %s for %s: %w", a.Hook, a.Group, a.Instance, ctx.Err())
		}
		err := s.complete(ctx, a.Group, a.Hook, proceed)
		if ctx.Err() == nil {
			t.tell(a, err)
		}
		held.completed(time.Now(), err)
	}
	return nil
}

func (t *Told) tell(a Action, err error) {
	if err != nil && !errors.Is(err, errNothingWaits) {
		t.trouble(a, err)
	}
}

// learn asks for the action's hook with its timeouts until they are known, and tells it.
func (t *Told) learn(ctx context.Context, s *service, a Action, tell chan<- hook) {
	for told := false; ; {
		hooks, again, err := t.hooks(ctx, s, a)
		is := hook{name: a.Hook, timeout: shortTimeout, global: longestGlobal}
		if i := slices.IndexFunc(hooks, func(h hook) bool { return h.name == a.Hook }); i >= 0 {
			is = hooks[i]
		}
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
	hooks, err = s.hooks(ctx, a.Group)
	switch now := time.Now(); {
	case ctx.Err() != nil:
		return nil, time.Time{}, ctx.Err() // It says nothing of the group.
	case err == nil || errors.Is(err, errNothingWaits): // There is no such group any more.
		g.hooks, g.err, g.failures, g.until = hooks, nil, 0, now.Add(hooksLife)
	case unpermitted(err):
		g.err, g.until = err, now.Add(role.Spread(longestPause))
		t.trouble(a, err)
	default:
		g.failures++
		g.err, g.until = err, now.Add(pause(g.failures))
		t.trouble(a, err)
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
