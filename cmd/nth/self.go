package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/nth-project/nth/cmd/internal/draining"
	"github.com/nth-project/nth/pkg/agent"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/kubelet"
)

// self is the node that nth runs on. Who that is, is asked anew for each piece of work: the credential may not be there
// yet, or may have been replaced.
type self struct {
	kubelet *kubelet.Kubelet
	dryRun  bool
	options atomic.Pointer[drain.Options] // for what begins now
}

func newSelf(borrowed *kubelet.Kubelet, cfg config.Config) *self {
	s := &self{kubelet: borrowed, dryRun: cfg.DryRun}
	s.use(draining.Options(cfg.Drain))
	return s
}

// use replaces the options for all that begins from now on.
func (s *self) use(options drain.Options) { s.options.Store(&options) }

// identityPause is how long to wait before the credential is looked for again. A node that joins its cluster gets it
// once, and a notice may be waiting.
const identityPause = 500 * time.Millisecond

// node waits for the identity and returns the node that it is for.
func (s *self) node(ctx context.Context) (agent.Node, error) {
	id, err := s.identity(ctx)
	if err != nil {
		return nil, err
	}
	return s.of(id, *s.options.Load()), nil
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

func (s *self) of(id kubelet.Identity, options drain.Options) agent.Node {
	node := drain.New(id.Client, id.Node, options)
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
// new one, and with the options that it began with.
func (s *self) Drain(ctx context.Context, plan drain.Plan) (drain.Result, error) {
	if plan.Claim.Kind == string(event.Shutdown) && s.neverJoined(ctx) {
		return drain.Result{NodeGone: true}, nil
	}
	options := *s.options.Load()
	for {
		id, err := s.identity(ctx)
		if err != nil {
			return drain.Result{}, err
		}
		attempt, replaced := s.whileCurrent(ctx, id)
		result, err := s.of(id, options).Drain(attempt, plan)
		if err == nil || ctx.Err() != nil || !replaced() {
			return result, err
		}
	}
}

// neverJoined tells whether this machine is no node: there is no credential, and there was none since the start. A
// credential is worth waiting for, but not for a machine that goes down; an image that is being baked, say.
func (s *self) neverJoined(ctx context.Context) bool {
	_, err := s.kubelet.Identity(ctx)
	return errors.Is(err, kubelet.ErrNotYet)
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
	found   func(kubelet.Identity)
}

// KeepWarm implements agent.Identity: it looks for the identity until it is found, and then at the given pace.
func (w warm) KeepWarm(ctx context.Context, tell func(node string, err error)) {
	for ctx.Err() == nil {
		id, err := w.kubelet.Identity(ctx)
		if err == nil || !errors.Is(err, context.Canceled) {
			w.tell(tell, id, err)
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
		w.tell(tell, id, errors.Join(err, idErr))
	})
}

func (w warm) tell(tell func(node string, err error), id kubelet.Identity, err error) {
	if id.Client != nil {
		w.found(id)
	}
	tell(id.Node, err)
}
