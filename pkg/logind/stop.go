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
	if h != "" {
		return 0, fmt.Errorf("asking for the unit's TimeoutStopSec: %w", errForeign)
	}
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	conn, err := h.serviceManager(ctx)
	if err != nil {
		return 0, fmt.Errorf("connecting to systemd: %w", err)
	}
	defer conn.Close()
	unit, err := conn.GetUnitNameByPID(ctx, uint32(os.Getpid())) //nolint:gosec // process IDs are small
	if err != nil {
		return 0, fmt.Errorf("asking systemd for this process's unit: %w", err)
	}
	var usec uint64
	if err := property(ctx, conn, unit, "TimeoutStopUSec", &usec); err != nil {
		return 0, err
	}
	return fromMicroseconds(usec), nil
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
