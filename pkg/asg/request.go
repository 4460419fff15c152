package asg

import (
	"context"
	"errors"

	"github.com/nth-project/nth/pkg/role"
)

// Request is what is asked of Auto Scaling about a hook that waits. Its text never changes: people meet it in metrics.
type Request string

// The requests.
const (
	// Heartbeat: wait for another timeout. Continue and Abandon end the waiting, each with its result.
	Heartbeat Request = "heartbeat"
	Continue  Request = "continue"
	Abandon   Request = "abandon"
)

// Requests lists all requests.
func Requests() []Request { return []Request{Heartbeat, Continue, Abandon} }

// Answer is what came of a Request. Its text never changes, either.
type Answer string

// The answers.
const (
	OK Answer = "ok"
	// Nothing: the hook is over already, or is not there.
	Nothing Answer = "nothing-waits"
	// NotAllowed: the role does not allow it, or there is none.
	NotAllowed Answer = "refused"
	Throttled  Answer = "throttled"
	// Failed: Auto Scaling does not answer, or not as it should.
	Failed Answer = "failed"
)

// Answers lists all answers.
func Answers() []Answer { return []Answer{OK, Nothing, NotAllowed, Throttled, Failed} }

// came tells what came of a request that ended with err, for which a permission is needed, and returns why it failed in plain
// words. What ended since ctx did came to nothing.
func (s *service) came(ctx context.Context, what Request, permission string, err error) error {
	explained := explain(permission, err)
	if s.requested != nil && ctx.Err() == nil {
		s.requested(what, answerOf(err, explained))
	}
	return explained
}

func answerOf(err, explained error) Answer {
	switch {
	case err == nil:
		return OK
	case errors.Is(explained, errNothingWaits):
		return Nothing
	case unpermitted(explained):
		return NotAllowed
	case role.Throttled(err):
		return Throttled
	}
	return Failed
}
