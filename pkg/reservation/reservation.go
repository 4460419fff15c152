// Package reservation is the event source for the end of the capacity reservation that the instance runs in. The metadata
// service does not tell of it, so the source asks EC2, with the instance's role, and only if the instance's life cycle says that
// it ends with its reservation.
//
// Two kinds of reservations take their instances with them:
//
//   - A Capacity Block. EC2 terminates its instances from half an hour before its end, and those of UltraServers from an hour before:
//     https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-capacity-blocks.html. An extension moves the end.
//   - An interruptible Capacity Reservation, which its owner may take back at any time, with two minutes' notice that goes
//     to EventBridge alone: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/interruptible-capacity-reservations.html.
//     What EC2 says of the reservation then is not documented. This package assumes that it ends at its end date, if it has one, and
//     at once if its state says that it is being canceled.
//
// Instances of any other reservation run on after its end.
package reservation

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/aws/smithy-go"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/role"
)

// The permissions, by their names in IAM policies. Both are for reading only.
const (
	describeInstances    = "ec2:DescribeInstances"
	describeReservations = "ec2:DescribeCapacityReservations"
)

const (
	// interval is the time between two looks while all is well. A Capacity Block is extended hours before its end.
	interval = 5 * time.Minute
	// firstPause is the shortest pause after a look that failed.
	firstPause = 5 * time.Second
	// answerLimit is how long a look may take, including the request for credentials.
	answerLimit = 20 * time.Second
)

// reclaim is how long before the end of a Capacity Block EC2 begins to terminate its instances, and reclaimUltra the same for
// UltraServers.
const reclaim, reclaimUltra = 30 * time.Minute, time.Hour

// ultraServers are the prefixes of the instance types of UltraServers. EC2 does not say whether a reservation is for UltraServers, so
// a type that is not listed here is taken for an ordinary one.
var ultraServers = []string{"p6e-", "trn2u."}

// Options say how to reach EC2.
type Options struct {
	// Region is the region's name, and Endpoint the base URL of EC2 in it. Empty is as in role.Options.
	Region, Endpoint string
	// Metadata reads the documents of the instance metadata service.
	Metadata role.Metadata
	// Off, if set, is called with the reason if EC2 is not asked.
	Off func(why string)
	// Dial makes a connection; nil means the network's own.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Source watches for the end of the instance's reservation. Make one with New.
type Source struct {
	opts   Options
	bought chan string

	ec2                   *ec2.Client // nil before the metadata service has answered
	instance, reservation string      // their IDs; empty if not known yet
}

// New returns a source that asks nothing before Bought is called.
func New(opts Options) *Source { return &Source{opts: opts, bought: make(chan string, 1)} }

// Bought is called once, with the instance's life cycle as the metadata service has it; "" if reservations are not to be looked at.
func (s *Source) Bought(lifeCycle string) {
	select {
	case s.bought <- lifeCycle:
	default: // It is known already.
	}
}

// Ends reports whether instances of a life cycle end with the reservation that they run in.
func Ends(lifeCycle string) bool {
	return lifeCycle == string(types.InstanceLifecycleTypeCapacityBlock) ||
		lifeCycle == string(types.InstanceLifecycleTypeInterruptibleCapacityReservation)
}

// Run watches until ctx ends, and returns nil.
func (s *Source) Run(ctx context.Context, sink event.Sink) error {
	var lifeCycle string
	select {
	case <-ctx.Done():
		return nil
	case lifeCycle = <-s.bought:
	}
	if Ends(lifeCycle) {
		s.watch(ctx, sink)
		return nil
	}
	if s.opts.Off != nil {
		s.opts.Off(strings.TrimSpace(lifeCycle + " instances are not gone with a reservation"))
	}
	sink.Snapshot(event.Snapshot{Kind: event.ReservationEnd})
	<-ctx.Done()
	return nil
}

// watch looks again and again. The looks of a fleet are spread, as it shares the rate limit of an account.
func (s *Source) watch(ctx context.Context, sink event.Sink) {
	failures := 0
	for {
		events, err := s.look(ctx)
		if ctx.Err() != nil {
			return
		}
		pause := role.Spread(interval)
		if err == nil {
			failures = 0
			sink.Snapshot(event.Snapshot{Kind: event.ReservationEnd, Events: events})
		} else {
			sink.Trouble(event.ReservationEnd, err)
			if failures++; !needsPeople(err) {
				pause = role.Pause(failures, firstPause, interval)
			}
		}
		if !role.Sleep(ctx, pause) {
			return
		}
	}
}

// needsPeople reports whether a look will go on failing until somebody grants the instance a permission.
func needsPeople(err error) bool {
	_, refused := errors.AsType[role.RefusedError](err)
	return refused || errors.Is(err, role.ErrNoRole)
}

// look asks EC2 for the end of the reservation.
func (s *Source) look(ctx context.Context) ([]event.Event, error) {
	found, err := s.find(ctx)
	if err != nil || found == nil {
		return nil, err
	}
	if ev, ends := ending(*found); ends {
		return []event.Event{ev}, nil
	}
	return nil, nil
}

// find asks for the reservation that the instance is in; nil if it is in none.
func (s *Source) find(ctx context.Context) (*types.CapacityReservation, error) {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	if s.reservation == "" {
		if err := s.findReservation(ctx); err != nil || s.reservation == "" {
			return nil, err
		}
	}
	answer, err := s.ec2.DescribeCapacityReservations(ctx, &ec2.DescribeCapacityReservationsInput{
		CapacityReservationIds: []string{s.reservation},
	})
	if api, ok := errors.AsType[smithy.APIError](err); ok && api.ErrorCode() == "InvalidCapacityReservationId.NotFound" {
		answer, err = &ec2.DescribeCapacityReservationsOutput{}, nil
	}
	if err != nil {
		return nil, role.Explain(describeReservations, answerLimit, err)
	}
	for _, found := range answer.CapacityReservations {
		if aws.ToString(found.CapacityReservationId) == s.reservation {
			return &found, nil
		}
	}
	lost := s.reservation
	s.reservation = "" // Perhaps the instance is in another one.
	return nil, fmt.Errorf("calling %s: EC2 does not know %s", describeReservations, lost)
}

// begin asks the metadata service for the instance's ID and region. It sends nothing to EC2.
func (s *Source) begin(ctx context.Context) error {
	if s.ec2 != nil {
		return nil
	}
	instance, err := s.opts.Metadata.Line(ctx, "instance-id")
	if err != nil {
		return fmt.Errorf("asking the metadata service who this is: %w", err)
	}
	cfg, err := role.Config(ctx, role.Options{Metadata: s.opts.Metadata, Region: s.opts.Region, Endpoint: s.opts.Endpoint, Dial: s.opts.Dial})
	if err != nil {
		return err
	}
	s.instance, s.ec2 = instance, ec2.NewFromConfig(cfg)
	return nil
}

// findReservation asks which reservation the instance is in.
func (s *Source) findReservation(ctx context.Context) error {
	answer, err := s.ec2.DescribeInstances(ctx, &ec2.DescribeInstancesInput{InstanceIds: []string{s.instance}})
	if err != nil {
		return role.Explain(describeInstances, answerLimit, err)
	}
	for _, r := range answer.Reservations {
		for _, i := range r.Instances {
			if aws.ToString(i.InstanceId) == s.instance {
				s.reservation = aws.ToString(i.CapacityReservationId)
				return nil
			}
		}
	}
	return fmt.Errorf("calling %s: EC2 does not know %s yet", describeInstances, s.instance)
}

// ending returns the event of a reservation, if its end takes the instance. The event's ID is made of the reservation's, so that an end
// that is moved is the same event.
func ending(r types.CapacityReservation) (event.Event, bool) {
	ev := event.Event{
		ID: fmt.Sprintf("%s-%s", event.ReservationEnd, aws.ToString(r.CapacityReservationId)), Kind: event.ReservationEnd, State: event.Pending,
	}
	end := aws.ToTime(r.EndDate)
	switch {
	case aws.ToBool(r.Interruptible) && takenBack(r.State): // It ends before its date, and nothing says when.
		ev.Code = "interruptible"
		return ev, true
	case aws.ToBool(r.Interruptible):
		ev.Code, ev.Deadline = "interruptible", end
		return ev, !end.IsZero()
	case r.ReservationType == types.CapacityReservationTypeCapacityBlock && !end.IsZero():
		before := reclaim
		if slices.ContainsFunc(ultraServers, func(name string) bool { return strings.HasPrefix(aws.ToString(r.InstanceType), name) }) {
			before = reclaimUltra
		}
		ev.Code, ev.Deadline, ev.Until = string(types.CapacityReservationTypeCapacityBlock), end.Add(-before), end
		return ev, true
	}
	return event.Event{}, false
}

// takenBack reports whether a reservation is being canceled, or is over.
func takenBack(state types.CapacityReservationState) bool {
	switch state {
	case types.CapacityReservationStateCancelling, types.CapacityReservationStateCancelled, types.CapacityReservationStateExpired:
		return true
	}
	return false
}

// Check asks once for the end of the reservation that the instance runs in. The event is zero if the instance is in none that takes
// its instances with it.
func Check(ctx context.Context, opts Options) (event.Event, error) {
	events, err := New(opts).look(ctx)
	if err != nil || len(events) == 0 {
		return event.Event{}, err
	}
	return events[0], nil
}
