package logind

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	systemd "github.com/coreos/go-systemd/v22/dbus"
)

// StartTarget has systemd start a target, and returns when all that the target wants has been started; of a unit with Type=oneshot that
// is when it has run. The error says that the target could not be started, which of these units have failed, or that ctx has ended. What
// runs then goes on.
func (h Host) StartTarget(ctx context.Context, target string) error {
	conn, err := h.systemd(ctx)
	if err != nil {
		return fmt.Errorf("starting %s: %w", target, err)
	}
	defer conn.Close()
	if err := startUnit(ctx, conn, target); err != nil {
		return fmt.Errorf("starting %s: %w", target, err)
	}
	return wantedFailures(ctx, conn, target)
}

// startUnit starts a unit and waits until that has succeeded.
func startUnit(ctx context.Context, conn *systemd.Conn, unit string) error {
	if err := conn.Subscribe(); err != nil { // On the bus systemd tells of jobs only who has asked for that.
		return fmt.Errorf("subscribing to systemd's signals: %w", err)
	}
	done := make(chan string, 1)
	if _, err := conn.StartUnitContext(ctx, unit, "replace", done); err != nil {
		return err
	}
	select {
	case result := <-done:
		if result != "done" {
			return errors.New("systemd says " + result)
		}
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// wantedFailures returns an error that names the failed ones among the units that a target wants: a target is there without them.
func wantedFailures(ctx context.Context, conn *systemd.Conn, target string) error {
	var wanted, failed []string
	if err := unitProperty(ctx, conn, target, "Wants", &wanted); err != nil {
		return err
	}
	for _, unit := range wanted {
		state := ""
		if err := unitProperty(ctx, conn, unit, "ActiveState", &state); err != nil {
			return err
		}
		if state == "failed" {
			failed = append(failed, unit)
		}
	}
	if len(failed) > 0 {
		slices.Sort(failed)
		return fmt.Errorf("%s: failed: %s", target, strings.Join(failed, ", "))
	}
	return nil
}

// unitProperty reads one of those that all sorts of units have.
func unitProperty(ctx context.Context, conn *systemd.Conn, unit, name string, into any) error {
	p, err := conn.GetUnitPropertyContext(ctx, unit, name)
	if err == nil {
		err = p.Value.Store(into)
	}
	if err != nil {
		return fmt.Errorf("asking systemd for %s of %s: %w", name, unit, err)
	}
	return nil
}
