package main

import (
	"context"
	"time"

	"github.com/nth-project/nth/pkg/agent"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/imds"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/reservation"
)

// ending is the part of the daemon that hears of the end of the instance's reservation.
type ending struct {
	board  *board
	source *reservation.Source // nil if such ends are to be ignored
}

// sources begins it.
func (e *ending) sources(cfg config.Config, rules policy.Settings, metadata *imds.Source) []agent.Source {
	if rules[event.ReservationEnd].Action == policy.Ignore {
		return nil
	}
	options := reservationOptions(cfg, metadata.Document)
	options.Off = e.board.unreserved
	e.source = reservation.New(options)
	return []agent.Source{e.source}
}

// told says what is watched on this instance.
func (e *ending) told(scope imds.Scope) {
	switch {
	case e.source == nil:
	case scope.Standby:
		e.source.Bought("") // Nothing is done here, whatever ends.
	default:
		e.source.Bought(scope.LifeCycle)
	}
}

func reservationOptions(cfg config.Config, metadata func(context.Context, string) ([]byte, error)) reservation.Options {
	return reservation.Options{Region: cfg.AWS.Region, Endpoint: cfg.AWS.EC2Endpoint, Metadata: metadata}
}

// reservation checks whether the end of a reservation would be heard of.
func (c *check) reservation(ctx context.Context, cfg config.Config, metadata *imds.Source, lifeCycle string) {
	settings := cfg.Events.ReservationEnd
	switch {
	case policy.Action(settings.Action) == policy.Ignore:
		c.OK("capacity", "ignored by configuration: events.%s.action", event.ReservationEnd)
		return
	case !reservation.Ends(lifeCycle):
		return // There is none whose end takes the instance, or it is not known.
	}
	found, err := reservation.Check(ctx, reservationOptions(cfg, metadata.Document))
	switch {
	case err != nil:
		c.Warn("capacity", "%s; its end would not be heard of before the shutdown (docs/reservations.md has the policy that is needed)", err)
	case found.ID == "":
		c.OK("capacity", "it has no end yet that would take the instance")
	case found.Deadline.IsZero():
		c.Warn("capacity", "it is being taken back")
	default:
		c.OK("capacity", "EC2 takes the instance from %s on; the node is looked after from %s on",
			found.Deadline.UTC().Format(time.RFC3339), found.Deadline.Add(-settings.Lead).UTC().Format(time.RFC3339))
	}
}
