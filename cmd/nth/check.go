package main

import (
	"context"
	"flag"

	"github.com/nth-project/nth/cmd/internal/checks"
	"github.com/nth-project/nth/cmd/internal/program"
	"github.com/nth-project/nth/cmd/internal/webhooks"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/record"
	"github.com/nth-project/nth/pkg/systemd"
)

// commandCheck is "nth check".
func commandCheck(ctx context.Context, args []string, to program.Streams) error {
	var path string
	var offline, post bool
	done, err := program.Parse("nth check", checkUsage, args, to, func(flags *flag.FlagSet) {
		program.ConfigFlag(flags, &path)
		flags.BoolVar(&offline, "offline", false, "")
		flags.BoolVar(&post, "webhook", false, "")
	})
	if done || err != nil {
		return err
	}
	c := &check{checks.For("nth", to.Out)}
	ctx, cancel := context.WithTimeout(ctx, checks.Limit)
	defer cancel()
	cfg, looked, err := configBeside(ctx, path, offline)
	degraded, fatal := webhooks.Degraded(err)
	if fatal != nil {
		return c.Wrong(fatal)
	}
	c.settings(path, cfg)
	c.Degraded(degraded)
	c.machine(cfg, "/", offline)
	c.webhook(ctx, cfg, looked, post)
	c.Metrics(ctx, cfg.Metrics, offline)
	if !offline {
		if err := c.surroundings(ctx, cfg); err != nil {
			return err
		}
	}
	return c.End()
}

// errToldConfig ends the program with status 78; what there was to say has been said.
var errToldConfig = program.ConfigError{Fault: program.ErrTold}

// check finds out whether nth can do its work here.
type check struct{ *checks.List }

// settings tells where the settings come from, and what in them keeps nth from acting.
func (c *check) settings(path string, cfg config.Config) {
	place := lookAround().place()
	sources, _ := place.Sources(path) // They have just been read.
	c.Settings(sources, place.File)
	if cfg.DryRun {
		c.DryRun()
	}
}

// machine checks what is there without a network, below root. In an image that is being made, a service that will not
// start is a fault; elsewhere somebody may start nth in another way.
func (c *check) machine(cfg config.Config, root string, image bool) {
	missing := c.Warn
	if image {
		missing = c.Fail
	}
	if err := record.Writable(cfg.StateDirectory); err != nil {
		c.Fail("memory", "%s", err)
	} else {
		c.OK("memory", "%s can be written to", cfg.StateDirectory)
	}
	if around := lookAround(); around.contained {
		c.container(around, cfg)
		return
	}
	found := systemd.FindInstalled(root)
	switch {
	case found.Unit == "":
		missing("service", "nth.service is not installed")
	case found.Enabled == "":
		missing("service", "%s is not enabled: \"systemctl enable nth\" starts it at boot", found.Unit)
	default:
		c.OK("service", "%s is enabled", found.Unit)
	}
	if found.Catalog == "" {
		c.Warn("journal", "the message catalog is not installed: \"journalctl -x\" shows no explanations")
	} else {
		c.OK("journal", "%s explains the messages", found.Catalog)
	}
	if found.DropIn == "" {
		c.Warn("shutdown", "80-nth.conf is not installed for logind: a shutdown may leave almost no time to drain")
	} else {
		c.OK("shutdown", "%s gives drains enough time", found.DropIn)
	}
}

// surroundings checks what nth works with while it runs.
func (c *check) surroundings(ctx context.Context, cfg config.Config) error {
	if err := checks.Hush(); err != nil {
		return err
	}
	metadata, err := checkedSource(cfg)
	if err != nil {
		return err
	}
	c.metadata(ctx, cfg, metadata)
	identity := c.cluster(ctx, cfg, metadata)
	c.daemon(ctx, cfg, identity)
	c.shutdown(ctx, cfg)
	switch {
	case cfg.Log.Format == "prefix":
		c.OK("journal", "nth logs to standard output, with priorities")
	case systemd.JournalAnswers():
		c.OK("journal", "it takes entries")
	default:
		c.Warn("journal", "no journal on this machine; nth logs to standard error")
	}
	return nil
}
