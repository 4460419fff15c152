package main

import (
	"context"
	"time"

	"github.com/nth-project/nth/cmd/internal/daemon"
	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/role"
)

const (
	// firstForecast is how long after the start the first one is made: a node that has just joined is still taking its pods.
	firstForecast = time.Minute
	// forecastEvery is the time between two, as each asks for the node's pods, which nobody watches while nothing is announced.
	// forecastAgain is that after one that failed.
	forecastEvery, forecastAgain = time.Hour, 10 * time.Minute
)

// forecaster tells again and again how long a drain would take.
type forecaster struct {
	look func(context.Context) (drain.Forecast, error)
	tell func(needs time.Duration, cut int)
}

// run works until ctx ends, and not in step with the fleet's other nodes. That no forecast can be made is told elsewhere: then nobody could drain either.
func (f forecaster) run(ctx context.Context) {
	for pause := firstForecast; drain.Await(ctx, nil, role.Spread(pause)); {
		pause = forecastAgain
		if forecast, err := f.look(ctx); err == nil {
			f.tell(forecast.Needs, len(forecast.Cut))
			pause = forecastEvery
		}
	}
}

// forecast waits for the identity, and says how a drain for a spot notice would come along.
func (s *localNode) forecast(ctx context.Context) (drain.Forecast, error) {
	id, err := s.identity(ctx)
	if err != nil {
		return drain.Forecast{}, err
	}
	return drain.New(id.Client, id.Node, *s.options.Load()).Forecast(ctx, daemon.SpotNotice)
}
