package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nth-project/nth/pkg/agent"
	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/kubelet"
)

// self is the node that nth runs on. Who that is, is asked anew for each piece of work: the credential may not be there
// yet, or may have been replaced.
type self struct {
	kubelet *kubelet.Kubelet
	options drain.Options
	dryRun  bool
}

// identityPause is how long to wait before the credential is looked for again. A node that joins its cluster gets it
// once, and a notice may be waiting.
const identityPause = 500 * time.Millisecond

// node waits for the identity and returns the node that it is for.
func (s *self) node(ctx context.Context) (agent.Node, error) {
	id, err := s.identity(ctx)
	if err != nil {
		return nil, err
	}
	return s.of(id), nil
}

func (s *self) identity(ctx context.Context) (kubelet.Identity, error) {
	for {
		id, err := s.kubelet.Identity(ctx)
		if err == nil {
			return id, nil
		}
		select {
		case <-ctx.Done():
			return kubelet.Identity{}, fmt.Errorf("waiting for the kubelet's credential: %w (%w)", err, ctx.Err())
		case <-time.After(identityPause):
		}
	}
}

func (s *self) of(id kubelet.Identity) agent.Node {
	node := drain.New(id.Client, id.Node, s.options)
	if s.dryRun {
		return drain.NewDryRun(node)
	}
	return node
}

// Cordon implements agent.Node.
func (s *self) Cordon(ctx context.Context, claim drain.Claim) (drain.CordonResult, error) {
	node, err := s.node(ctx)
	if err != nil {
		return drain.CordonNone, err
	}
	return node.Cordon(ctx, claim)
}

// Drain implements agent.Node. A drain can outlive its credential: when the kubeconfig is replaced, it goes on with the
// new one.
func (s *self) Drain(ctx context.Context, plan drain.Plan) (drain.Result, error) {
	for {
		id, err := s.identity(ctx)
		if err != nil {
			return drain.Result{}, err
		}
		attempt, replaced := s.whileCurrent(ctx, id)
		result, err := s.of(id).Drain(attempt, plan)
		if err == nil || ctx.Err() != nil || !replaced() {
			return result, err
		}
	}
}

// whileCurrent returns a context that ends when the identity is no longer the present one, and a function that ends it
// and tells whether that is why it ended.
func (s *self) whileCurrent(ctx context.Context, used kubelet.Identity) (context.Context, func() bool) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		for ctx.Err() == nil {
			select {
			case <-ctx.Done():
			case <-time.After(identityPause):
			}
			if id, err := s.kubelet.Identity(ctx); err == nil && id.Client != used.Client {
				cancel(errReplaced)
			}
		}
	}()
	return ctx, func() bool {
		cancel(nil)
		return errors.Is(context.Cause(ctx), errReplaced)
	}
}

var errReplaced = errors.New("the kubeconfig was replaced")

// Uncordon implements agent.Node.
func (s *self) Uncordon(ctx context.Context, ready bool) (drain.UncordonResult, error) {
	node, err := s.node(ctx)
	if err != nil {
		return "", err
	}
	return node.Uncordon(ctx, ready)
}

// Claim implements agent.Node.
func (s *self) Claim(ctx context.Context) (drain.Claim, bool, error) {
	node, err := s.node(ctx)
	if err != nil {
		return drain.Claim{}, false, err
	}
	return node.Claim(ctx)
}

// warm keeps the credential warm and tells the agent how it stands.
type warm struct {
	kubelet *kubelet.Kubelet
	every   time.Duration
}

// KeepWarm implements agent.Identity: it looks for the identity until it is found, and then at the given pace.
func (w warm) KeepWarm(ctx context.Context, tell func(node string, err error)) {
	for ctx.Err() == nil {
		id, err := w.kubelet.Identity(ctx)
		if err == nil || !errors.Is(err, context.Canceled) {
			tell(id.Node, err)
		}
		if err == nil {
			break
		}
		select {
		case <-ctx.Done():
		case <-time.After(identityPause):
		}
	}
	w.kubelet.KeepWarm(ctx, w.every, func(err error) {
		id, idErr := w.kubelet.Identity(ctx)
		tell(id.Node, errors.Join(err, idErr))
	})
}
