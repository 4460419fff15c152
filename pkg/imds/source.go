// Package imds is the event source over EC2's instance metadata service: it reads the documents in which EC2 announces what will happen to the
// instance, and turns them into events.
//
//	spot/instance-action                    spot-interruption         every 500 ms
//	autoscaling/target-lifecycle-state      asg-termination           every 2 s
//	events/recommendations/rebalance        rebalance-recommendation  every 5 s
//	events/maintenance/{scheduled,history}  scheduled-maintenance     every 30 s
//
// A look is one reading of the documents for a kind of event. Each kind has a poller of its own (poller.go), which looks at an interval, with a
// client and a session token of its own. So a document that hangs delays no other. client.go has the limits. documents.go reads the documents;
// docs/events.md says how it reads odd ones.
//
// A look is good if the service has answered with a readable document, or with 404: then nothing is announced. A good look delivers a snapshot.
// Any other look delivers trouble, and never an empty snapshot.
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
)

// DefaultInterval is short because a spot notice gives two minutes, and the time before the cordon is lost.
const DefaultInterval = 500 * time.Millisecond

// The interval for another kind of event is this many times Options.Interval: other kinds are announced minutes or days ahead.
const (
	targetStateRatio = 4
	rebalanceRatio   = 10
	maintenanceRatio = 60
)

// Options say what a Source polls, and how often.
type Options struct {
	// Endpoint is the service's URL. It ends after the host or port: the SDK drops a path. Empty means the URL in the environment variable
	// AWS_EC2_METADATA_SERVICE_ENDPOINT, or else EC2's own.
	Endpoint string
	// EndpointMode says which of EC2's own addresses is used: "IPv4" or "IPv6", in any case. Empty means IPv4. It has no effect if an
	// endpoint is given.
	EndpointMode string
	// Interval is the time between two looks for a spot notice. Zero means the default. The intervals for the other kinds are 4, 10 and 60
	// times as long.
	Interval time.Duration
	// Kinds are the kinds of events to poll; nil means event.PolledKinds. Kinds that are not in event.PolledKinds are ignored.
	Kinds []event.Kind
	// BootID identifies this boot of the machine. It is part of the ID of an ASG termination, whose document has no ID. It is required if that
	// kind is polled.
	BootID string
	// WasInService says that the target state has been InService before, in this boot. Otherwise InService, if set, is called once, when that
	// is first so. From then on, most other target states mean that the instance leaves.
	WasInService bool
	InService    func()
	// TargetState, if set, is called when the group's target state for the instance changes; state is "" if there is none.
	TargetState func(state string)
	// Observe, if set, is called after each request for a document, from several goroutines at once.
	Observe func(Poll)
}

// Source looks at the metadata service. Make one with New.
type Source struct {
	opts Options
	mode imds.EndpointModeState
	dial func(ctx context.Context, network, address string) (net.Conn, error)
	// targetStates follows the target state of this boot. It outlives a call of Run.
	targetStates *targetStates

	mu      sync.Mutex
	pollers []*poller // those of the current Run, for Stalled
}

// New returns a Source. It makes no request. The error says which option is invalid.
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

// dialTimeout is short because the service is on the same host: if there is no connection after that time, a packet was lost.
const dialTimeout = 500 * time.Millisecond

// Run looks for events and delivers snapshots to the sink until ctx ends. Then it waits for its pollers. Run never gives up: it reports a missing
// or broken service to the sink, and tries again. Call Run once at a time.
func (s *Source) Run(ctx context.Context, sink event.Sink) {
	var pollers sync.WaitGroup
	for _, p := range s.newPollers() {
		pollers.Go(func() { p.run(ctx, sink) })
	}
	<-ctx.Done()
	pollers.Wait()
}

// polledKinds returns those of Options.Kinds that the metadata service announces.
func (s *Source) polledKinds() []event.Kind {
	return slices.DeleteFunc(event.PolledKinds(), func(k event.Kind) bool { return !slices.Contains(s.opts.Kinds, k) })
}

// newPollers returns a new poller for each kind that is polled, and stores the pollers for Stalled.
func (s *Source) newPollers() []*poller {
	kinds := s.polledKinds()
	all := []*poller{
		{kind: event.SpotInterruption, interval: s.opts.Interval, look: lookAt(spotPath, parseSpot)},
		{kind: event.ASGTermination, interval: targetStateRatio * s.opts.Interval, look: s.targetStates.look},
		{kind: event.RebalanceRecommendation, interval: rebalanceRatio * s.opts.Interval, look: lookAt(rebalancePath, parseRebalance)},
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

// Stalled returns an error if a poller hangs: it has neither begun nor ended a look for far longer than its interval and its limits allow. If the
// service does not answer, no poller hangs: each request has a limit.
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
