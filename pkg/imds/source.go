// Package imds is the event source over EC2's instance metadata service: it looks at the documents in which EC2 announces
// what will happen to the machine and turns them into events.
//
//	spot/instance-action                    spot-interruption         every 500 ms
//	autoscaling/target-lifecycle-state      asg-termination           every 2 s
//	events/recommendations/rebalance        rebalance-recommendation  every 5 s
//	events/maintenance/{scheduled,history}  scheduled-maintenance     every 30 s
//
// Each kind of event has a poller of its own (poller.go), with a client and a session token of its own. So a document that hangs delays no
// other. client.go has the limits. A failed look is reported as trouble and never as an empty snapshot: only EC2's own "there is none" means
// that nothing is announced. documents.go reads the documents; docs/events.md says how it reads odd ones.
//
// Newcomers begin with Source.Run.
//
// Only version 2 of the service (IMDSv2, with session tokens) is used, and nothing is ever written to it.
package imds

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/feature/ec2/imds"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/loop"
)

// DefaultInterval is short because a spot notice gives two minutes, and every millisecond before the cordon is lost.
const DefaultInterval = 500 * time.Millisecond

// The looks for other kinds of events are this many times as far apart as those for a spot notice: they announce what is minutes or days away.
const (
	targetStateRatio = 4
	rebalanceRatio   = 10
	maintenanceRatio = 60
)

// lifeCyclePause is the time between two questions for the life cycle.
const lifeCyclePause = time.Second

// Options say what a Source polls, and how often.
type Options struct {
	// Endpoint is the service's URL, which ends after the host or port: the SDK drops a path. Empty means EC2's own, which the environment
	// variable AWS_EC2_METADATA_SERVICE_ENDPOINT overrides.
	Endpoint string
	// EndpointMode says which of EC2's own addresses is used: "IPv4" or "IPv6", in any case. Empty means IPv4. It has no effect if an
	// endpoint is given.
	EndpointMode string
	// Interval is the time between two looks for a spot notice. Zero means the default. The other looks are 4, 10 and 60 times as far
	// apart.
	Interval time.Duration
	// LifeCycles, if not empty, names the life cycles ("spot", "on-demand", ...) of the instances on which anything is
	// polled at all. Nothing is polled until the life cycle is known.
	LifeCycles []string
	// Kinds are the kinds to poll; nil means all that this source knows, and others are ignored.
	Kinds []event.Kind
	// BootID identifies this boot of the machine. It is part of the ID of an ASG termination, whose document has no
	// identity of its own, and required if that kind is polled.
	BootID string
	// WasInService says that the instance's Auto Scaling group has wanted it in service before, in this boot; InService,
	// if set, is called once when it first does. From then on, other target states mean that the instance leaves.
	WasInService bool
	InService    func()
	// TargetState, if set, is called when the group's target state for the instance changes; "" is none.
	TargetState func(state string)
	// Observe, if set, is called after each request for a document, from several goroutines at once.
	Observe func(Poll)
	// Scoped, if set, is called once, when it is known what is polled on this instance.
	Scoped func(Scope)
}

// Source looks at the metadata service. Make one with New.
type Source struct {
	opts Options
	mode imds.EndpointModeState
	dial func(ctx context.Context, network, address string) (net.Conn, error)
	// targetStates follows the target state of this boot, so it outlives a run.
	targetStates *targetStates

	mu      sync.Mutex
	pollers []*poller // of the current run
}

// New returns a source that has not made a request yet. The error says which option is invalid.
func New(opts Options) (*Source, error) {
	if opts.Interval = cmp.Or(opts.Interval, DefaultInterval); opts.Interval < 0 {
		return nil, fmt.Errorf("polling every %s: the interval must be positive", opts.Interval)
	}
	if opts.Kinds == nil {
		opts.Kinds = event.PolledKinds()
	}
	if opts.BootID == "" && slices.Contains(opts.Kinds, event.ASGTermination) {
		return nil, fmt.Errorf("polling for %s: the boot ID is missing", event.ASGTermination)
	}
	s := &Source{
		opts: opts, targetStates: &targetStates{opts: opts, served: opts.WasInService},
		dial: (&net.Dialer{Timeout: dialTimeout, KeepAlive: -1}).DialContext,
	}
	if err := s.mode.SetFromString(opts.EndpointMode); err != nil {
		return nil, fmt.Errorf("the environment has %s=%q: it must be IPv4 or IPv6", EndpointModeVariable, opts.EndpointMode)
	}
	return s, nil
}

// EndpointModeVariable is the environment variable from which AWS's SDKs take the endpoint mode.
const EndpointModeVariable = "AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE"

// dialTimeout is short because the service is on the same host: without a connection after that time, a packet was lost.
const dialTimeout = 500 * time.Millisecond

// Run looks for events and delivers snapshots to the sink until ctx ends. Then it waits for its last request. Run never gives
// up: it reports a missing or broken service to the sink, and tries again. On an instance that Options.LifeCycles excludes, it polls nothing,
// and only waits for ctx. Call it once at a time.
func (s *Source) Run(ctx context.Context, sink event.Sink) {
	scope := s.Scope("")
	if len(s.opts.LifeCycles) > 0 {
		lifeCycle, known := s.awaitLifeCycle(ctx)
		if !known { // ctx has ended.
			return
		}
		scope = s.Scope(lifeCycle)
	}
	if s.opts.Scoped != nil {
		s.opts.Scoped(scope)
	}
	if scope.Standby { // An earlier process may have found something, with other settings.
		for _, kind := range s.polledKinds() { // An empty snapshot says that no event of the kind is announced.
			sink.Snapshot(event.Snapshot{Kind: kind})
		}
	}
	var pollers sync.WaitGroup
	for _, p := range s.newPollers(scope.Kinds) {
		pollers.Go(func() { p.run(ctx, sink) })
	}
	<-ctx.Done()
	pollers.Wait()
}

// awaitLifeCycle requests the life cycle until the service gives it. known is false if ctx ends first. A document that is absent (some
// simulators have none) is requested again, like one that failed.
func (s *Source) awaitLifeCycle(ctx context.Context) (lifeCycle string, known bool) {
	reader := s.newReader()
	for {
		if lifeCycle, err := read(ctx, reader, lifeCyclePath, shortDocument, parseLifeCycle); err == nil && lifeCycle != "" {
			return lifeCycle, true
		}
		if !loop.Await(ctx, nil, lifeCyclePause) {
			return "", false
		}
	}
}

// polledKinds returns the kinds of Options.Kinds that a metadata service announces.
func (s *Source) polledKinds() []event.Kind {
	return slices.DeleteFunc(event.PolledKinds(), func(k event.Kind) bool { return !slices.Contains(s.opts.Kinds, k) })
}

// newPollers returns a new poller for each kind, and remembers them for Stalled.
func (s *Source) newPollers(kinds []event.Kind) []*poller {
	all := []*poller{
		{kind: event.SpotInterruption, interval: s.opts.Interval, look: lookForSpot},
		{kind: event.ASGTermination, interval: targetStateRatio * s.opts.Interval, look: s.targetStates.look},
		{kind: event.RebalanceRecommendation, interval: rebalanceRatio * s.opts.Interval, look: lookForRebalance},
		{kind: event.ScheduledMaintenance, interval: maintenanceRatio * s.opts.Interval, look: (&maintenance{}).look},
	}
	all = slices.DeleteFunc(all, func(p *poller) bool { return !slices.Contains(kinds, p.kind) })
	for _, p := range all {
		p.reader = s.newReader()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pollers = all
	return all
}

// Stalled returns an error if a poller hangs: it has neither begun nor ended a look for far longer than its interval and its limits allow. A
// service that does not answer makes no poller hang, because each look has a limit.
func (s *Source) Stalled() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.pollers {
		if err := p.stuck(); err != nil {
			return err
		}
	}
	return nil
}
