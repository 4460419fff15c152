package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/fleet"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/sqs"
)

// queue checks that the queue is there, that it can be read, and how it is set up. Nothing is received.
func (c *check) queue(ctx context.Context, cfg config.Queue, account aws.Config) {
	q := sqs.New(sqs.Options{URL: cfg.Queue.URL, AWS: account, Visibility: cfg.Queue.Visibility})
	found, allowed, err := q.Check(ctx)
	switch {
	case err != nil:
		c.Fail("queue", "%s", err)
		return
	case !allowed:
		c.Warn("queue", "%s: refused; how the queue is set up cannot be told, and nothing else needs it", sqs.GetQueueAttributes)
	default:
		c.OK("queue", "%d messages wait, %d are being worked on", found.Visible, found.InFlight)
		c.lifeOf(cfg, found)
		c.wayInto(found)
	}
	for _, right := range sqs.Rights() {
		allowed, err := q.May(ctx, right)
		switch {
		case err != nil:
			c.Fail("right", "%s", err)
		case allowed && right.Vague:
			c.OK("right", "%s: not refused, as far as can be told without receiving a message", right.Name)
		default:
			c.Right(right.Name, right.For, false, allowed)
		}
	}
}

// longestRetention is the longest that SQS keeps a message.
const day, longestRetention = 24 * time.Hour, 14 * 24 * time.Hour

// lifeOf checks for how long a message lives.
func (c *check) lifeOf(cfg config.Queue, found sqs.Attributes) {
	waiting := time.Duration(0)
	if waits(cfg.Events.ScheduledMaintenance) {
		waiting = found.Retention
	}
	switch {
	case waiting > 0 && waiting < longestRetention:
		c.Warn("queue", "messages are kept for %s (MessageRetentionPeriod): what is planned for later is forgotten; SQS can keep them for %s",
			span(waiting), span(longestRetention))
	case found.Retention > 0:
		c.OK("queue", "messages are kept for %s", span(found.Retention))
	}
	if found.DeadLetters == "" {
		c.Warn("queue", "it has no dead-letter queue (RedrivePolicy): a message that nobody understands comes again and again, until it is not kept any more")
		return
	}
	least := fleet.UrgentReceives(longestNotice)
	if waiting > 0 {
		least = max(least, sqs.Receives(waiting))
	}
	if found.MaxReceives >= least {
		c.OK("queue", "a message whose drain fails is tried for %s, and goes to %s then", span(fleet.Endurance(found.MaxReceives)),
			found.DeadLetters[strings.LastIndexByte(found.DeadLetters, ':')+1:])
		return
	}
	waiters := ""
	if waiting > 0 {
		waiters = fmt.Sprintf("; one that waits %s for a planned change is received %d times", span(waiting), sqs.Receives(waiting))
	}
	c.Warn("queue", "a message is given up when it has been received %d times (maxReceiveCount), so after %s if its drain fails%s: make it %d or more",
		found.MaxReceives, span(fleet.Endurance(found.MaxReceives)), waiters, least)
}

// longestNotice is what the end of a Capacity Block leaves, of which EC2 tells forty minutes before: its instances go ten minutes later.
// No other interruption that is told with its time leaves as much, but for planned changes.
const longestNotice = 10 * time.Minute

// waits tells whether messages stay in the queue until what they announce is near.
func waits(c config.QueueMaintenance) bool {
	acts := policy.Action(c.Action) == policy.Drain || policy.Action(c.Action) == policy.Cordon
	waiting := func(when string) bool { return when == string(policy.Lead) || when == string(policy.Window) }
	return acts && slices.ContainsFunc(slices.Collect(maps.Values(c.Codes)), waiting)
}

// wayInto checks what keeps messages from getting into the queue in time, or out of it.
func (c *check) wayInto(found sqs.Attributes) {
	if found.Delay > 0 {
		c.Warn("queue", "messages are kept back for %s at first (DelaySeconds), of the two minutes that a spot interruption leaves", found.Delay)
	}
	if found.FIFO {
		c.Warn("queue", "it is a FIFO queue: a message waits until the one before it is done, with its drain")
	}
	if !found.Policy {
		c.Warn("queue", "it has no policy: EventBridge cannot write into it, unless its rules have a role that may")
	}
	switch {
	case strings.HasSuffix(found.Key, "alias/aws/sqs"):
		c.Warn("queue", "messages are encrypted with %s, a key that EventBridge may not use: take SQS's own encryption, or a key of yours", found.Key)
	case found.Key != "":
		c.Warn("queue", "messages are encrypted with the KMS key %s; not tried: whether EventBridge may use it, and nth-queue (kms:Decrypt)", found.Key)
	}
}

// span writes a time in days where it has whole ones, and else to the minute.
func span(d time.Duration) string {
	switch {
	case d == day:
		return "1 day"
	case d%day == 0:
		return fmt.Sprintf("%d days", d/day)
	case d < time.Minute:
		return d.String()
	}
	return strings.TrimSuffix(d.Round(time.Minute).String(), "0s")
}
