package asg

import (
	"context"
	"errors"
	"fmt"
)

// Checkup is what can be found out about lifecycle hooks while nothing is announced.
type Checkup struct {
	// Err is why that could not be found out: a missing permission, mostly.
	Err error
	// Found says which hooks there are, and which of them are ours; empty if the instance is in no group. Ours tells
	// whether any is.
	Found string
	Ours  bool
	// Keeps says what on_incomplete = "abandon" comes to, and Kept whether hooks would be abandoned; empty where people do not ask for it.
	Keeps string
	Kept  bool
	// Missing is what keeps heartbeats and completions of ours from working, a line for each; nil if nothing is known to.
	Missing error
}

// Check looks for the group and its hooks, tries the permissions for ours, and changes nothing.
func Check(ctx context.Context, opts Options, s Settings) Checkup {
	service, err := newService(ctx, opts, nil)
	if err != nil {
		return Checkup{Err: err}
	}
	group, _, err := service.place(ctx)
	if err != nil || group == "" {
		return Checkup{Err: err}
	}
	hooks, err := service.hooks(ctx, group)
	if err != nil {
		return Checkup{Err: err}
	}
	ours, why := choose(group, hooks, rule{transition: terminating, named: s.Hooks})
	found := Checkup{Found: why, Ours: len(ours) > 0}
	if found.Ours {
		found.Missing = errors.Join(service.try(ctx, heartbeat, group), service.try(ctx, complete, group))
	}
	if found.Ours && s.Abandon {
		found.retention(ctx, service, group)
	}
	return found
}

// retention finds out whether the group keeps a machine whose hook is abandoned.
func (c *Checkup) retention(ctx context.Context, s *service, group string) {
	keeps, err := s.retains(ctx, group)
	switch {
	case unpermitted(err):
		c.Missing = errors.Join(c.Missing, fmt.Errorf("%w; %s", err, without(err)))
	case err != nil:
		c.Missing = errors.Join(c.Missing, err)
	case keeps:
		c.Keeps, c.Kept = willKeep(group), true
	default:
		c.Keeps = willNotKeep(group)
	}
}

// try tries a permission for the group, with the name of a hook that it has not.
func (s *service) try(ctx context.Context, permission, group string) error {
	allowed, err := may(ctx, s.sdk, permission, group)
	if err == nil && !allowed {
		err = refusedError{Action: permission}
		return fmt.Errorf("%w; %s", err, without(err))
	}
	return err
}
