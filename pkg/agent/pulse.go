package agent

import "github.com/nth-project/nth/pkg/systemd"

// Pulse is a Source that can tell whether it still looks.
type Pulse interface {
	// Stuck says what has come to a stop that should go on; nil if nothing has.
	Stuck() error
}

// beat feeds the service manager's watchdog, unless a source is stuck: a daemon that decides and no longer sees is as
// good as dead, and the service manager is to start it again.
func (a *Agent) beat() {
	if a.cfg.Service == nil {
		return
	}
	for _, s := range a.cfg.Sources {
		pulse, ok := s.(Pulse)
		if !ok {
			continue
		}
		if err := pulse.Stuck(); err != nil {
			if !a.stuck {
				a.say(systemd.SourceTrouble).WithError(err).Error("a source has come to a stop; waiting for the service manager to start nth again")
			}
			a.stuck = true
			return
		}
	}
	a.stuck = false
	a.cfg.Service.Beat()
}
