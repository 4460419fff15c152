package logind

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
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
	timeout, err := conn.GetServicePropertyContext(ctx, unit, "TimeoutStopUSec")
	if err != nil {
		return 0, fmt.Errorf("asking systemd for the TimeoutStopSec of %s: %w", unit, err)
	}
	var usec uint64
	if err := timeout.Value.Store(&usec); err != nil {
		return 0, fmt.Errorf("asking systemd for the TimeoutStopSec of %s: %w", unit, err)
	}
	return fromMicroseconds(usec), nil
}
