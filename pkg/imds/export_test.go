package imds

import (
	"context"
	"net"

	"github.com/nth-project/nth/pkg/event"
)

// DialWith makes the source connect with dial, so that tests can run on a network and a clock of their own.
func (s *Source) DialWith(dial func(ctx context.Context, network, address string) (net.Conn, error)) {
	s.dial = dial
}

// The parsers, for fuzzing.

func ParseSpot(body []byte) ([]event.Event, error) {
	r, err := parseSpot(body)
	return r.events, err
}

func ParseRebalance(body []byte) ([]event.Event, error) {
	r, err := parseRebalance(body)
	return r.events, err
}

func ParseTargetState(body []byte) ([]event.Event, error) {
	state, err := parseTargetState(body)
	if err != nil {
		return nil, err
	}
	return (&targetStates{opts: Options{BootID: "boot"}, served: true}).follow(state).events, nil
}

func ParseMaintenance(body []byte) ([]event.Event, error) {
	l, err := parseMaintenance(body)
	return l.events, err
}
