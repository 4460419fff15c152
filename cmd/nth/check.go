package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/nth-project/nth/cmd/internal/logging"
	"github.com/nth-project/nth/cmd/internal/program"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/record"
	"github.com/nth-project/nth/pkg/systemd"
)

// checkLimit bounds "nth check" as a whole: whatever hangs, a build gets its answer.
const checkLimit = time.Minute

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
	c := &check{out: to.Out}
	cfg, err := soundConfig(path)
	if err != nil {
		for line := range strings.SplitSeq(err.Error(), "\n") {
			c.fail("settings", "%s", line)
		}
		return errToldConfig
	}
	ctx, cancel := context.WithTimeout(ctx, checkLimit)
	defer cancel()
	c.settings(path, cfg)
	c.machine(cfg, "/", offline)
	c.webhook(ctx, cfg, post)
	if !offline {
		if err := c.surroundings(ctx, cfg); err != nil {
			return err
		}
	}
	if c.failed {
		return program.ErrTold
	}
	return nil
}

// errToldConfig ends the program with status 78; what there was to say has been said.
var errToldConfig = program.ConfigError{Fault: program.ErrTold}

// check prints findings, one line each.
type check struct {
	out    io.Writer
	failed bool
}

func (c *check) line(verdict, subject, format string, args ...any) {
	text := strings.Join(strings.Fields(fmt.Sprintf(format, args...)), " ")
	fmt.Fprintf(c.out, "%-4s  %-10s  %s\n", verdict, subject, text)
}

// ok, warn and fail tell of what is as it should be, what deserves a look, and what keeps nth from its work.
func (c *check) ok(subject, format string, args ...any)   { c.line("ok", subject, format, args...) }
func (c *check) warn(subject, format string, args ...any) { c.line("warn", subject, format, args...) }
func (c *check) fail(subject, format string, args ...any) {
	c.failed = true
	c.line("fail", subject, format, args...)
}

// settings tells where the settings come from, and what in them keeps nth from acting.
func (c *check) settings(path string, cfg config.Config) {
	place := lookAround().place()
	files, _ := place.Files(path) // They have just been read.
	if len(files) == 0 {
		files = []string{"the defaults; there is no " + place.File}
	}
	c.ok("settings", "%s", strings.Join(files, ", "))
	if cfg.DryRun {
		c.warn("settings", "dry_run = true: nth will say what it would do, and do none of it")
	}
}

// machine checks what is there without a network, below root. In an image that is being made, a service that will not
// start is a fault; elsewhere somebody may start nth in another way.
func (c *check) machine(cfg config.Config, root string, image bool) {
	missing := c.warn
	if image {
		missing = c.fail
	}
	if err := record.Writable(cfg.StateDirectory); err != nil {
		c.fail("memory", "%s", err)
	} else {
		c.ok("memory", "%s can be written to", cfg.StateDirectory)
	}
	if around := lookAround(); around.contained {
		c.container(around, cfg)
		return
	}
	found := systemd.FindInstalled(root)
	switch {
	case found.Unit == "":
		missing("service", "nth.service is not installed: nothing starts nth")
	case found.Enabled == "":
		missing("service", "%s is not enabled: \"systemctl enable nth\" lets it start with the machine", found.Unit)
	default:
		c.ok("service", "%s is enabled", found.Unit)
	}
	if found.Catalog == "" {
		c.warn("journal", "the message catalog is not installed: \"journalctl -x\" has nothing to add")
	} else {
		c.ok("journal", "%s explains the messages", found.Catalog)
	}
	if found.DropIn == "" {
		c.warn("shutdown", "80-nth.conf is not installed for logind: a shutdown may leave a drain hardly any time")
	} else {
		c.ok("shutdown", "%s gives a drain its time", found.DropIn)
	}
}

// surroundings checks what nth works with while it runs.
func (c *check) surroundings(ctx context.Context, cfg config.Config) error {
	silent := logrus.New()
	silent.SetOutput(io.Discard)
	logging.QuietLibraries(logrus.NewEntry(silent))
	if err := logging.HurryLibraries(); err != nil {
		return fmt.Errorf("setting client-go's limits: %w", err)
	}
	metadata, err := checkedSource(cfg)
	if err != nil {
		return err
	}
	c.metadata(ctx, cfg, metadata)
	c.cluster(ctx, cfg, metadata)
	c.shutdown(ctx, cfg)
	switch {
	case cfg.Log.Format == "prefix":
		c.ok("journal", "what nth says goes to standard output, with priorities")
	case systemd.JournalAnswers():
		c.ok("journal", "it takes entries")
	default:
		c.warn("journal", "there is none on this machine; what nth says goes to standard error")
	}
	return nil
}
