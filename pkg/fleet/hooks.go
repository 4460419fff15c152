package fleet

import (
	"context"
	"time"

	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/queue"
)

// Hooks speaks to Auto Scaling about the lifecycle actions that messages tell of.
type Hooks interface {
	// Hold makes Auto Scaling wait, for what began at that time, until ctx ends or nothing waits any more.
	Hold(ctx context.Context, instance string, hook queue.Hook, since time.Time)
	// Complete lets Auto Scaling go on. It repeats that until it holds; the error is ctx's.
	Complete(ctx context.Context, instance string, hook queue.Hook) error
}

// launchPatience is how long a new instance may take to become a Ready node.
const launchPatience = 30 * time.Minute

// hooked tells whether there is a lifecycle action to hold and to complete for a task.
func (f *Fleet) hooked(t *task) bool {
	return t.notice.Hook != nil && f.opts.Hooks != nil && !f.opts.DryRun
}

// hold makes Auto Scaling wait for a task until it ends.
func (f *Fleet) hold(t *task) {
	if !f.hooked(t) || f.policy()[t.notice.Event.Kind].Action == policy.Notify {
		return
	}
	f.background(func(ctx context.Context) {
		held, release := context.WithCancel(ctx)
		defer release()
		if t.releasedBy(release) {
			f.opts.Hooks.Hold(held, t.notice.Instance, *t.notice.Hook, t.notice.Event.Noticed)
		}
	})
}

// finish ends a task for which nothing more is to be done at the node: the lifecycle action is completed first.
func (f *Fleet) finish(t *task) {
	if !f.hooked(t) {
		t.done()
		return
	}
	t.release()
	f.work.Go(func() {
		if err := f.opts.Hooks.Complete(f.ctx, t.notice.Instance, *t.notice.Hook); err != nil {
			t.again(0)
			return
		}
		t.done()
	})
}

// launched completes a launch hook once the instance's node is Ready.
func (f *Fleet) launched(t *task) {
	if !f.opts.CompleteLaunches || !f.hooked(t) {
		t.done()
		return
	}
	f.background(func(ctx context.Context) {
		limited, cancel := context.WithTimeout(ctx, launchPatience)
		defer cancel()
		for {
			news := f.nodes.news()
			if found, there := f.nodes.ofInstance(t.notice.Instance); there && found.ready {
				f.finish(t)
				return
			}
			if await(limited, news, launchPatience) {
				continue
			}
			if ctx.Err() != nil {
				t.again(0)
				return
			}
			f.unknown(t)
			return
		}
	})
}
