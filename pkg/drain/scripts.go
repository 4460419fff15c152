package drain

import (
	"context"
	"errors"
	"time"
)

// Scripts are what is run on the machine before its pods go.
type Scripts interface {
	// Run returns when all have run, with what went wrong, or when ctx has ended.
	Run(ctx context.Context) error
}

var errScriptsLate = errors.New("their time is over, and evictions begin without them")

// scripted is what a guard knows of the scripts.
type scripted struct {
	// ran tells that they have run for this drain, or have had their time.
	ran bool
	// running ends the wait for them; nil if there is none. began is since when they are waited for.
	running context.CancelFunc
	began   time.Time
}

// runScripts begins them, or goes on waiting. As with any hold, no pod waits beyond its turn.
func (g *guard) runScripts(now time.Time) {
	g.opens = now.Add(g.node.opts.ScriptsWait + longestDeregistration)
	if g.running != nil {
		return
	}
	ctx, stop := context.WithCancel(g.ctx)
	waiting := true
	g.began, g.running = now, func() { waiting = false; stop() }
	scripts := g.node.opts.Scripts
	g.workers.Go(func() {
		defer stop()
		err := scripts.Run(ctx)
		g.post(func() {
			if waiting {
				g.endScripts(err)
			}
		})
	})
}

// endScripts goes on with the drain, and tells why if not all is well.
func (g *guard) endScripts(why error) {
	g.running()
	g.running, g.ran = nil, true
	g.opens, g.all = time.Time{}, true
	if why != nil {
		g.say(Progress{What: Unscripted, Detail: why.Error()})
	}
}

// awaitScripts ends the wait for them when its time is over, a quarter of what there is before the machine is gone at most. It returns
// when that is; zero if nobody waits.
func (g *guard) awaitScripts(now time.Time) time.Time {
	if g.running == nil {
		return time.Time{}
	}
	until := g.began.Add(g.node.opts.ScriptsWait)
	if !g.goal.Hard.IsZero() {
		until = soonest(until, g.began.Add(max(g.goal.Hard.Sub(g.began)/4, 0)))
	}
	if now.Before(until) {
		return until
	}
	g.endScripts(errScriptsLate)
	return time.Time{}
}
