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
	"github.com/nth-project/nth/pkg/fleet"
	"github.com/nth-project/nth/pkg/queue"
)

// checkLimit bounds "nth-queue check" as a whole.
const checkLimit = time.Minute

// commandCheck is "nth-queue check".
func commandCheck(ctx context.Context, args []string, to program.Streams) error {
	var path string
	done, err := program.Parse("nth-queue check", checkUsage, args, to, func(flags *flag.FlagSet) { program.ConfigFlag(flags, &path) })
	if done || err != nil {
		return err
	}
	c := &check{out: to.Out}
	cfg, err := effectiveConfig(path)
	if err != nil {
		for line := range strings.SplitSeq(err.Error(), "\n") {
			c.fail("settings", "%s", line)
		}
		return program.ConfigError{Fault: program.ErrTold}
	}
	silent := logrus.New()
	silent.SetOutput(io.Discard)
	logging.QuietLibraries(logrus.NewEntry(silent))
	if err := logging.HurryLibraries(); err != nil {
		return fmt.Errorf("setting client-go's limits: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, checkLimit)
	defer cancel()
	c.settings(path, cfg)
	c.queue(ctx, cfg)
	c.cluster(ctx, cfg)
	if c.failed {
		return program.ErrTold
	}
	return nil
}

// check prints findings, one line each.
type check struct {
	out    io.Writer
	failed bool
}

func (c *check) line(verdict, subject, format string, args ...any) {
	text := strings.Join(strings.Fields(fmt.Sprintf(format, args...)), " ")
	fmt.Fprintf(c.out, "%-4s  %-10s  %s\n", verdict, subject, text)
}

// ok, warn and fail tell of what is as it should be, what deserves a look, and what keeps nth-queue from its work.
func (c *check) ok(subject, format string, args ...any)   { c.line("ok", subject, format, args...) }
func (c *check) warn(subject, format string, args ...any) { c.line("warn", subject, format, args...) }
func (c *check) fail(subject, format string, args ...any) {
	c.failed = true
	c.line("fail", subject, format, args...)
}

func (c *check) settings(path string, cfg config.Queue) {
	files, _ := config.QueueFiles(path) // They have just been read.
	if len(files) == 0 {
		files = []string{"the defaults; there is no " + config.QueueFile}
	}
	c.ok("settings", "%s", strings.Join(files, ", "))
	if cfg.Queue.URL == "" {
		c.fail("settings", "queue.url is not set")
	}
	if cfg.DryRun {
		c.warn("settings", "dry_run = true: nth-queue will say what it would do, and do none of it")
	}
}

// queue checks that the queue is there and may be asked. Nothing is received.
func (c *check) queue(ctx context.Context, cfg config.Queue) {
	if cfg.Queue.URL == "" {
		return
	}
	asked, err := awsConfig(ctx, cfg)
	if err != nil {
		c.fail("queue", "%s", err)
		return
	}
	visible, inFlight, err := queue.New(queue.Options{URL: cfg.Queue.URL, AWS: asked}).Check(ctx)
	if err != nil {
		c.fail("queue", "%s", err)
		return
	}
	c.ok("queue", "%s messages wait, %s are being worked on", visible, inFlight)
}

// cluster checks the identity, what it may do, and whether instances can be told from nodes.
func (c *check) cluster(ctx context.Context, cfg config.Queue) {
	client, server, err := fleet.Connect(cfg.Kubernetes.Kubeconfig, "nth-queue")
	if err != nil {
		c.fail("identity", "%s", err)
		return
	}
	c.ok("identity", "for %s", server)
	for _, right := range fleet.Rights() {
		switch allowed, err := fleet.May(ctx, client, right); {
		case err != nil:
			c.fail("right", "%s", err)
			return
		case !allowed:
			c.fail("right", "%s: refused; it is needed %s", right, right.For)
		default:
			c.ok("right", "%s", right)
		}
	}
	switch all, anonymous, err := fleet.Census(ctx, client); {
	case err != nil:
		c.fail("nodes", "%s", err)
	case anonymous > 0:
		c.warn("nodes", "%d of %d do not tell their instance (spec.providerID): EC2 is asked for its private DNS name", anonymous, all)
	default:
		c.ok("nodes", "all %d tell their instance", all)
	}
}
