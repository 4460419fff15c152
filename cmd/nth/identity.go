package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nth-project/nth/cmd/internal/daemon"
	"github.com/nth-project/nth/pkg/agent"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/identity"
	"github.com/nth-project/nth/pkg/kube"
	"github.com/nth-project/nth/pkg/loop"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/wait"
)

// localNode is the node that nth runs on. It uses the kubelet's credential as it is at the time, and learns the node's name from it.
type localNode struct {
	kubelet   *identity.Kubelet
	dryRun    bool
	gate      *kube.Gate   // bounds the evictions at once
	balancers wait.Blocker // nil if the settings name no load balancer
	scripts   wait.Blocker // nil if nth cannot start units on the host
	options   atomic.Pointer[drain.Options]
}

// evictionsAtOnce is how many evictions are sent at once: a bit more than the kubelet's default for the pods on a node. An API server that gets a thousand requests from one
// node at once answers most of them too late, so that they are retried.
const evictionsAtOnce = 128

// newLocalNode returns the node of a kubelet's credential, which is drained by the settings.
func newLocalNode(kubelet *identity.Kubelet, cfg config.Config, balancers, scripts wait.Blocker) *localNode {
	n := &localNode{kubelet: kubelet, dryRun: cfg.DryRun, gate: kube.NewGate(evictionsAtOnce), balancers: balancers, scripts: scripts}
	n.use(drainOptions(cfg))
	return n
}

// use replaces the drain options of guards and uncordons that begin from now on.
func (n *localNode) use(options drain.Options) {
	options.Gate, options.LoadBalancers = n.gate, n.balancers
	if options.ScriptsWait > 0 {
		options.Scripts = n.scripts
	}
	n.options.Store(&options)
}

// identityPause is how often the credential is looked for. It is short, as a notice may be waiting when a node joins its cluster.
const identityPause = 500 * time.Millisecond

// identity waits until there is a credential, and returns its identity. It returns an error only if ctx ends.
func (n *localNode) identity(ctx context.Context) (identity.Identity, error) {
	for {
		id, err := n.kubelet.Identity(ctx)
		if err == nil {
			return id, nil
		}
		if !loop.Await(ctx, nil, identityPause) {
			return identity.Identity{}, fmt.Errorf("waiting for the kubelet's credential: %w (%w)", err, ctx.Err())
		}
	}
}

// node waits for the identity, and returns its node. It returns an error only if ctx ends.
func (n *localNode) node(ctx context.Context) (agent.Node, error) {
	id, err := n.identity(ctx)
	if err != nil {
		return nil, err
	}
	return n.nodeOf(id, *n.options.Load()), nil
}

// nodeOf returns the node of an identity. In a dry run, it is one that changes nothing.
func (n *localNode) nodeOf(id identity.Identity, options drain.Options) agent.Node {
	node := drain.New(id.Client, id.Node, options)
	if n.dryRun {
		return drain.NewDryRun(node)
	}
	return node
}

// Uncordon implements agent.Node.
func (n *localNode) Uncordon(ctx context.Context, booted drain.Booted) (drain.UncordonResult, error) {
	node, err := n.node(ctx)
	if err != nil {
		return "", err
	}
	return node.Uncordon(ctx, booted)
}

// Claim implements agent.Node.
func (n *localNode) Claim(ctx context.Context) (drain.Claim, bool, error) {
	node, err := n.node(ctx)
	if err != nil {
		return drain.Claim{}, false, err
	}
	return node.Claim(ctx)
}

// Guard implements agent.Node. It waits for the credential, and begins again when that is for another node. It keeps the options of its start.
func (n *localNode) Guard(ctx context.Context, task *drain.Task, report func(drain.Progress)) {
	options := *n.options.Load()
	for ctx.Err() == nil {
		id, err := n.identityFor(ctx, task, report)
		if err != nil {
			return // ctx has ended.
		}
		named, stop := n.whileNamed(ctx, id.Node)
		n.nodeOf(id, options).Guard(named, task, report)
		stop()
	}
}

// identityFor waits for the identity. Until then, reportNeverJoined looks at each new goal: a machine that never joined a cluster may shut down
// at once. The error is ctx's end.
func (n *localNode) identityFor(ctx context.Context, task *drain.Task, report func(drain.Progress)) (identity.Identity, error) {
	waiting, stop := context.WithCancel(ctx)
	var reporter sync.WaitGroup
	reporter.Go(func() {
		for waiting.Err() == nil {
			n.reportNeverJoined(waiting, task.Goal(), report)
			select {
			case <-waiting.Done():
			case <-task.Changed():
			}
		}
	})
	defer reporter.Wait()
	defer stop()
	return n.identity(ctx)
}

// reportNeverJoined reports the node as empty, so that a shutdown continues, if the goal is for a shutdown and there was no credential since the
// start. Such a machine may be one on which an image is built.
func (n *localNode) reportNeverJoined(ctx context.Context, goal drain.Goal, report func(drain.Progress)) {
	if !goal.Shutdown {
		return
	}
	if _, err := n.kubelet.Identity(ctx); errors.Is(err, identity.ErrNotYet) {
		report(drain.Progress{Kind: state.NodeEmpty, Generation: goal.Generation, State: drain.State{Drained: true}})
	}
}

// whileNamed returns a context that ends when the credential is for a node of another name. It asks for the identity every identityPause, so that
// a new kubeconfig is found. The caller calls the function that it returns, which ends the context, too.
func (n *localNode) whileNamed(ctx context.Context, name string) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		for loop.Await(ctx, nil, identityPause) {
			if id, err := n.kubelet.Identity(ctx); err == nil && id.Node != name {
				cancel()
			}
		}
	}()
	return ctx, cancel
}

// warmIdentity keeps the kubelet's credential fresh for the agent. It calls found with each identity that has a client.
type warmIdentity struct {
	kubelet *identity.Kubelet
	found   func(identity.Identity)
}

// KeepWarm implements agent.Identity.
func (w warmIdentity) KeepWarm(ctx context.Context, report func(node string, err error)) {
	for ctx.Err() == nil {
		id, err := w.kubelet.Identity(ctx)
		if err == nil || !errors.Is(err, context.Canceled) { // A canceled context means that nth stops, and nothing about the credential.
			w.handle(report, id, err)
		}
		if err == nil {
			break
		}
		loop.Await(ctx, nil, identityPause)
	}
	w.kubelet.KeepWarm(ctx, kube.WarmUp, func(err error) {
		id, idErr := w.kubelet.Identity(ctx)
		w.handle(report, id, errors.Join(err, idErr))
	})
}

// handle reports the result of one attempt, and calls found if there is a client.
func (w warmIdentity) handle(report func(node string, err error), id identity.Identity, err error) {
	if id.Client != nil {
		w.found(id)
	}
	report(id.Node, err)
}

// drainOptions returns how the node is drained. If target groups are to be waited for, the drain also sets the label that takes the node out of
// load balancers.
func drainOptions(cfg config.Config) drain.Options {
	options := daemon.DrainOptions(cfg.Drain)
	options.ExcludeFromLoadBalancers = options.ExcludeFromLoadBalancers || len(cfg.LoadBalancers.TargetGroups) > 0
	return options
}
