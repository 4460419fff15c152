package traffic

import (
	"context"
	"errors"
	"time"
)

// Endpoint is what a test says of one.
type Endpoint struct {
	Pod, Node                   string
	Ready, Serving, Terminating bool
}

func inside(all []Endpoint) (state []endpoint) {
	for _, e := range all {
		state = append(state, endpoint{e.Pod, e.Node, e.Ready, e.Serving, e.Terminating})
	}
	return state
}

// View is what clients know.
type View struct{ v *view }

func NewView(late time.Duration) View { return View{&view{late: late}} }

func (v View) Learn(all ...Endpoint) { v.v.learn(inside(all)) }

// Usable are the pods that get new connections.
func (v View) Usable(node string) (pods []string) {
	for _, e := range v.v.usable(node) {
		pods = append(pods, e.pod)
	}
	return pods
}

// LoadBalancer is one that works.
type LoadBalancer struct{ b *balancer }

func NewLoadBalancer(ctx context.Context, o Balancer, nodes ...string) LoadBalancer {
	return LoadBalancer{newBalancer(ctx, o, nodes...)}
}

func (l LoadBalancer) Exclude(node string) { l.b.exclude(node, told{func() {}, func() {}, func() {}}) }
func (l LoadBalancer) Check(healthy func(node string) bool) {
	l.b.check(healthy, func(string, bool) {})
}
func (l LoadBalancer) Choose() (string, context.Context) { return l.b.choose() }

// Send sends requests at a pace until ctx ends, each with what send does, and returns what came of them.
func Send(ctx context.Context, rate int, send func(ctx context.Context, number int) error) Count {
	l := &load{send: send, first: func(error) {}}
	l.run(ctx, rate)
	return l.total()
}

// ErrDeregistered is how a connection ends that the load balancer cuts.
var ErrDeregistered = errDeregistered

// ErrLost is an error that has a cause.
var ErrLost = errors.New("dial tcp: connection refused")
