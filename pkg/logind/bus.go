package logind

import (
	"context"
	"fmt"
	"time"

	systemd "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"
)

// manager is what logind's manager object says of itself.
type manager struct {
	// delay is InhibitDelayMaxSec as it is in effect, whichever file it comes from.
	delay time.Duration
	// preparing is true while an announced shutdown waits for its locks.
	preparing bool
}

// answerLimit bounds a question to the bus.
const answerLimit = 5 * time.Second

// readManager asks logind. go-systemd's login1 gives no access to the manager's properties.
func readManager(ctx context.Context) (manager, error) {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	conn, err := dbus.ConnectSystemBus(dbus.WithContext(ctx))
	if err != nil {
		return manager{}, fmt.Errorf("connecting to the system bus: %w", err)
	}
	defer func() { _ = conn.Close() }() // nothing was written
	logind := conn.Object("org.freedesktop.login1", "/org/freedesktop/login1")
	get := func(property string, into any) error {
		call := logind.CallWithContext(ctx, "org.freedesktop.DBus.Properties.Get", 0, "org.freedesktop.login1.Manager", property)
		if err := call.Store(into); err != nil {
			return fmt.Errorf("asking logind for %s: %w", property, err)
		}
		return nil
	}
	var delay, preparing dbus.Variant
	if err := get("InhibitDelayMaxUSec", &delay); err != nil {
		return manager{}, err
	}
	if err := get("PreparingForShutdown", &preparing); err != nil {
		return manager{}, err
	}
	var m manager
	if usec, ok := delay.Value().(uint64); ok {
		m.delay = time.Duration(usec) * time.Microsecond //nolint:gosec // logind's longest delay fits
	}
	m.preparing, _ = preparing.Value().(bool)
	return m, nil
}

// prepares reads a PrepareForShutdown signal: whether a shutdown begins, or was called off.
func prepares(signal *dbus.Signal) (begins, ok bool) {
	if signal == nil || signal.Name != "org.freedesktop.login1.Manager.PrepareForShutdown" || len(signal.Body) != 1 {
		return false, false
	}
	begins, ok = signal.Body[0].(bool)
	return begins, ok
}

// GoingDown tells whether systemd is stopping the whole system, rather than this service alone. Where systemd cannot be
// asked, it is not.
func GoingDown(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	// The private socket is there without a bus, which may be gone by now.
	conn, err := systemd.NewSystemdConnectionContext(ctx)
	if err != nil {
		if conn, err = systemd.NewSystemConnectionContext(ctx); err != nil {
			return false
		}
	}
	defer conn.Close()
	state, err := conn.SystemStateContext(ctx)
	return err == nil && state.Value.Value() == "stopping"
}
