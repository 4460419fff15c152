package main

import (
	"context"

	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/logind"
)

// beforeDrain is the target whose units are to run before a drain.
const beforeDrain = "nth-before-drain.target"

// scripts are the units that a host's systemd starts before a drain.
type scripts struct{ host logind.Host }

// Run implements drain.Scripts.
func (s scripts) Run(ctx context.Context) error { return s.host.StartTarget(ctx, beforeDrain) }

// scripts are those of the host; nil in a container that has no way there.
func (s surroundings) scripts(cfg config.Config) drain.Scripts {
	if s.deaf(cfg) != nil {
		return nil
	}
	return scripts{logind.Host(cfg.HostRoot)}
}
