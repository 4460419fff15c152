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
	known map[string]groupHooks
}

// groupHooks are a group's hooks, and until when they need not be asked for again.
type groupHooks struct {
	hooks []hook
	until time.Time
}

const (
	// hooksLife is how long it is believed that a group's hooks are as they were.
	hooksLife = 5 * time.Minute
	// shortTimeout stands for a hook's timeout that cannot be asked for.
	shortTimeout = 3 * time.Minute
)

// NewTold returns a Told that asks Auto Scaling as the configuration says. trouble hears why a request failed, and requested, which
// may be nil, what came of each about a hook that waits. Both are called from several goroutines, and must not block.
func NewTold(cfg aws.Config, trouble func(Action, error), requested func(Request, Answer)) *Told {
	return &Told{sdk: newClient(cfg), trouble: trouble, requested: requested, known: map[string]groupHooks{}}
}

func (t *Told) service(a Action) *service {
	return &service{sdk: t.sdk, instance: a.Instance, requested: t.requested}
}

// Hold sends heartbeats for an action, from the time that its hook leaves to its global limit, until ctx ends or nothing
// is left to be held.
func (t *Told) Hold(ctx context.Context, a Action) {
	s := t.service(a)
	now := time.Now()
	held := &action{hook: t.hook(ctx, s, a), active: true}
	held.begin(now.Add(min(a.Since.Sub(now.Round(0)), 0)), now) // It has begun, whatever the clock here says.
	held.next = latest(held.until.Add(-held.timeout+held.interval()), now)
	for !held.over && !held.next.IsZero() && wait(ctx, held.next) {
		err := s.heartbeat(ctx, a.Group, a.Hook)
		if ctx.Err() != nil {
			return
		}
		t.tell(a, err)
		held.beaten(time.Now(), err)
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

// hook returns the action's hook with its timeouts. Where they cannot be asked for, they are taken to be short.
func (t *Told) hook(ctx context.Context, s *service, a Action) hook {
	t.mu.Lock()
	defer t.mu.Unlock() // Others who ask for the same group wait for the answer.
	found, there := t.known[a.Group]
	if !there || time.Now().After(found.until) {
		hooks, err := s.hooks(ctx, a.Group)
		if err != nil {
			t.trouble(a, err)
		}
		found = groupHooks{hooks: hooks, until: time.Now().Add(hooksLife)}
		t.known[a.Group] = found
	}
	i := slices.IndexFunc(found.hooks, func(h hook) bool { return h.name == a.Hook })
	if i < 0 {
		return hook{name: a.Hook, timeout: shortTimeout, global: longestGlobal}
	}
	return found.hooks[i]
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
