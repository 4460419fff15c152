package main

import (
	"context"
	"errors"
	"fmt"

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

// localNode is the node that nth runs on. It implements agent.Node: each method waits for the kubelet's credential, which has the node's name.
type localNode struct {
	kubelet *identity.Kubelet
	dryRun  bool
	options drain.Options
}

// evictionsAtOnce is how many evictions are sent at once: a bit more than the kubelet's default for the pods on a node. An API server that gets a
// thousand requests from one node at once answers most of them too late, so that they are retried.
const evictionsAtOnce = 128

// newLocalNode returns the node of a kubelet's credential. The settings say how it is drained. balancers and scripts are what a drain waits for
// before evictions: balancers is nil without target groups in the settings, and both are nil in a rehearsal.
func newLocalNode(kubelet *identity.Kubelet, cfg config.Config, balancers, scripts wait.Blocker) *localNode {
	options := drainOptions(cfg)
	options.Gate, options.LoadBalancers = kube.NewGate(evictionsAtOnce), balancers
	if options.ScriptsWait > 0 {
		options.Scripts = scripts
	}
	return &localNode{kubelet: kubelet, dryRun: cfg.DryRun, options: options}
}

// identity waits until there is a credential that works, and returns its identity. It calls failed after each attempt that fails. It returns an
// error only if ctx ends.
func (n *localNode) identity(ctx context.Context, failed func(error)) (identity.Identity, error) {
	for {
		id, err := n.kubelet.Identity(ctx)
		if err == nil {
			return id, nil
		}
		failed(err)
		if !loop.Await(ctx, nil, identity.JoinPause) {
			return identity.Identity{}, fmt.Errorf("waiting for the kubelet's credential: %w", err)
		}
	}
}

// node waits for the identity, and returns its node. It returns an error only if ctx ends.
func (n *localNode) node(ctx context.Context) (agent.Node, error) {
	id, err := n.identity(ctx, func(error) {}) // KeepWarm reports errors of the credential.
	if err != nil {
		return nil, err
	}
	return n.nodeOf(id), nil
}

// nodeOf returns the node of an identity. In a dry run, the methods of this node change nothing.
func (n *localNode) nodeOf(id identity.Identity) agent.Node {
	node := drain.New(id.Client, id.Node, n.options)
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

// Guard implements agent.Node. It waits for the credential, and begins again when the credential is for another node. A machine that has had no
// kubeconfig since the start, such as one on which an image is built, has no pods: Guard reports it as drained, so that it may shut down at once.
func (n *localNode) Guard(ctx context.Context, task *drain.Task, report func(drain.Progress)) {
	for ctx.Err() == nil {
		id, err := n.identity(ctx, func(err error) {
			if goal := task.Goal(); goal.Shutdown && errors.Is(err, identity.ErrNotYet) {
				report(drain.Progress{Kind: state.NodeEmpty, Generation: goal.Generation, State: drain.State{Drained: true}})
			}
		})
		if err != nil {
			return // ctx has ended.
		}
		sameName, stop := n.whileNamed(ctx, id.Node)
		n.nodeOf(id).Guard(sameName, task, report)
		stop()
	}
}

// whileNamed returns a context that ends when the credential is for a node of another name. A goroutine asks for the identity every identity.JoinPause
// until then. The caller calls the CancelFunc, which ends the context and the goroutine.
func (n *localNode) whileNamed(ctx context.Context, name string) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		for loop.Await(ctx, nil, identity.JoinPause) {
			if id, err := n.kubelet.Identity(ctx); err == nil && id.Node != name {
				cancel()
			}
		}
	}()
	return ctx, cancel
}

// warmIdentity implements agent.Identity with the kubelet's credential. It calls found with the identity after each look, for the status.
type warmIdentity struct {
	kubelet *identity.Kubelet
	found   func(identity.Identity)
}

// KeepWarm implements agent.Identity.
func (w warmIdentity) KeepWarm(ctx context.Context, report func(node string, err error)) {
	w.kubelet.KeepWarm(ctx, kube.WarmUp, func(id identity.Identity, err error) {
		w.found(id)
		report(id.Node, err)
	})
}

// drainOptions returns how the node is drained. With target groups in the settings, the drain also sets the label that takes the node out of load
// balancers.
func drainOptions(cfg config.Config) drain.Options {
	options := daemon.DrainOptions(cfg.Drain)
	options.ExcludeFromLoadBalancers = options.ExcludeFromLoadBalancers || len(cfg.LoadBalancers.TargetGroups) > 0
	return options
}
