package logind

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	systemd "github.com/coreos/go-systemd/v22/dbus"
)

// errForeign is why the service manager of another machine, seen from a container, cannot tell.
var errForeign = errors.New("this process is no unit of the host's")

// StopTimeout asks systemd how long the stop of the service that this process belongs to may take, whichever file says so
// in TimeoutStopSec=. A service that may take for ever has a day.
func (h Host) StopTimeout(ctx context.Context) (time.Duration, error) {
	var usec uint64
	if err := h.ownProperty(ctx, "TimeoutStopUSec", &usec); err != nil {
		return 0, err
	}
	return fromMicroseconds(usec), nil
}

// Keeps asks systemd how many open files it would keep for the process after this one, whichever file says so in
// FileDescriptorStoreMax= of its service.
func (h Host) Keeps(ctx context.Context) (files uint32, err error) {
	err = h.ownProperty(ctx, "FileDescriptorStoreMax", &files)
	return files, err
}

// ServiceKeeps asks the same of a service by its name. Of one that is not there it is an error.
func (h Host) ServiceKeeps(ctx context.Context, service string) (files uint32, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	conn, err := h.systemd(ctx)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	state, err := conn.GetUnitPropertyContext(ctx, service, "LoadState")
	if err == nil && state.Value.Value() != "loaded" {
		err = errAbsent
	}
	if err != nil {
		return 0, fmt.Errorf("asking systemd for %s: %w", service, err)
	}
	err = property(ctx, conn, service, "FileDescriptorStoreMax", &files)
	return files, err
}

// errAbsent is why a service tells nothing.
var errAbsent = errors.New("it is not there")

// ownProperty asks systemd for what it knows of the service that this process belongs to.
func (h Host) ownProperty(ctx context.Context, name string, into any) error {
	if h != "" {
		return fmt.Errorf("asking for the unit's %s: %w", name, errForeign)
	}
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	conn, err := h.serviceManager(ctx)
	if err != nil {
		return fmt.Errorf("connecting to systemd: %w", err)
	}
	defer conn.Close()
	unit, err := conn.GetUnitNameByPID(ctx, uint32(os.Getpid())) //nolint:gosec // process IDs are small
	if err != nil {
		return fmt.Errorf("asking systemd for this process's unit: %w", err)
	}
	return property(ctx, conn, unit, name, into)
}

// property asks systemd for what it knows of a service.
func property(ctx context.Context, conn *systemd.Conn, service, name string, into any) error {
	found, err := conn.GetServicePropertyContext(ctx, service, name)
	if err == nil {
		err = found.Value.Store(into)
	}
	if err != nil {
		return fmt.Errorf("asking systemd for the %s of %s: %w", name, service, err)
	}
	return nil
}
