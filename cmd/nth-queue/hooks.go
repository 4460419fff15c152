package main

import (
	"context"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/sirupsen/logrus"

	"github.com/nth-project/nth/cmd/internal/counting"
	"github.com/nth-project/nth/pkg/lifecycle"
	"github.com/nth-project/nth/pkg/queue"
	"github.com/nth-project/nth/pkg/systemd"
)

// hooks lets the fleet speak to Auto Scaling.
type hooks struct{ told *lifecycle.Told }

func newHooks(cfg aws.Config, counts counting.Counts, log *logrus.Entry) hooks {
	return hooks{lifecycle.NewTold(cfg, func(a lifecycle.Action, err error) {
		log.WithField(systemd.FieldMessageID, systemd.SourceTrouble).
			Warnf("the lifecycle hook %s of the Auto Scaling group %s, for %s: %s", a.Hook, a.Group, a.Instance, err)
	}, counts.HookRequested)}
}

// Hold implements fleet.Hooks.
func (h hooks) Hold(ctx context.Context, instance string, hook queue.Hook, since time.Time) {
	h.told.Hold(ctx, lifecycle.Action{Group: hook.Group, Hook: hook.Name, Instance: instance, Since: since})
}

// Complete implements fleet.Hooks.
func (h hooks) Complete(ctx context.Context, instance string, hook queue.Hook) error {
	return h.told.Complete(ctx, lifecycle.Action{Group: hook.Group, Hook: hook.Name, Instance: instance})
}
