package imds

import (
	"context"
	"errors"
	"time"
)

// Checkup is the result of Source.Check.
type Checkup struct {
	// Unreachable is why not even a session token was given; nil if one was. Nothing else is requested then.
	Unreachable error
	// Endpoint is where the service has answered, such as "http://169.254.169.254"; empty if it has not.
	Endpoint string
	// LifeCycle is the instance's; empty if the service does not say.
	LifeCycle string
	// Polls are the requests for the documents in which something is announced, one each.
	Polls []Poll
	// Ahead is how far this machine's clock is ahead of the service's, to a second; Dated says whether that is known.
	Ahead time.Duration
	Dated bool
}

// Check requests a session token, the life cycle and every document that is polled, once each. "nth check" shows the result. Check
// calls no callback in Options but Observe.
func (s *Source) Check(ctx context.Context) Checkup {
	var c Checkup
	r := s.newReader()
	lifeCycle, err := read(ctx, r, lifeCyclePath, shortDocument, parseLifeCycle)
	seen := &r.seen
	c.Endpoint, c.Dated = seen.endpoint, !seen.date.IsZero()
	if c.Dated {
		c.Ahead = seen.at.Sub(seen.date).Truncate(time.Second)
	}
	if err != nil && (errors.Is(err, errToken) || !c.Dated) { // Every answer has a date: without one, none came.
		c.Unreachable = err
		return c
	}
	c.LifeCycle = lifeCycle
	r.observe = func(p Poll) { c.Polls = append(c.Polls, p) }
	for _, look := range []func(context.Context, *reader) (found, error){
		lookForSpot, (&targetStates{opts: Options{BootID: s.opts.BootID}}).look, lookForRebalance, (&maintenance{}).look,
	} {
		_, _ = look(ctx, r) // Its errors are in c.Polls.
	}
	return c
}
