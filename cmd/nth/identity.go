package main

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nth-project/nth/cmd/internal/daemon"
	"github.com/nth-project/nth/pkg/agent"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/kubelet"
	"github.com/nth-project/nth/pkg/state"
)

// localNode is the node that nth runs on. Who that is, is asked anew for each piece of work: the credential may not be there
// yet, or may have been replaced.
type localNode struct {
	kubelet *kubelet.Kubelet
	dryRun  bool
	gate    *drain.Gate
	// balancers are asked when they are done with the node; nil if they are not.
	balancers drain.LoadBalancers
	// scripts are run before evictions, where the settings have them waited for; nil if there are none here.
	scripts drain.Scripts
	options atomic.Pointer[drain.Options] // for what begins now
}

// evictionsAtOnce are those of a node as large as a kubelet takes unless told otherwise. An API server that one node asks a
// thousand things in one moment answers most of them too late, and is asked again.
const evictionsAtOnce = 128

func newLocalNode(borrowed *kubelet.Kubelet, cfg config.Config, balancers drain.LoadBalancers, scripts drain.Scripts) *localNode {
	s := &localNode{kubelet: borrowed, dryRun: cfg.DryRun, gate: drain.NewGate(evictionsAtOnce), balancers: balancers, scripts: scripts}
	s.use(daemon.DrainOptions(cfg.Drain))
	return s
}

// use replaces the options for all that begins from now on.
func (s *localNode) use(options drain.Options) {
	options.Gate, options.LoadBalancers = s.gate, s.balancers
	if options.ScriptsWait > 0 {
		options.Scripts = s.scripts
	}
	s.options.Store(&options)
}

// identityPause is how long to wait before the credential is looked for again. A node that joins its cluster gets it
// once, and a notice may be waiting.
const identityPause = 500 * time.Millisecond

// node waits for the identity and returns the node that it is for.
func (s *localNode) node(ctx context.Context) (agent.Node, error) {
	id, err := s.identity(ctx)
	if err != nil {
		return nil, err
	}
	return s.of(id, *s.options.Load()), nil
}

func (s *localNode) identity(ctx context.Context) (kubelet.Identity, error) {
	for {
		id, err := s.kubelet.Identity(ctx)
		if err == nil {
			return id, nil
		}
		if !drain.Await(ctx, nil, identityPause) {
			return kubelet.Identity{}, fmt.Errorf("waiting for the kubelet's credential: %w (%w)", err, ctx.Err())
		}
	}
}

func (s *localNode) of(id kubelet.Identity, options drain.Options) agent.Node {
	node := drain.New(id.Client, id.Node, options)
	if s.dryRun {
		return drain.NewDryRun(node)
	}
	return node
}

// Guard implements agent.Node.
func (s *localNode) Guard(goal drain.Goal, tell func(drain.Progress)) drain.Guard {
	return &localGuard{self: s, tell: tell, goal: goal, adjusted: make(chan struct{}, 1)}
}

// localGuard stands at the node that the identity names. It can outlive its credential: when the kubeconfig is replaced, it goes
// on with the new one. It goes on with the options that it began with, too, until an event joins that comes after they changed.
type localGuard struct {
	self     *localNode
	tell     func(drain.Progress)
	adjusted chan struct{}

	mu      sync.Mutex
	goal    drain.Goal
	guard   drain.Guard // nil while there is no identity
	options drain.Options
	again   context.CancelFunc // has another guard begun, with the options as they are now
}

// Run implements drain.Guard.
func (g *localGuard) Run(ctx context.Context) {
	g.mu.Lock()
	g.options = *g.self.options.Load()
	g.mu.Unlock()
	for ctx.Err() == nil {
		id, err := g.identity(ctx)
		if err != nil {
			return // ctx has ended.
		}
		attempt, ended := g.self.whileCurrent(ctx, id)
		g.of(id, ended).Run(attempt)
		ended()
	}
}

// identity waits for the identity. Under each goal it is looked whether a machine that is no node is to go down.
func (g *localGuard) identity(ctx context.Context) (kubelet.Identity, error) {
	looking, found := context.WithCancel(ctx)
	var telling sync.WaitGroup
	telling.Go(func() {
		for looking.Err() == nil {
			g.tellIfNeverJoined(looking)
			select {
			case <-looking.Done():
			case <-g.adjusted:
			}
		}
	})
	defer telling.Wait()
	defer found()
	return g.self.identity(ctx)
}

// tellIfNeverJoined lets a machine go down at once that is no node.
func (g *localGuard) tellIfNeverJoined(ctx context.Context) {
	g.mu.Lock()
	goal := g.goal
	g.mu.Unlock()
	if slices.Contains(goal.Kinds, string(event.Shutdown)) && g.self.neverJoined(ctx) {
		g.tell(drain.Progress{Kind: state.NodeEmpty, Goal: goal.Number, State: drain.State{Drained: true}})
	}
}

// of makes the guard of the node that the identity names the one to be told of goals, until ended is called.
func (g *localGuard) of(id kubelet.Identity, ended context.CancelFunc) drain.Guard {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.guard, g.again = g.self.of(id, g.options).Guard(g.goal, g.tell), ended
	return g.guard
}

// Adjust implements drain.Guard.
func (g *localGuard) Adjust(goal drain.Goal) {
	g.mu.Lock()
	defer g.mu.Unlock()
	known := g.goal.Events
	g.goal = goal
	select {
	case g.adjusted <- struct{}{}:
	default:
	}
	if now := *g.self.options.Load(); g.guard != nil && drain.Joined(known, goal.Events) && !reflect.DeepEqual(now, g.options) {
		g.options = now
		g.again()
		return
	}
	if g.guard != nil {
		g.guard.Adjust(goal)
	}
}

// Result implements drain.Guard.
func (g *localGuard) Result() drain.Result {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.guard == nil {
		return drain.Result{}
	}
	return g.guard.Result()
}

// neverJoined tells whether this machine is no node: there is no credential, and there was none since the start. A
// credential is worth waiting for, but not for a machine that goes down; an image that is being baked, say.
func (s *localNode) neverJoined(ctx context.Context) bool {
	_, err := s.kubelet.Identity(ctx)
	return errors.Is(err, kubelet.ErrNotYet)
}

// whileCurrent returns a context that ends when the identity is no longer the present one, and a function that ends it.
func (s *localNode) whileCurrent(ctx context.Context, used kubelet.Identity) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		for drain.Await(ctx, nil, identityPause) {
			if id, err := s.kubelet.Identity(ctx); err == nil && id.Client != used.Client {
				cancel()
			}
		}
	}()
	return ctx, cancel
}

// Uncordon implements agent.Node.
func (s *localNode) Uncordon(ctx context.Context, booted func(bootID string) bool) (drain.UncordonResult, error) {
	node, err := s.node(ctx)
	if err != nil {
		return "", err
	}
	return node.Uncordon(ctx, booted)
}

// Claim implements agent.Node.
func (s *localNode) Claim(ctx context.Context) (drain.Claim, bool, error) {
	node, err := s.node(ctx)
	if err != nil {
		return drain.Claim{}, false, err
	}
	return node.Claim(ctx)
}

// warmIdentity keeps the credential warm and tells the agent how it stands.
type warmIdentity struct {
	kubelet *kubelet.Kubelet
	every   time.Duration
	found   func(kubelet.Identity)
}

// KeepWarm implements agent.Identity: it looks for the identity until it is found, and then at the given pace.
func (w warmIdentity) KeepWarm(ctx context.Context, tell func(node string, err error)) {
	for ctx.Err() == nil {
		id, err := w.kubelet.Identity(ctx)
		if err == nil || !errors.Is(err, context.Canceled) {
			w.tell(tell, id, err)
		}
		if err == nil {
			break
		}
		drain.Await(ctx, nil, identityPause)
	}
	w.kubelet.KeepWarm(ctx, w.every, func(err error) {
		id, idErr := w.kubelet.Identity(ctx)
		w.tell(tell, id, errors.Join(err, idErr))
	})
}

func (w warmIdentity) tell(tell func(node string, err error), id kubelet.Identity, err error) {
	if id.Client != nil {
		w.found(id)
	}
	tell(id.Node, err)
}
