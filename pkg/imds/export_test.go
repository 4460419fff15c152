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

var ParseSpot, ParseRebalance, ParseMaintenance = eventsOf(parseSpot), eventsOf(parseRebalance), eventsOf(parseMaintenance)

func eventsOf(parse func([]byte) (found, error)) func([]byte) ([]event.Event, error) {
	return func(body []byte) ([]event.Event, error) {
		f, err := parse(body)
		return f.events, err
	}
}

func ParseTargetState(body []byte) ([]event.Event, error) {
	state, err := parseTargetState(body)
	if err != nil {
		return nil, err
	}
	return (&targetStates{opts: Options{BootID: "boot"}, served: true}).follow(state).events, nil
}
