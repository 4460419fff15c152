package imds

import (
	"context"
	"errors"
)

// Checkup is the result of Source.Check.
type Checkup struct {
	// Unreachable is why the service gave no session token, or no answer at all; nil if it answers. If set, nothing else was requested.
	Unreachable error
	// Endpoint is where the service has answered, such as "http://169.254.169.254"; empty if it has not answered.
	Endpoint string
	// Polls are the requests for the documents that announce events, one for each document.
	Polls []Poll
}

// Check requests a session token, the life cycle, which every instance has, and every document that announces events, once each. "nth check"
// shows the result. Of the callbacks in Options, Check calls only Observe, and that only for the life cycle.
func (s *Source) Check(ctx context.Context) Checkup {
	var c Checkup
	r := s.newReader()
	_, err := read(ctx, r, lifeCyclePath, shortDocument, parseText)
	c.Endpoint = r.seen.endpoint
	noToken, noAnswer := errors.Is(err, errToken), c.Endpoint == ""
	if err != nil && (noToken || noAnswer) {
		c.Unreachable = err
		return c
	}
	r.observe = func(p Poll) { c.Polls = append(c.Polls, p) }
	for _, p := range s.pollersOfAllKinds(&targetStates{opts: Options{BootID: s.opts.BootID}}) {
		_, _ = p.look(ctx, r) // c.Polls has the errors.
	}
	return c
}
