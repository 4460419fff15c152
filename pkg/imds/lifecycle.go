package imds

import (
	"context"
	"fmt"
	"regexp"
	"strings"

	"github.com/nth-project/nth/pkg/event"
)

// targetStatePath is the state that the instance's Auto Scaling group wants it to be in, as plain text: Detached,
// InService, Standby, Terminated, Warmed:Hibernated, Warmed:Running, Warmed:Stopped or Warmed:Terminated. It is absent
// outside a group and until the first transition. It has neither a time nor an identity.
// https://docs.aws.amazon.com/autoscaling/ec2/userguide/retrieving-target-lifecycle-state-through-imds.html
const targetStatePath = "autoscaling/target-lifecycle-state"

// What a target state means depends on the one before it. An instance that goes to the warm pool is being prepared, unless it was in
// service: then it is taken back, and its node has to be empty before it is stopped, hibernated or reused. The memory is that of a boot,
// as an instance that is started again is prepared anew.
//
// EC2 may add states, such as one for the replacement of the root volume: of an instance in service, that is a departure, too. To
// drain for nothing does less harm than to lose the pods.

const inService = "InService"

// The states that end the instance, taken from service or from the warm pool: a warmed instance may have joined the
// cluster while it was being prepared, and then its node goes away just the same.
const (
	terminated       = "Terminated"
	warmedTerminated = "Warmed:Terminated"
)

// meanings are those of the states that are known.
var meanings = map[string]meaning{
	terminated: ends, warmedTerminated: ends,
	"Warmed:Hibernated": departs, "Warmed:Running": departs, "Warmed:Stopped": departs,
	inService: stays, "Detached": stays, "Standby": stays,
}

// meaning is what a target state is for the instance.
type meaning int

const (
	unknown meaning = iota
	stays
	// departs: it leaves if it was in service. ends: it leaves in any case.
	departs
	ends
)

// isState tells whether that looks like a state. EC2 may add others; an error page or noise is none.
func isState(s string) bool {
	names := strings.Split(s, ":")
	for _, name := range names {
		if len(name) > 32 || !stateName.MatchString(name) {
			return false
		}
	}
	return len(names) <= 3
}

var stateName = regexp.MustCompile(`^([A-Z][a-z]+)+$`)

// transitions follows the target state in one boot. It is used by one goroutine.
type transitions struct {
	opts   Options
	served bool // the instance was in service
	// state is what the last good look has found, and before the one before it.
	state, before string
	looked        bool
	events        []event.Event
	told          map[strange]bool
}

// strange is a state that is not known, and whether it was taken for a departure.
type strange struct {
	state   string
	departs bool
}

func newTransitions(opts Options) *transitions {
	return &transitions{opts: opts, served: opts.WasInService, told: map[strange]bool{}}
}

// targetState looks whether the instance leaves its group's service.
func targetState(c *client, t *transitions) look {
	return func(ctx context.Context) (reading, error) {
		state, err := read(ctx, c, targetStatePath, parseTargetState)
		if err != nil {
			return reading{}, err
		}
		return t.take(state)
	}
}

func parseTargetState(body []byte) (string, error) {
	state := strings.TrimSpace(string(body))
	if !isState(state) {
		return "", fmt.Errorf("%d bytes that are no lifecycle state", len(body))
	}
	return state, nil
}

// take takes in the state that a look has found; "" is none.
func (t *transitions) take(state string) (reading, error) {
	if state != t.state && t.opts.TargetState != nil {
		t.opts.TargetState(state)
	}
	t.before, t.state = t.state, state
	if state == inService && !t.served {
		t.served = true
		if t.opts.InService != nil {
			t.opts.InService()
		}
	}
	leaves := false
	switch meanings[state] {
	case stays:
	case departs:
		leaves = t.served
	case ends:
		leaves = true
	case unknown:
		switch {
		case state == "":
		case t.before != state && !t.looked:
			return reading{}, fmt.Errorf("the target lifecycle state %q is not known; it is looked at again", state)
		case t.before != state: // It counts if it is still there at the next look. Until then, what was known stands.
			return reading{events: t.events}, nil
		default:
			leaves = t.served
			t.tellStrange(strange{state, leaves})
		}
	}
	t.looked, t.events = true, nil
	if leaves {
		t.events = []event.Event{t.departure(state)}
	}
	return reading{events: t.events}, nil
}

// tellStrange tells of an unknown state once, and again if it means something else now.
func (t *transitions) tellStrange(s strange) {
	if !t.told[s] && t.opts.Strange != nil {
		t.opts.Strange(s.state, s.departs)
	}
	t.told[s] = true
}

// departure is the event of the instance leaving for a state. Its ID contains the boot, because a group that stops its instances in the
// warm pool may take the same one in a later boot.
func (t *transitions) departure(state string) event.Event {
	return event.Event{
		ID:    contentID(event.ASGTermination, state, t.opts.BootID),
		Kind:  event.ASGTermination,
		Code:  state,
		State: event.Pending,
	}
}
