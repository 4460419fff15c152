// Package imds is the event source over EC2's instance metadata service: it polls the four documents in which EC2
// announces what will happen to the machine and turns them into events.
//
//	spot/instance-action                 spot-interruption            urgent
//	autoscaling/target-lifecycle-state   asg-termination              urgent
//	events/recommendations/rebalance     rebalance-recommendation
//	events/maintenance/{scheduled,history}  scheduled-maintenance
//
// Each document has a loop of its own (loop.go) with an SDK client of its own (client.go), so that a request that hangs
// delays nothing but itself. What they share is what they know of the service: whether it is slow, and at which of its
// two addresses it is reached (service.go). A look that fails is reported as trouble and never as an empty snapshot: only EC2's own
// "there is none" means that nothing is announced. How each document is read stands at the top of its file; how odd
// ones are read is told in docs/events.md.
//
// The service is asked in its second version only (IMDSv2, with session tokens), and nothing is ever written to it.
package imds

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nth-project/nth/pkg/event"
)

// The cadences that New fills in. The urgent one is short because a spot notice gives two minutes and every
// millisecond before the cordon is lost; the others announce things that are minutes or days away.
const (
	DefaultUrgentInterval      = 500 * time.Millisecond
	DefaultRebalanceInterval   = 5 * time.Second
	DefaultMaintenanceInterval = 30 * time.Second
)

// SeldomInterval is the shortest time between two polls of what EC2 documents not to announce on instances of a life cycle.
// It is heeded all the same: life cycles have been added, and what stands in for the service may know only one.
const SeldomInterval = 5 * time.Second

// afterUrgent is by how much the first look at what is not urgent comes later: of a service that answers one request
// after the other, the urgent ones are to be the first.
const afterUrgent = 10 * time.Millisecond

// headStart is how long Run waits for the life cycle before it polls everything. A healthy service answers in a few
// milliseconds, and an unhealthy one must not delay the look for a spot notice.
const headStart = 250 * time.Millisecond

// Options say what a Source polls, and how often.
type Options struct {
	// Endpoint is the service's base URL, such as "http://169.254.169.254"; empty means EC2's own, which the environment
	// variable AWS_EC2_METADATA_SERVICE_ENDPOINT overrides.
	Endpoint string
	// EndpointMode says which of EC2's own addresses is asked: "IPv4" or "IPv6", in any case. Empty means whichever
	// answers, IPv4 first. It is of no matter where an endpoint is given.
	EndpointMode string
	// UrgentInterval is the time between two polls of the spot notice and of the target lifecycle state,
	// RebalanceInterval and MaintenanceInterval those of the others. Zero means the default.
	UrgentInterval, RebalanceInterval, MaintenanceInterval time.Duration
	// LifeCycles, if not empty, names the life cycles ("spot", "on-demand", ...) of the instances on which anything is
	// polled at all.
	LifeCycles []string
	// Kinds are the kinds to poll; nil means all that this source knows, and others are passed over.
	Kinds []event.Kind
	// BootID identifies this boot of the machine. It is part of the ID of an ASG termination, whose document has no
	// identity of its own, and required if that kind is polled.
	BootID string
	// WasInService tells that the instance's Auto Scaling group has wanted it in service before, in this boot; InService, if set, is called
	// once when it first does. From then on, other target states mean that it leaves.
	WasInService bool
	InService    func()
	// TargetState, if set, is called when the group's target state for the instance has become another; "" is none. Strange, if set, is
	// called once for each that is not known, and says whether the instance leaves by it.
	TargetState func(state string)
	Strange     func(state string, departs bool)
	// Observe, if set, is called after each request for a document, from several goroutines at once.
	Observe func(Poll)
	// Renewed, if set, is called after each request for a session token, from several goroutines at once; err says why
	// there is none.
	Renewed func(err error)
	// Told, if set, is called once, when the instance's life cycle has become known.
	Told func(Scope)
}

// Source polls the metadata service. Make one with New.
type Source struct {
	opts    Options
	dial    dialer
	service *service
	// transitions are those of the boot, also if it is run more than once.
	transitions *transitions

	mu     sync.Mutex
	pulses []*pulse // of the loops of the present run
}

// New checks the options and returns a source that has not asked anything yet.
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
	s := &Source{opts: opts, service: newService(nil), transitions: newTransitions(opts)}
	switch strings.ToLower(opts.EndpointMode) {
	case "":
		if opts.Endpoint == "" {
			s.service.addresses = &addresses{}
		}
	case modeIPv4, modeIPv6:
	default:
		return nil, fmt.Errorf("the environment has %s=%q: it must be IPv4 or IPv6", EndpointModeVariable, opts.EndpointMode)
	}
	return s, nil
}

// EndpointModeVariable is the variable of the environment by which AWS's SDKs are told an endpoint mode.
const EndpointModeVariable = "AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE"

// The modes of the endpoint, in lower case.
const (
	modeIPv4 = "ipv4"
	modeIPv6 = "ipv6"
)

// checkEndpoint refuses what the SDK would misread later, at every poll: it drops a path without a word.
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

// Run polls until ctx ends and then returns nil, after its last request has returned. It never gives up: an absent or
// broken service is trouble for the sink and asked again. Run it once at a time.
//
// What is polled depends on the life cycle (see Scope). As long as that is unknown, everything is polled.
func (s *Source) Run(ctx context.Context, sink event.Sink) error {
	known := make(chan string, 1)
	var asking sync.WaitGroup
	asking.Go(func() { s.askLifeCycle(ctx, known) })
	defer asking.Wait()

	first, cancel := context.WithTimeout(ctx, headStart)
	lifeCycle := await(first, known)
	cancel()

	w := newWatch(s.loops(), sink)
	defer w.stop()
	w.narrow(ctx, s.scope(lifeCycle))
	if lifeCycle == "" {
		lifeCycle = await(ctx, known)
	}
	if lifeCycle == "" {
		return nil
	}
	scope := s.scope(lifeCycle)
	w.narrow(ctx, scope)
	if s.opts.Told != nil {
		s.opts.Told(scope)
	}
	<-ctx.Done()
	return nil
}

// await returns the life cycle, or "" if ctx ended before it was known.
func await(ctx context.Context, known <-chan string) string {
	select {
	case lifeCycle := <-known:
		return lifeCycle
	case <-ctx.Done():
		return ""
	}
}

// loops lists the loops of the kinds that are to be polled, each with its client and fresh state. The urgent ones come first.
func (s *Source) loops() []loop {
	urgent := pace{interval: s.opts.UrgentInterval, ceiling: 2 * s.opts.UrgentInterval}
	rebalance := pace{interval: s.opts.RebalanceInterval, ceiling: max(s.opts.RebalanceInterval, slowCeiling)}
	maintenance := pace{interval: s.opts.MaintenanceInterval, ceiling: max(s.opts.MaintenanceInterval, slowCeiling)}

	all := []loop{
		{kind: event.SpotInterruption, pace: urgent, look: spot(s.client(true))},
		{kind: event.ASGTermination, pace: urgent, look: targetState(s.client(true), s.transitions)},
		{kind: event.RebalanceRecommendation, pace: rebalance, after: afterUrgent, look: rebalanceRecommendation(s.client(false))},
		{kind: event.ScheduledMaintenance, pace: maintenance, after: afterUrgent, look: scheduledMaintenance(s.client(false))},
	}
	all = slices.DeleteFunc(all, func(l loop) bool { return !slices.Contains(s.opts.Kinds, l.kind) })
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pulses = nil
	for i := range all {
		all[i].seldom = new(atomic.Bool)
		all[i].pulse = newPulse(all[i].kind, all[i].pace, answerLimit)
		s.pulses = append(s.pulses, all[i].pulse)
	}
	return all
}

// client returns a new client of the service, for documents that are urgent or not. One for each loop: an SDK client lets
// only one request at a time ask for a session token and makes the others wait for it, however long that takes.
func (s *Source) client(urgent bool) *client {
	return newClient(s.opts, urgent, s.dial, s.service)
}

// once returns a client for those who ask once and ask again when they need to: what hangs is given up soon, so that the
// next item or the next attempt has its time, unless the service is known to be slow.
func (s *Source) once() *client {
	c := s.client(false)
	c.turn = once
	if !s.service.isSlow() {
		c.limit = c.patience
	}
	return c
}
