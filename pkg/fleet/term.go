package fleet

import (
	"context"
	"errors"
	"sync"
	"time"

	coordination "k8s.io/api/coordination/v1"

	"github.com/nth-project/nth/pkg/drain"
)

// term is a time in which this process holds a Lease, under a name that it has for that time alone. What is taken in it
// ends with it. In a dry run there is one term without a Lease, and without a name.
type term struct {
	// ctx ends with the term. leased ends when its Lease is lost, and not at an orderly end, when what has begun is finished first.
	ctx, leased context.Context //nolint:containedctx // what is taken in the term ends with it
	process     string
	// sessions are those that have begun, and whatever else writes for the process.
	sessions sync.WaitGroup
	// orphans are the Nodes that bear a claim of this process under which nothing is drained, and since when that is so, or was last tried to
	// be ended. Only the goroutine that serves has them.
	orphans map[string]time.Time
}

// terms lead from one Lease to the next until ctx ends. begun is called in each.
func (f *Fleet) terms(ctx context.Context, begun func()) {
	if f.opts.DryRun {
		f.serve(&term{ctx: ctx, leased: context.WithoutCancel(ctx)}, begun)
		return
	}
	for ctx.Err() == nil {
		asked := time.Now()
		lease, err := f.leases.take(ctx, f.opts.Host)
		f.leased(ctx, err)
		if err != nil {
			drain.Await(ctx, nil, renewalAgain)
			continue
		}
		f.holds(ctx, lease, asked, begun)
	}
}

// holds serves for as long as a Lease is held that was asked for at that time.
func (f *Fleet) holds(ctx context.Context, lease *coordination.Lease, asked time.Time, begun func()) {
	leased, lose := context.WithCancelCause(context.WithoutCancel(ctx))
	defer lose(nil)
	held, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	t := &term{ctx: held, leased: leased, process: lease.Name}
	// The Lease is kept until the last drain has stopped, also after the end of ctx.
	keeping, end := context.WithCancel(context.WithoutCancel(ctx))
	var keeper sync.WaitGroup
	keeper.Go(func() {
		if err := f.leases.keep(keeping, lease, asked); err != nil {
			f.leased(ctx, err)
			lose(errLeaseLost)
			stop(errLeaseLost)
		}
	})
	f.serve(t, begun)
	end()
	keeper.Wait()
	if err := f.leases.release(context.WithoutCancel(ctx), lease); err != nil {
		f.opts.Log.Debugf("ending the Lease %s: %s", lease.Name, err)
	}
}

// leased takes in whether this process has its Lease, and says so when that changes.
func (f *Fleet) leased(ctx context.Context, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	before := f.leaseless
	switch {
	case ctx.Err() != nil:
	case err != nil && before == nil:
		f.leaseless, f.leaselessSince = err, time.Now()
		f.opts.Log.Warnf("paused without a Lease: %s", err)
	case err != nil:
		f.leaseless = err
	case before != nil:
		f.leaseless = nil
		f.opts.Log.Info("holding a Lease again; receiving messages")
	}
}

// Paused tells whether nothing is to be taken now: this process has no Lease. It implements queue.Options.Paused.
func (f *Fleet) Paused() bool {
	t := f.term.Load()
	return t == nil || t.ctx.Err() != nil
}

// Leaseless tells why this process has no Lease, so that it drains nothing; nil if it has one, or has not asked yet.
func (f *Fleet) Leaseless() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.leaseless
}

// serve lets the line move until a term ends. Then it stops all drains where they are, and gives back what they are for.
func (f *Fleet) serve(t *term, begun func()) {
	f.term.Store(t)
	begun()
	t.sessions.Go(func() { f.follow(t.ctx) })
	ticks := time.NewTicker(glance)
	defer ticks.Stop()
	for t.ctx.Err() == nil {
		f.dispatch(t)
		select {
		case <-t.ctx.Done():
		case <-f.changed:
		case <-ticks.C: // All Nodes are looked at for these, which would be too often in a storm of changes.
			f.mindClaims(t)
			f.endOrphans(t)
		}
	}
	f.abandon(func(t *task) { t.again(0) }) // Others can go on at once.
	t.sessions.Wait()
}

// finishing returns a context for what is finished also at an orderly end of ctx, which is one of the term's: it ends where the Lease, or what
// ctx is for, is lost, as it may be another's then.
func (t *term) finishing(ctx context.Context) (context.Context, context.CancelFunc) {
	kept, end := context.WithCancelCause(t.leased)
	forget := context.AfterFunc(ctx, func() {
		if cause := context.Cause(ctx); isLost(cause) {
			end(cause)
		}
	})
	return kept, func() {
		forget()
		end(nil)
	}
}

// isLost tells whether a session ended since what it has claimed may be another's.
func isLost(cause error) bool { return errors.Is(cause, errLost) || errors.Is(cause, errLeaseLost) }
