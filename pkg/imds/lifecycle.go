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
const targetStatePath = "autoscaling/target-lifecycle-state"

// The states that end the instance, taken from service or from the warm pool: a warmed instance may have joined the
// cluster while it was being prepared, and then its node goes away just the same.
const (
	terminated       = "Terminated"
	warmedTerminated = "Warmed:Terminated"
)

// isState tells whether that looks like a state. EC2 may add others, and those mean that the instance is not to be
// terminated; an error page or noise does not mean that.
func isState(s string) bool {
	state, warmed, pooled := strings.Cut(s, ":")
	return isStateName(state) && (!pooled || isStateName(warmed))
}

func isStateName(s string) bool { return len(s) <= 32 && stateName.MatchString(s) }

var stateName = regexp.MustCompile(`^[A-Z][A-Za-z]*$`)

// targetState looks whether the group terminates the instance.
func targetState(c *client, bootID string) look {
	parse := func(body []byte) (reading, error) { return parseTargetState(body, bootID) }
	return func(ctx context.Context) (reading, error) { return read(ctx, c, targetStatePath, parse) }
}

// parseTargetState reads the state. The event's ID contains the boot, because a group that stops its instances in the
// warm pool may terminate the same one in a later boot.
func parseTargetState(body []byte, bootID string) (reading, error) {
	state := strings.TrimSpace(string(body))
	if !isState(state) {
		return reading{}, fmt.Errorf("%d bytes that are no lifecycle state", len(body))
	}
	if state != terminated && state != warmedTerminated {
		return reading{}, nil
	}
	return reading{events: []event.Event{{
		ID:    contentID(event.ASGTermination, state, bootID),
		Kind:  event.ASGTermination,
		Code:  state,
		State: event.Pending,
	}}}, nil
}
