package logind

import (
	"context"
	"errors"
	"fmt"
	"time"

	systemd "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"
)

// schedule sees to it that the machine is powered off when EC2's time is over, whatever becomes of nth until then.
// unreachable is why logind cannot be asked.
func (s *Source) schedule(ctx context.Context, b *bus, p press, unreachable error) error {
	end := p.at.Add(PowerOffGrant)
	var refused error
	if unreachable == nil {
		var until uint64
		until, refused = b.ensurePowerOff(ctx, s.opts.now, end, p.until)
		s.mu.Lock()
		s.press.until = until
		s.mu.Unlock()
	}
	if unreachable == nil && refused == nil || p.timed {
		return nil
	}
	timing := s.opts.Host.startTimer(ctx, time.Until(end))
	s.mu.Lock()
	s.press.timed = timing == nil
	s.mu.Unlock()
	return errors.Join(refused, timing)
}

// scheduled is what logind is going to do at a time, in microseconds.
type scheduled struct {
	What string
	At   uint64
}

// scheduled asks logind what it is going to do.
func (b *bus) scheduled(ctx context.Context) (known scheduled, err error) {
	err = b.property(ctx, "ScheduledShutdown", &known)
	return known, err
}

// ensurePowerOff makes logind power the machine off at the given time at the latest, and returns what it was told then:
// the same as before, which may be 0, unless that has changed. logind goes by the wall clock. When that has been set, what
// logind was told here is another time than it was meant to be, and is told anew; what it was told by others stands.
func (b *bus) ensurePowerOff(ctx context.Context, now func() time.Time, at time.Time, told uint64) (uint64, error) {
	known, err := b.scheduled(ctx)
	if err != nil {
		return told, err
	}
	const inexact = time.Second
	left := time.Until(at)
	wall := now().Add(max(left, inexact)).Round(0)
	ahead := time.UnixMicro(int64(known.At)).Sub(wall) //nolint:gosec // a time of logind's
	early := ahead < -inexact && known.At == told && left > inexact
	if known.What == "poweroff" && known.At > 0 && ahead <= inexact && !early {
		return told, nil
	}
	told = uint64(wall.UnixMicro()) //nolint:gosec // it is after 1970
	return told, b.call(ctx, "ScheduleShutdown", "poweroff", told)
}

// timer is the name of what systemd has where logind does not schedule a power-off.
const timer = "nth-power-off"

// startTimer has systemd power off after a time, unless it is to do so already. Its clock is not the wall's.
func (h Host) startTimer(ctx context.Context, after time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	type span struct {
		Base string
		Time uint64
	}
	set := func(name string, value any) systemd.Property {
		return systemd.Property{Name: name, Value: dbus.MakeVariant(value)}
	}
	why := set("Description", "Power off what EC2 is about to take the power from")
	spans := []span{{"OnActiveSec", uint64(max(after, time.Second).Microseconds())}} //nolint:gosec // it is more than nothing
	// It need not run: its end is what counts, whatever that is.
	end := systemd.PropertyCollection{Name: timer + ".service", Properties: []systemd.Property{
		why, systemd.PropType("oneshot"), systemd.PropExecStart([]string{"/bin/true"}, false),
		set("SuccessAction", "poweroff"), set("FailureAction", "poweroff"),
	}}
	conn, err := h.systemd(ctx)
	if err == nil {
		defer conn.Close()
		_, err = conn.StartTransientUnitAux(ctx, timer+".timer", "fail",
			[]systemd.Property{why, set("TimersMonotonic", spans), set("AccuracyUSec", uint64(100_000))},
			[]systemd.PropertyCollection{end}, nil)
	}
	if refused, _ := errors.AsType[dbus.Error](err); err != nil && refused.Name != "org.freedesktop.systemd1.UnitExists" {
		return fmt.Errorf("asking systemd for a timer: %w", err)
	}
	return nil
}

// powerOff asks logind, or if that has not helped or cannot be asked, the service manager. Where neither takes it, or
// nothing comes of it, the key is logind's again.
func (s *Source) powerOff(ctx context.Context, b *bus, asks int, err error) error {
	if err == nil {
		err = b.call(ctx, "PowerOff", false)
	}
	stuck := asks > 0
	if err != nil || stuck {
		second := s.opts.Host.startPowerOff(ctx)
		stuck = stuck || second != nil
		err = errors.Join(err, second)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.press.asked = time.Now()
	s.press.asks++
	if stuck {
		s.press.stuck = true
		s.key.giveBack()
	}
	return err
}

// startPowerOff asks the service manager for what logind asks it for.
func (h Host) startPowerOff(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	conn, err := h.systemd(ctx)
	if err == nil {
		defer conn.Close()
		_, err = conn.StartUnitContext(ctx, "poweroff.target", "replace-irreversibly", nil)
	}
	if err != nil {
		return fmt.Errorf("asking systemd for poweroff.target: %w", err)
	}
	return nil
}
