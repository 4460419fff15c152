package logind_test

import (
	"testing"
	"time"

	"github.com/godbus/dbus/v5"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/logind"
)

// nth is started again (a crash, an upgrade, the watchdog) 60 s after the press, in the midst of the drain: the record has the event
// under way, systemd has kept the press, logind knows of no shutdown yet. An empty snapshot is an order to lift the cordon.
func TestARestartInTheMidstOfAPressDoesNotCallTheShutdownOff(t *testing.T) {
	r := keyRig(t)
	r.logind.join(t)
	pressed := time.Now().Add(-time.Minute)
	r.source.Pressed(pressed, true) // by powerkey.Keys.Recall, of what was kept
	r.source.ListenToKey(true)
	r.run(t)
	r.scheduledFor(t, pressed)
	r.stop()
	for len(r.snapshots) > 0 {
		if events := <-r.snapshots; len(events) == 0 {
			t.Error("the shutdown that is under way was called off")
		}
	}
}

// "systemctl stop nth; systemctl start nth" 60 s after the press, or a unit that had failed for good: systemd has kept nothing, and logind is
// to power off all the same.
func TestAPressThatNobodyHasKeptIsGoneOnWithWhereLogindIsToPowerOffForIt(t *testing.T) {
	pressed := time.Now().Add(-time.Minute)
	deadline, end := pressed.Add(logind.PowerOffGrant-margin), pressed.Add(logind.PowerOffGrant)
	for name, c := range map[string]struct {
		underway  time.Time
		scheduled scheduled
		goesOn    bool
	}{
		"as both say":                            {deadline, scheduled{"poweroff", micros(end)}, true},
		"as nothing is scheduled":                {underway: deadline},
		"as something else is":                   {underway: deadline, scheduled: scheduled{"reboot", micros(end)}},
		"as it is scheduled for another time":    {deadline, scheduled{"poweroff", micros(end.Add(time.Hour))}, false},
		"as it was scheduled for a time before":  {deadline, scheduled{"poweroff", micros(deadline.Add(-time.Minute))}, false},
		"as no shutdown was left under way":      {scheduled: scheduled{"poweroff", micros(end)}},
		"as the margin was another at that time": {deadline.Add(-time.Minute), scheduled{"poweroff", micros(end)}, true},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.bus.start(t)
			r.underway = c.underway
			r.source = r.newSource(r.rooted(t))
			r.logind.join(t)
			r.logind.set(func(l *standIn) { l.scheduled = c.scheduled })
			r.run(t)
			if !c.goesOn {
				r.nothing(t)
				r.source.Release(event.Shutdown)
				r.mustHaveLocks(t, 1, 1)
				return
			}
			if got := r.announced(t).Deadline; got.Sub(deadline).Abs() > patience {
				t.Errorf("it has until %s, want %s", got, deadline)
			}
			r.scheduledFor(t, pressed)
			r.powersOffAfterTheDrain(t)
			r.stop()
			if len(r.snapshots) > 0 {
				t.Errorf("then it was announced %v", <-r.snapshots)
			}
		})
	}
}

// micros is a time as logind tells it.
func micros(t time.Time) uint64 { return uint64(t.UnixMicro()) } // it is after 1970

// docs/shutdown.md: "The button is logind's [...] where logind's HandlePowerKey= is not poweroff". A machine whose administrator has set
// it to "ignore" is not to be powered off.
func TestAPressIsLogindsWhereItsHandlePowerKeyIsSomethingElse(t *testing.T) {
	for _, action := range []string{"ignore", "reboot", "hibernate"} {
		t.Run(action, func(t *testing.T) {
			r := keyRig(t)
			r.logind.join(t)
			r.logind.set(func(l *standIn) { l.powerKey = action })
			r.source.ListenToKey(true)
			r.run(t)
			if next(t, r.keyHeld) {
				t.Fatal("it answers the power key")
			}
			r.nothing(t)
			r.source.Pressed(time.Now(), false)
			for over := time.After(4 * time.Second); over != nil; {
				select {
				case events := <-r.snapshots:
					if len(events) > 0 {
						t.Errorf("announced is %v", events)
						over = nil
					}
				case <-over:
					over = nil
				}
			}
			r.logind.set(func(l *standIn) {
				if l.scheduled.What != "" || l.powerOffs > 0 {
					t.Errorf("logind was asked to power off: scheduled %v, %d times now", l.scheduled, l.powerOffs)
				}
			})
		})
	}
}

// docs/shutdown.md: "the machine is still there after 10 minutes: the press is given up, and what was done is undone". A press that the
// next process finds after that, or that nobody has read for an hour, is nobody's any more.
func TestAPressThatIsLongOverIsNotHeeded(t *testing.T) {
	for _, ago := range []time.Duration{11 * time.Minute, time.Hour, 24 * time.Hour} {
		t.Run(ago.String(), func(t *testing.T) {
			r := keyRig(t)
			r.logind.join(t)
			r.source.Pressed(time.Now().Add(-ago), true)
			r.source.ListenToKey(true)
			r.run(t)
			for limit := time.After(4 * time.Second); ; {
				select {
				case events := <-r.snapshots:
					if len(events) > 0 {
						t.Fatalf("pressed %s ago, and announced is a shutdown in %s", ago, time.Until(events[0].Deadline).Round(time.Second))
					}
				case <-r.over:
					return
				case <-limit:
					t.Fatal("it is neither over nor announced")
				}
			}
		})
	}
}

// "At second 145 it is over": also for a process that begins at second 155, where logind has not come to power off (it was started
// again, or refuses). EC2 takes the power away at about 180.
func TestARestartAfterTheGrantDoesNotBeginTheDrainAnew(t *testing.T) {
	r := keyRig(t)
	r.logind.join(t)
	r.source.Pressed(time.Now().Add(-155*time.Second), true)
	r.source.ListenToKey(true)
	r.run(t)
	events := next(t, r.snapshots)
	for len(events) == 0 {
		events = next(t, r.snapshots)
	}
	if left := time.Until(events[0].Deadline); left > 25*time.Second {
		t.Errorf("155 s after the press the drain has another %s", left.Round(time.Second))
	}
}

// A logind that grants delay locks and refuses the block lock (polkit, a logind that does not know it, too many locks): then the button is
// logind's, and a shutdown is heard of as ever.
func TestARefusedLockOnTheKeyDoesNotMakeDeafToShutdowns(t *testing.T) {
	r := keyRig(t)
	r.logind.join(t)
	l := r.logind
	inhibit := func(what, who, why, mode string) (dbus.UnixFD, *dbus.Error) {
		if what == powerKey {
			return 0, dbus.NewError("org.freedesktop.DBus.Error.AccessDenied", []any{"Permission denied"})
		}
		return l.inhibit(what, who, why, mode)
	}
	if err := l.conn.ExportMethodTable(map[string]any{
		"Inhibit": inhibit, "PowerOff": l.powerOff, "ScheduleShutdown": l.schedule, "ListInhibitors": l.list,
	}, loginPath, managerName); err != nil {
		t.Fatal(err)
	}
	r.source.ListenToKey(true)
	r.run(t)
	if next(t, r.keyHeld) {
		t.Error("it says that it answers the power key")
	}
	r.mustHaveLocks(t, 1, 1)
	for len(r.snapshots) > 0 {
		<-r.snapshots
	}
	r.logind.prepare(t, true)
	for events := next(t, r.snapshots); len(events) == 0; {
		events = next(t, r.snapshots)
	}
	if len(r.off) > 0 {
		t.Errorf("it says that there is no logind, whose lock it holds: %v", <-r.off)
	}
}
