package main

import (
	"context"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/nth-project/nth/cmd/internal/counting"
	"github.com/nth-project/nth/cmd/internal/draining"
	"github.com/nth-project/nth/pkg/asg"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/imds"
	"github.com/nth-project/nth/pkg/record"
	"github.com/nth-project/nth/pkg/systemd"
)

// newHooks returns the metadata source with one before it that keeps lifecycle hooks.
func newHooks(
	metadata *imds.Source, cfg config.Config, book *record.Store, board *board, counts counting.Counts, log *logrus.Entry,
) *asg.Keeper {
	options := hookOptions(cfg, metadata)
	options.FirstSeen = func(id string) time.Time { return firstSeen(book, id) }
	options.Requested = counts.HookRequested
	options.Tell = func(n asg.News) {
		board.hooked(n.Text)
		tellHook(log, n)
	}
	return asg.New(metadata, options, draining.Hooks(cfg.Events.ASGTermination.Termination))
}

func hookOptions(cfg config.Config, metadata *imds.Source) asg.Options {
	return asg.Options{
		Region: cfg.AWS.Region, Endpoint: cfg.AWS.Endpoint, Metadata: metadata.Document, DryRun: cfg.DryRun,
	}
}

// firstSeen is when the event was first met, by this process or one before it; zero if never. What is closed was another departure of
// the same boot, whose time is over.
func firstSeen(book *record.Store, id string) time.Time {
	for _, e := range book.Entries() {
		if e.Event.ID == id && e.Phase != record.Closed {
			return e.FirstSeen
		}
	}
	return time.Time{}
}

// follow lets what the Auto Scaling group wants the instance to be be told, shown and remembered.
func follow(opts *imds.Options, book *record.Store, board *board, log *logrus.Entry) {
	opts.WasInService = book.WasInService()
	opts.InService = func() {
		book.SetInService(func(err error) {
			if err != nil {
				log.WithField(systemd.FieldMessageID, systemd.StateTrouble).
					Errorf("remembering that the instance is in service: %s", err)
			}
		})
	}
	opts.TargetState = board.targeted
	opts.Strange = func(state string, departs bool) {
		log := log.WithField(systemd.FieldMessageID, systemd.TargetStateUnknown).WithField(systemd.FieldEventKind, string(event.ASGTermination))
		if departs {
			log.Warnf("unknown Auto Scaling target state %s: the instance was in service, so it is taken to leave", state)
			return
		}
		log.Infof("unknown Auto Scaling target state %s: the instance was not in service since boot, so nothing is done", state)
	}
}

// tellHook writes news of a lifecycle hook into the journal.
func tellHook(log *logrus.Entry, n asg.News) {
	log = log.WithField(systemd.FieldEventID, n.Event.ID).WithField(systemd.FieldEventKind, string(n.Event.Kind))
	switch n.What {
	case asg.Trouble:
		log.WithField(systemd.FieldMessageID, systemd.HookTrouble).Warn(n.Text)
	case asg.Refused:
		log.WithField(systemd.FieldMessageID, systemd.HookRefused).Warn(n.Text)
	case asg.Completed:
		log.WithField(systemd.FieldMessageID, systemd.HookCompleted).Info(n.Text)
	case asg.Found:
		log.WithField(systemd.FieldMessageID, systemd.HookFound).Info(n.Text)
	}
}

// hook checks, without changing anything, whether the hook of the group that the instance is in can be looked after.
func (c *check) hook(ctx context.Context, cfg config.Config, metadata *imds.Source) {
	if !draining.Hooks(cfg.Events.ASGTermination.Termination).Complete {
		c.OK("hook", "lifecycle hooks are disabled by configuration: events.%s", event.ASGTermination)
		return
	}
	found := asg.Check(ctx, hookOptions(cfg, metadata), draining.Hooks(cfg.Events.ASGTermination.Termination))
	switch {
	case found.Err != nil:
		c.Warn("hook", "%s; a termination would be drained for within its budget, and lifecycle hooks left to their timeouts", found.Err)
	case found.Found == "":
		c.OK("hook", "the instance is in no Auto Scaling group")
	case !found.Ours:
		c.Warn("hook", "%s", found.Found)
	default:
		c.OK("hook", "%s", found.Found)
	}
	switch {
	case found.Kept:
		c.OK("hook", "%s", found.Keeps)
	case found.Keeps != "":
		c.Warn("hook", "%s", found.Keeps)
	}
	if found.Missing != nil {
		for line := range strings.SplitSeq(found.Missing.Error(), "\n") {
			c.Warn("hook", "%s", line)
		}
	}
}
