package logind

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/godbus/dbus/v5"

	"github.com/nth-project/nth/pkg/loop"
)

// What systemd calls itself, see org.freedesktop.systemd1(5).
const (
	systemdName    = "org.freedesktop.systemd1"
	systemdPath    = "/org/freedesktop/systemd1"
	systemdManager = "org.freedesktop.systemd1.Manager"
	unitInterface  = "org.freedesktop.systemd1.Unit"
	service        = "org.freedesktop.systemd1.Service"
)

// systemd connects to the host's systemd through its private socket, which works without a bus. If that fails, it connects through the bus.
func (h Host) systemd(ctx context.Context) (*conn, error) {
	c, err := h.dial(ctx, "run/systemd/private", options{private: true})
	if err == nil {
		return c, nil
	}
	c, busErr := h.bus(ctx, options{})
	if busErr != nil {
		return nil, fmt.Errorf("connecting to systemd: %w, %w", err, busErr)
	}
	return c, nil
}

// systemd calls a method of systemd's manager, and stores what it returns in the variables that results point to.
func (c *conn) systemd(ctx context.Context, method string, results []any, args ...any) error {
	if err := c.call(ctx, systemdName, systemdPath, systemdManager+"."+method, results, args...); err != nil {
		return fmt.Errorf("asking systemd for %s: %w", method, err)
	}
	return nil
}

// unit returns the path of a unit and its properties. loaded is false if there is no such unit.
func (c *conn) unit(ctx context.Context, name string) (path dbus.ObjectPath, all map[string]dbus.Variant, loaded bool, err error) {
	if err := c.systemd(ctx, "LoadUnit", []any{&path}, name); err != nil {
		return "", nil, false, fmt.Errorf("%s: %w", name, err)
	}
	all, err = c.properties(ctx, systemdName, path, unitInterface)
	return path, all, all["LoadState"].Value() == "loaded", err
}

// GoingDown reports whether systemd is stopping the whole system, not this service alone. If systemd does not answer, it
// returns false.
func (h Host) GoingDown(ctx context.Context) bool {
	c, err := h.systemd(ctx)
	if err != nil {
		return false
	}
	defer c.close()
	var state dbus.Variant
	err = c.call(ctx, systemdName, systemdPath, "org.freedesktop.DBus.Properties.Get", []any{&state}, systemdManager, "SystemState")
	return err == nil && state.Value() == "stopping"
}

// store copies a property into the variable that into points to. If this version of systemd does not have the property, the variable stays
// empty.
func store(all map[string]dbus.Variant, name string, into any) error {
	value, found := all[name]
	if !found {
		return nil
	}
	if err := value.Store(into); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// jobPoll is how often systemd is asked whether a job is done.
const jobPoll = 200 * time.Millisecond

// StartTarget makes systemd start a target, and returns when all units that the target wants are started. A Type=oneshot unit counts as
// started when it has finished. The error says that the target could not be started, which of the units have failed, or that ctx has ended.
// Units that are running then continue to run.
func (h Host) StartTarget(ctx context.Context, target string) error {
	c, err := h.systemd(ctx)
	if err == nil {
		defer c.close()
		err = c.start(ctx, target)
	}
	if err != nil { // If ctx has ended, err says only that a call failed.
		return fmt.Errorf("starting %s: %w", target, cmp.Or(ctx.Err(), err))
	}
	return c.failures(ctx, target)
}

// start starts a target, and waits until its job is done: then systemd no longer knows the job.
func (c *conn) start(ctx context.Context, target string) error {
	var job dbus.ObjectPath
	if err := c.systemd(ctx, "StartUnit", []any{&job}, target, "replace"); err != nil {
		return err
	}
	for {
		_, err := c.properties(ctx, systemdName, job, "org.freedesktop.systemd1.Job")
		if _, gone := errors.AsType[dbus.Error](err); gone {
			return nil
		}
		if err != nil {
			return err
		}
		if !loop.Await(ctx, nil, jobPoll) {
			return ctx.Err()
		}
	}
}

// failures returns an error that names the failed units among those that a target wants or requires; nil if none has failed. The state of the
// target itself does not say so: the target stops once no unit needs it, and systemd forgets it then.
func (c *conn) failures(ctx context.Context, target string) error {
	_, of, _, err := c.unit(ctx, target)
	if err != nil {
		return err
	}
	var wanted, required, failed []string
	if err := errors.Join(store(of, "Wants", &wanted), store(of, "Requires", &required)); err != nil {
		return fmt.Errorf("%s: %w", target, err)
	}
	for _, name := range slices.Concat(wanted, required) {
		_, of, _, err := c.unit(ctx, name)
		if err != nil {
			return err
		}
		if of["ActiveState"].Value() == "failed" {
			failed = append(failed, name)
		}
	}
	if len(failed) > 0 {
		slices.Sort(failed)
		return fmt.Errorf("%s: failed: %s", target, strings.Join(failed, ", "))
	}
	return nil
}

// startPowerOff makes systemd power off in the way in which logind does: it starts poweroff.target, and nothing can cancel that.
func (h Host) startPowerOff(ctx context.Context) error {
	c, err := h.systemd(ctx)
	if err != nil {
		return err
	}
	defer c.close()
	return c.systemd(ctx, "StartUnit", []any{new(dbus.ObjectPath)}, "poweroff.target", "replace-irreversibly")
}
