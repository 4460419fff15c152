package logind

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/godbus/dbus/v5"
)

// The D-Bus names of logind, see org.freedesktop.login1(5).
const (
	logindName    = "org.freedesktop.login1"
	logindPath    = "/org/freedesktop/login1"
	logindManager = "org.freedesktop.login1.Manager"
)

// Arguments of logind's methods: ask nobody for a password; write the message to the terminals.
const interactive, enable = false, true

// properties returns the values of all properties in one interface of an object, by their names. service has the object at path.
func (c *conn) properties(service string, path dbus.ObjectPath, iface string) (all map[string]dbus.Variant, err error) {
	err = c.call(service, path, "org.freedesktop.DBus.Properties.GetAll", []any{&all}, iface)
	return all, err
}

// logind calls a method of logind's manager. It stores the method's results in the variables that results point to.
func (c *conn) logind(method string, results []any, args ...any) error {
	if err := c.call(logindName, logindPath, logindManager+"."+method, results, args...); err != nil {
		return fmt.Errorf("calling logind's method %s: %w", method, err)
	}
	return nil
}

// The names of logind's locks.
const (
	shutdownLock = "shutdown"
	sleepLock    = "sleep"
	powerKeyLock = "handle-power-key"
)

// manager is what logind says of itself.
type manager struct {
	// delay is InhibitDelayMaxSec as it is in effect, whichever file sets it.
	delay time.Duration
	// preparing says whether logind has announced a shutdown (shutdownLock) or a sleep (sleepLock). It is true until that is called off. For
	// a sleep, it is true until the machine has woken up.
	preparing map[string]bool
	// shutdown is the type of the announced shutdown, such as "reboot"; "" if logind does not say (before systemd 257).
	shutdown string
	// powerKey is HandlePowerKey: what logind does when the power key is pressed.
	powerKey string
	// scheduled is when logind powers off for a press that nth answers; zero if nth has left no such schedule.
	scheduled time.Time
}

// manager asks logind for its settings, and for what it has announced. If this version of logind does not have a property, the field is zero.
// Only the property for the field delay is required.
func (c *conn) manager() (manager, error) {
	properties, err := c.properties(logindName, logindPath, logindManager)
	if err != nil {
		return manager{}, fmt.Errorf("asking logind for its settings: %w", err)
	}
	usec, found := properties["InhibitDelayMaxUSec"].Value().(uint64)
	if !found {
		return manager{}, errors.New("logind does not say how long it waits for locks (InhibitDelayMaxUSec)")
	}
	down, _ := properties["PreparingForShutdown"].Value().(bool)
	asleep, _ := properties["PreparingForSleep"].Value().(bool)
	key, _ := properties["HandlePowerKey"].Value().(string)
	metadata, _ := properties["PreparingForShutdownWithMetadata"].Value().(map[string]dbus.Variant)
	kind, _ := metadata["type"].Value().(string)
	var scheduled time.Time
	if schedule, _ := properties["ScheduledShutdown"].Value().([]any); len(schedule) == 2 && schedule[0] == "poweroff" {
		words, _ := properties["WallMessage"].Value().(string)
		usec, found := schedule[1].(uint64)
		if found && words == pressWords { // nth has made this schedule, not an administrator.
			scheduled = time.UnixMicro(int64(min(usec, math.MaxInt64)))
		}
	}
	return manager{
		delay:     fromMicroseconds(usec),
		preparing: map[string]bool{shutdownLock: down, sleepLock: asleep},
		shutdown:  kind,
		powerKey:  key,
		scheduled: scheduled,
	}, nil
}

// fromMicroseconds converts a duration of systemd. The result is a day at most: systemd's infinity would overflow.
func fromMicroseconds(usec uint64) time.Duration {
	return time.Duration(min(usec, uint64((24*time.Hour).Microseconds()))) * time.Microsecond
}

// inhibit takes an inhibitor lock. what is logind's name for the lock, such as shutdownLock; mode is "delay" or "block". To release the lock,
// the caller closes the file.
func (c *conn) inhibit(what, mode string) (*os.File, error) {
	err := c.logind("Inhibit", []any{new(dbus.UnixFDIndex)}, what, "nth", "draining this Kubernetes node before it goes down", mode)
	if err == nil && len(c.files) == 0 {
		err = errors.New("logind's answer has no file descriptor")
	}
	if err != nil {
		return nil, fmt.Errorf("taking the inhibitor lock %q: %w", what, err)
	}
	lock := c.files[0]
	c.files = c.files[1:] // closeFiles must not close the lock.
	return lock, nil
}

// Inhibitor is a lock that logind has granted.
type Inhibitor struct {
	What, Who, Why, Mode string
	UID, PID             uint32
}

// Settings are those of logind that matter to nth.
type Settings struct {
	// Delay is InhibitDelayMaxSec, which is how long delay locks may hold a shutdown up.
	Delay time.Duration
	// KeyHolders hold block locks on the power key. PowerKey is what logind does for a press while there are no such locks (HandlePowerKey).
	KeyHolders []Inhibitor
	PowerKey   string
}

// Settings asks logind for its settings, and who holds the power key.
func (h Host) Settings(ctx context.Context) (Settings, error) {
	c, err := h.bus(ctx)
	if err != nil {
		return Settings{}, err
	}
	defer c.close()
	m, err := c.manager()
	if err != nil {
		return Settings{}, err
	}
	var holders []Inhibitor
	if err := c.logind("ListInhibitors", []any{&holders}); err != nil {
		return Settings{}, err
	}
	holders = slices.DeleteFunc(holders, func(i Inhibitor) bool {
		return i.Mode != "block" || !slices.Contains(strings.Split(i.What, ":"), powerKeyLock)
	})
	return Settings{Delay: m.delay, KeyHolders: holders, PowerKey: m.powerKey}, nil
}

// pressWords is the message that logind writes to all terminals before a power-off that nth has scheduled. By this message, nth recognizes its
// own schedule.
const pressWords = "The power button was pressed: nth drains this Kubernetes node first."

// schedulePowerOff asks logind to power off at a time. The schedule survives this process and, since systemd 254, a restart of logind.
func (c *conn) schedulePowerOff(at time.Time) error {
	if err := c.logind("SetWallMessage", nil, pressWords, enable); err != nil {
		return err
	}
	return c.logind("ScheduleShutdown", nil, "poweroff", uint64(at.UnixMicro()))
}
