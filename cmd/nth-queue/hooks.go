package main

import (
	"context"
	"net/url"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/sirupsen/logrus"

	"github.com/nth-project/nth/cmd/internal/counting"
	"github.com/nth-project/nth/cmd/internal/draining"
	"github.com/nth-project/nth/pkg/asg"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/sqs"
	"github.com/nth-project/nth/pkg/systemd"
)

// hooks lets the fleet speak to Auto Scaling.
type hooks struct{ told *asg.Told }

func newHooks(cfg config.Queue, asked aws.Config, counts counting.Counts, log *logrus.Entry) hooks {
	return hooks{asg.NewTold(asg.ToldOptions{
		AWS: asked, Queue: resourceOf(cfg.Queue.URL, asked.Region), Requested: counts.HookRequested,
		Tell: func(n asg.News) { tellHook(log, n) },
	}, hookSettings(cfg))}
}

// hookSettings are the settings for the hooks of terminations and launches.
func hookSettings(cfg config.Queue) asg.Settings {
	settings := draining.Hooks(cfg.Events.ASGTermination)
	settings.LaunchHooks, settings.AfterDrain = cfg.Fleet.LaunchHooks, asg.AfterDrain(cfg.Fleet.AfterDrain)
	return settings
}

// resourceOf is a queue as its ARN has it after the partition; empty if its URL does not tell.
func resourceOf(address, region string) string {
	u, err := url.Parse(address)
	if err != nil {
		return ""
	}
	account, name, found := strings.Cut(strings.Trim(u.Path, "/"), "/")
	if !found || name == "" {
		return ""
	}
	if of := regionOf(address); of != "" {
		region = of
	}
	return strings.Join([]string{":sqs", region, account, name}, ":")
}

// tellHook writes news of lifecycle hooks into the journal.
func tellHook(log *logrus.Entry, n asg.News) {
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

func actionOf(instance string, hook sqs.Hook, since time.Time) asg.Action {
	return asg.Action{
		Group: hook.Group, Hook: hook.Name, Instance: instance, Token: hook.Token, Launch: hook.Launch, Back: hook.Back, Since: since,
	}
}

// Hold implements fleet.Hooks.
func (h hooks) Hold(ctx context.Context, instance string, hook sqs.Hook, since time.Time) {
	h.told.Hold(ctx, actionOf(instance, hook, since))
}

// Complete implements fleet.Hooks.
func (h hooks) Complete(ctx context.Context, instance string, hook sqs.Hook, since time.Time, outcome event.Outcome) error {
	return h.told.Complete(ctx, actionOf(instance, hook, since), outcome)
}

// Loses implements fleet.Hooks.
func (h hooks) Loses(ctx context.Context, instance string, hook sqs.Hook) (bool, error) {
	return h.told.Loses(ctx, actionOf(instance, hook, time.Time{}))
}
