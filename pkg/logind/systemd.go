package logind

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/godbus/dbus/v5"

	"github.com/nth-project/nth/pkg/loop"
)

// The D-Bus names of systemd, see org.freedesktop.systemd1(5).
const (
	systemdName    = "org.freedesktop.systemd1"
	systemdPath    = "/org/freedesktop/systemd1"
	systemdManager = "org.freedesktop.systemd1.Manager"
)

// systemd calls a method of systemd's manager. It stores the method's results in the variables that results point to.
func (c *conn) systemd(method string, results []any, args ...any) error {
	if err := c.call(systemdName, systemdPath, systemdManager+"."+method, results, args...); err != nil {
		return fmt.Errorf("calling systemd's method %s: %w", method, err)
	}
	return nil
}

// goingDown reports whether systemd is stopping the whole system, not this service alone. If systemd does not answer, it returns false.
func (c *conn) goingDown() bool {
	var state dbus.Variant
	err := c.call(systemdName, systemdPath, "org.freedesktop.DBus.Properties.Get", []any{&state}, systemdManager, "SystemState")
	return err == nil && state.Value() == "stopping"
}

// jobPoll is the pause between two questions to systemd whether a job is done.
const jobPoll = 200 * time.Millisecond

// StartTarget makes systemd start a target, and waits until all units that the target wants are started or have failed. A Type=oneshot unit counts
// as started when it has finished. A unit that fails is no error here; systemd logs that.
//
// The error says that the target could not be started, or that ctx has ended. In both cases, units that run continue to run.
func (h Host) StartTarget(ctx context.Context, target string) error {
	c, err := h.bus(ctx)
	if err == nil {
		defer c.close()
		err = c.start(ctx, target)
	}
	if err != nil { // If ctx has ended, err says only that a call failed.
		return fmt.Errorf("cannot start %s: %w", target, cmp.Or(ctx.Err(), err))
	}
	return nil
}

// start starts a target, and waits until its job is done: then systemd no longer knows the job.
func (c *conn) start(ctx context.Context, target string) error {
	var job dbus.ObjectPath
	if err := c.systemd("StartUnit", []any{&job}, target, "replace"); err != nil {
		return err
	}
	for {
		_, err := c.properties(systemdName, job, "org.freedesktop.systemd1.Job")
		if _, isGone := errors.AsType[dbus.Error](err); isGone { // systemd has answered that it has no such job.
			return nil
		}
		if err != nil {
			return fmt.Errorf("asking systemd whether the start job %s is done: %w", job, err)
		}
		if !loop.Await(ctx, nil, jobPoll) {
			return ctx.Err()
		}
	}
}

// Reboot makes logind reboot the machine. logind announces that to the holders of delay locks, and from systemd 257 on refuses while somebody blocks
// shutdowns.
func (h Host) Reboot(ctx context.Context) error {
	c, err := h.bus(ctx)
	if err != nil {
		return err
	}
	defer c.close()
	return c.logind("Reboot", nil, interactive)
}

// startPowerOff makes systemd power off the machine, as logind does: systemd starts poweroff.target, and no later job can cancel that.
func (h Host) startPowerOff(ctx context.Context) error {
	c, err := h.bus(ctx)
	if err != nil {
		return err
	}
	defer c.close()
	return c.systemd("StartUnit", []any{new(dbus.ObjectPath)}, "poweroff.target", "replace-irreversibly")
}
