package metrics

import (
	"fmt"
	"sync/atomic"
	"time"
)

// silence is how long the loop may show nothing before it counts as stuck. It shows how things stand every ten seconds
// at least, and systemd's watchdog gives it as long.
const silence = 30 * time.Second

// pulse is when the loop has last given a sign of life, on the monotonic clock.
type pulse struct{ last atomic.Pointer[time.Time] }

func (p *pulse) beat() {
	now := time.Now()
	p.last.Store(&now)
}

// healthy says what has come to a stop; nil if all goes on. A metadata service or an API server that is away is an
// outage and no stop: nth does all that it can.
func (m *Metrics) healthy() error {
	if quiet := time.Since(*m.pulse.last.Load()); quiet > silence {
		return fmt.Errorf("the loop that decides has given no sign of life for %s", quiet.Round(time.Second))
	}
	if m.opts.Stuck == nil {
		return nil
	}
	return m.opts.Stuck()
}

// ready says why the work cannot be done now: something has come to a stop, or somebody it needs is away.
func (m *Metrics) ready() error {
	if err := m.healthy(); err != nil {
		return err
	}
	return m.opts.Ready()
}
