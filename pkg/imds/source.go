// Package imds is the event source over EC2's instance metadata service: it looks at the documents in which EC2 announces
// what will happen to the machine and turns them into events.
//
//	spot/instance-action                    spot-interruption         every 500 ms
//	autoscaling/target-lifecycle-state      asg-termination           every 2 s
//	events/recommendations/rebalance        rebalance-recommendation  every 5 s
//	events/maintenance/{scheduled,history}  scheduled-maintenance     every 30 s
//
// Each kind of event has a loop of its own (loop.go), so that a document that hangs delays no other. They share one client of AWS's SDK
// with its session token, and which of the service's two addresses answers (client.go, with all limits). A failed look is reported as
// trouble and never as an empty snapshot: only EC2's own "there is none" means that nothing is announced. How odd documents are read
// (documents.go) is told in docs/events.md.
//
// Only version 2 of the service (IMDSv2, with session tokens) is used, and nothing is ever written to it.
package imds

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nth-project/nth/pkg/event"
)

// The intervals that New fills in. The urgent one is short because a spot notice gives two minutes and every
// millisecond before the cordon is lost; the others announce things that are minutes or days away.
const (
	DefaultUrgentInterval      = 500 * time.Millisecond
	DefaultRebalanceInterval   = 5 * time.Second
	DefaultMaintenanceInterval = 30 * time.Second
)

// SeldomInterval is the shortest time between two polls for what EC2 documents not to announce to instances of a life
// cycle. It is polled all the same: life cycles have been added, and a mock of the service may know only one.
const SeldomInterval = 5 * time.Second

// targetStateRatio is how many urgent intervals there are to one of the target lifecycle state, whose terminations leave minutes.
const targetStateRatio = 4

// startDelay is between the first looks of two loops, so that a service that answers one request after the other gets the urgent
// ones first.
const startDelay = 5 * time.Millisecond

// lifeCycleWait is how long Run waits for the life cycle before it polls everything. A healthy service answers in a few
// milliseconds, and an unhealthy one must not delay the first poll for a spot notice.
const lifeCycleWait = 250 * time.Millisecond

// Options say what a Source polls, and how often.
type Options struct {
	// Endpoint is the service's base URL, such as "http://169.254.169.254"; empty means EC2's own, which the environment
	// variable AWS_EC2_METADATA_SERVICE_ENDPOINT overrides.
	Endpoint string
	// EndpointMode says which of EC2's own addresses is used: "IPv4" or "IPv6", in any case. Empty means whichever
	// answers, IPv4 first. It has no effect if an endpoint is given.
	EndpointMode string
	// UrgentInterval is the time between two looks for a spot notice, a quarter of that between two for the target lifecycle state.
	// RebalanceInterval and MaintenanceInterval are those of the others. Zero means the default.
	UrgentInterval, RebalanceInterval, MaintenanceInterval time.Duration
	// LifeCycles, if not empty, names the life cycles ("spot", "on-demand", ...) of the instances on which anything is
	// polled at all.
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
	// TargetState, if set, is called when the group's target state for the instance changes; "" is none. Strange, if set,
	// is called once for each state that is not known, and says whether the instance leaves because of it.
	TargetState func(state string)
	Strange     func(state string, departs bool)
	// Observe, if set, is called after each request for a document, from several goroutines at once.
	Observe func(Poll)
	// Told, if set, is called once, when the instance's life cycle has become known.
	Told func(Scope)
}

// Source looks at the metadata service. Make one with New.
type Source struct {
	opts       Options
	token      token
	dial       func(ctx context.Context, network, address string) (net.Conn, error) // nil means the network's own
	anyAddress bool                                                                 // the service may answer at either of its addresses
	onIPv6     atomic.Bool                                                          // and has last answered at the second
	// targetStates are those of this boot, so they outlive a run.
	targetStates *targetStates
	// oneOff is for how long an answer is waited for outside the loops.
	oneOff *patience

	mu    sync.Mutex
	loops []*loop // of the current run
}

// New checks the options and returns a source that has not made a request yet.
func New(opts Options) (*Source, error) {
	if err := checkEndpoint(opts.Endpoint); err != nil {
		return nil, err
	}
	for _, interval := range []struct {
		value    *time.Duration
		standard time.Duration
	}{
		{&opts.UrgentInterval, DefaultUrgentInterval},
		{&opts.RebalanceInterval, DefaultRebalanceInterval},
		{&opts.MaintenanceInterval, DefaultMaintenanceInterval},
	} {
		if *interval.value < 0 {
			return nil, fmt.Errorf("polling every %s: the interval must be positive", *interval.value)
		}
		if *interval.value == 0 {
			*interval.value = interval.standard
		}
	}
	if opts.Kinds == nil {
		opts.Kinds = event.PolledKinds()
	}
	if opts.BootID == "" && slices.Contains(opts.Kinds, event.ASGTermination) {
		return nil, fmt.Errorf("polling for %s: the boot ID is missing", event.ASGTermination)
	}
	mode := strings.ToLower(opts.EndpointMode)
	if mode != "" && mode != modeIPv4 && mode != modeIPv6 {
		return nil, fmt.Errorf("the environment has %s=%q: it must be IPv4 or IPv6", EndpointModeVariable, opts.EndpointMode)
	}
	s := &Source{
		opts: opts, targetStates: &targetStates{opts: opts, served: opts.WasInService}, oneOff: &patience{limit: firstLimit},
		token: token{fetching: make(chan struct{}, 1)}, anyAddress: mode == "" && opts.Endpoint == "",
	}
	return s, nil
}

// EndpointModeVariable is the environment variable from which AWS's SDKs take the endpoint mode.
const EndpointModeVariable = "AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE"

// The modes of the endpoint, in lower case.
const (
	modeIPv4 = "ipv4"
	modeIPv6 = "ipv6"
)

// checkEndpoint refuses what the SDK would misread later, at every poll: it silently drops a path.
func checkEndpoint(endpoint string) error {
	if endpoint == "" {
		return nil
	}
	u, err := url.Parse(endpoint)
	if err != nil {
		return fmt.Errorf("reading the metadata endpoint %q: %w", endpoint, err)
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return fmt.Errorf("reading the metadata endpoint %q: it must look like http://169.254.169.254", endpoint)
	}
	if u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.Fragment != "" {
		return fmt.Errorf("reading the metadata endpoint %q: it must end after the host and port", endpoint)
	}
	return nil
}

// Run looks until ctx ends and then returns nil, after its last request has returned. It never gives up: an absent or
// broken service is reported to the sink and asked again. Run it once at a time.
//
// What is polled depends on the life cycle (see Scope). As long as that is unknown, everything is polled.
func (s *Source) Run(ctx context.Context, sink event.Sink) error {
	known := make(chan string, 1)
	var asking sync.WaitGroup
	asking.Go(func() { s.askLifeCycle(ctx, known) })
	defer asking.Wait()

	first, cancel := context.WithTimeout(ctx, lifeCycleWait)
	lifeCycle := awaitLifeCycle(first, known)
	cancel()

	r := &running{loops: s.newLoops(), sink: sink, ends: map[event.Kind]func(){}, excluded: map[event.Kind]bool{}}
	defer r.stop()
	r.apply(ctx, s.Scope(lifeCycle))
	if lifeCycle == "" {
		lifeCycle = awaitLifeCycle(ctx, known)
	}
	if lifeCycle == "" {
		return nil
	}
	scope := s.Scope(lifeCycle)
	r.apply(ctx, scope)
	if s.opts.Told != nil {
		s.opts.Told(scope)
	}
	<-ctx.Done()
	return nil
}

// awaitLifeCycle returns the life cycle, or "" if ctx ended before it was known.
func awaitLifeCycle(ctx context.Context, known <-chan string) string {
	select {
	case lifeCycle := <-known:
		return lifeCycle
	case <-ctx.Done():
		return ""
	}
}

// newLoops returns a fresh loop for each kind that is to be looked for, the urgent ones first.
func (s *Source) newLoops() []*loop {
	spot, state := s.opts.UrgentInterval, targetStateRatio*s.opts.UrgentInterval
	rebalance, maintained := s.opts.RebalanceInterval, s.opts.MaintenanceInterval
	all := []*loop{
		{kind: event.SpotInterruption, cadence: cadence{spot, 2 * spot}, look: lookForSpot},
		{kind: event.ASGTermination, cadence: cadence{state, 2 * state}, look: s.targetStates.look},
		{kind: event.RebalanceRecommendation, cadence: cadence{rebalance, max(rebalance, longestPause)}, look: lookForRebalance},
		{kind: event.ScheduledMaintenance, cadence: cadence{maintained, max(maintained, longestPause)}, look: (&maintenance{}).look},
	}
	all = slices.DeleteFunc(all, func(l *loop) bool { return !slices.Contains(s.opts.Kinds, l.kind) })
	for i, l := range all {
		l.delay, l.reader = time.Duration(i)*startDelay, s.newReader(&patience{limit: firstLimit})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.loops = all
	return all
}

// Stuck returns an error if a loop hangs: for far longer than its cadence and its limits allow, it has reported
// neither a snapshot nor trouble to the sink. A service that does not answer is trouble, and nothing is stuck.
func (s *Source) Stuck() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.loops {
		if err := l.stuck(); err != nil {
			return err
		}
	}
	return nil
}
