package imds

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"
)

// Checkup is how the service answers, asked once.
type Checkup struct {
	// Unreachable is why not even a session token was given; nil if one was. Nothing else is asked for then.
	Unreachable error
	// LifeCycle is the instance's; empty if the service does not tell.
	LifeCycle string
	// Polls are the requests for the documents in which something is announced, one each.
	Polls []Poll
	// Ahead is how far this machine's clock is ahead of the service's, to a second; Dated tells whether that is known.
	Ahead time.Duration
	Dated bool
}

// Hops tells whether the token seems to be lost on its way: the service takes the connection and no answer arrives, as
// in a container on an instance whose hop limit is 1. The answer's packets end there, and those of a handshake do not.
func (c Checkup) Hops() bool {
	return errors.Is(c.Unreachable, errToken) && errors.Is(c.Unreachable, context.DeadlineExceeded)
}

// Check asks for a token, the life cycle and every document, once each.
func (s *Source) Check(ctx context.Context) Checkup {
	var c Checkup
	dates := &dates{}
	ctx = context.WithValue(ctx, datesKey{}, dates)
	asked := s.client(patientTimeout)
	lifeCycle, err := read(ctx, asked, lifeCyclePath, parseLifeCycle)
	c.Ahead, c.Dated = dates.ahead, dates.heard
	if err != nil && (errors.Is(err, errToken) || !dates.heard) {
		c.Unreachable = err
		return c
	}
	c.LifeCycle = lifeCycle
	asked.observe = func(p Poll) { c.Polls = append(c.Polls, p) }
	for _, look := range []look{
		spot(asked), targetState(asked, s.opts.BootID), rebalanceRecommendation(asked), scheduledMaintenance(asked),
	} {
		_, _ = look(ctx) // What it finds is no matter here, and its errors are in the polls.
	}
	return c
}

// Scope is what is polled on instances of a life cycle, as the options say.
func (s *Source) Scope(lifeCycle string) Scope { return s.scope(lifeCycle) }

// errToken is the step in which a session token is asked for.
var errToken = errors.New("asking for a session token")

// dates is what the Date in the header of an answer says about the clocks.
type dates struct {
	heard bool
	ahead time.Duration
}

type datesKey struct{}

// noteDate notes the date of an answer, if the request's context wants that.
func noteDate(ctx context.Context, header http.Header) {
	d, wanted := ctx.Value(datesKey{}).(*dates)
	if !wanted {
		return
	}
	if date, err := http.ParseTime(header.Get("Date")); err == nil {
		d.heard, d.ahead = true, time.Since(date).Truncate(time.Second)
	}
}

// String is a poll in a few words.
func (p Poll) String() string {
	switch p.Result {
	case Failed:
		return p.Err.Error()
	case Absent:
		return fmt.Sprintf("%s: nothing is announced", p.Document)
	default:
		return fmt.Sprintf("%s: read", p.Document)
	}
}
