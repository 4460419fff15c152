package main

import (
	"context"
	"time"

	"github.com/nth-project/nth/cmd/internal/daemon"
	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/evict"
	"github.com/nth-project/nth/pkg/loop"
	"github.com/nth-project/nth/pkg/role"
)

const (
	// firstForecast is when the first forecast is made: a node that has just joined still gets its pods.
	firstForecast = time.Minute
	// forecastEvery is the time between forecasts, each of which lists the node's pods, and forecastAgain the time after one that failed.
	forecastEvery, forecastAgain = time.Hour, 10 * time.Minute
)

// forecaster makes forecasts of how long a drain would take.
type forecaster struct {
	look   func(context.Context) (evict.Forecast, error)
	report func(needs time.Duration, cut int)
}

// run makes forecasts until ctx ends, with jitter. Errors are not reported, as whatever prevents a forecast prevents a drain, too.
func (f forecaster) run(ctx context.Context) {
	for pause := firstForecast; loop.Await(ctx, nil, role.Spread(pause)); {
		pause = forecastAgain
		if forecast, err := f.look(ctx); err == nil {
			f.report(forecast.Needs, len(forecast.Cut()))
			pause = forecastEvery
		}
	}
}

// forecast waits for the identity, and makes a forecast of a drain for a spot notice.
func (n *localNode) forecast(ctx context.Context) (evict.Forecast, error) {
	id, err := n.identity(ctx)
	if err != nil {
		return evict.Forecast{}, err
	}
	return drain.New(id.Client, id.Node, *n.options.Load()).Forecast(ctx, daemon.SpotNotice)
}
