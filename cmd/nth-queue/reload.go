package main

import (
	"strings"

	"github.com/sirupsen/logrus"

	"github.com/nth-project/nth/cmd/internal/logging"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/fleet"
)

// adjustable are the parts of the service that follow the settings while they run.
type adjustable struct {
	logger  *logrus.Logger
	fleet   *fleet.Fleet
	hooks   hooks
	notices *notices
	board   *board
	gate    *drain.Gate
}

// use puts settings into effect for what begins from now on. degraded is what is wrong with those that were read.
func (a adjustable) use(cfg config.Queue, degraded []string) {
	logging.SetLevel(a.logger, cfg.Log)
	a.hooks.told.Use(hookSettings(cfg))
	a.fleet.Use(rulesOf(cfg, a.gate))
	a.notices.use(cfg)
	a.board.degrade(degraded)
}

// rulesOf are those of the fleet's settings that may change while it works.
func rulesOf(cfg config.Queue, gate *drain.Gate) fleet.Rules {
	return fleet.Rules{
		Policy: policyOf(cfg.Events), Drain: drainOptions(cfg, gate),
		Draining: cfg.Fleet.MaxDraining, Group: cfg.Fleet.MaxPerGroup, Impaired: cfg.Events.StatusCheck.After,
	}
}

// late tells whether a setting takes effect at the next start only.
func late(name string, _, _ config.Queue) bool {
	switch name {
	case "log.level", "fleet.max_draining", "fleet.max_per_group", "fleet.launch_hooks", "fleet.after_drain", "fleet.restart_wait":
		return false
	}
	for _, table := range []string{"drain.", "webhook.", "events."} {
		if strings.HasPrefix(name, table) {
			return false
		}
	}
	return true
}
