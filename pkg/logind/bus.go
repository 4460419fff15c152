package logind

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	systemd "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"
)

const (
	busName     = "org.freedesktop.login1"
	busPath     = "/org/freedesktop/login1"
	busManager  = "org.freedesktop.login1.Manager"
	nameChanged = "org.freedesktop.DBus.NameOwnerChanged"
)

// manager has the properties of logind's manager object.
type manager struct {
	// delay is InhibitDelayMaxSec as it is in effect, whichever file sets it.
	delay time.Duration
	// preparing says, by the names of locks, whether a shutdown or a sleep is announced: from the announcement until it is
	// called off or, for a sleep, over.
	preparing map[string]bool
	// powerKey is HandlePowerKey: what logind does when the power key is pressed.
	powerKey string
}

// The names of logind's locks.
const (
	shutdownLock = "shutdown"
	sleepLock    = "sleep"
	powerKeyLock = "handle-power-key"
)

// callTimeout is how long a D-Bus call may take.
const callTimeout = 5 * time.Second

// Host is a machine's root directory. Empty means that of this process; in a container, the host's is another.
type Host string

// systemBus connects to the host's system bus.
func (h Host) systemBus(ctx context.Context) (*dbus.Conn, error) {
	if h == "" {
		return dbus.ConnectSystemBus(dbus.WithContext(ctx))
	}
	return dbus.Connect(h.address("run/dbus/system_bus_socket"), dbus.WithContext(ctx))
}

// serviceManager connects to the host's systemd through its private socket, which works without a bus.
func (h Host) serviceManager(ctx context.Context) (*systemd.Conn, error) {
	if h == "" {
		return systemd.NewSystemdConnectionContext(ctx)
	}
	return systemd.NewConnection(func() (*dbus.Conn, error) {
		conn, err := dbus.Dial(h.address("run/systemd/private"), dbus.WithContext(ctx))
		if err != nil {
			return nil, err
		}
		if err := conn.Auth([]dbus.Auth{dbus.AuthExternal(strconv.Itoa(os.Getuid()))}); err != nil {
			_ = conn.Close()
			return nil, err
		}
		return conn, nil
	})
}

func (h Host) address(socket string) string {
	return "unix:path=" + dbus.EscapeBusAddressValue(filepath.Join(string(h), socket))
}

// bus is a connection to the system bus. go-systemd's login1 gives no access to the manager's properties, has no timeouts,
// and does not check who has sent a signal.
type bus struct {
	conn   *dbus.Conn
	logind dbus.BusObject
	end    context.CancelFunc
}

// dial connects to the system bus, until ctx ends or the bus is closed.
func (h Host) dial(ctx context.Context) (*bus, error) {
	ctx, end := context.WithCancel(ctx)
	defer time.AfterFunc(callTimeout, end).Stop()
	conn, err := h.systemBus(ctx)
	if err != nil {
		end()
		return nil, fmt.Errorf("connecting to the system bus: %w", err)
	}
	return &bus{conn: conn, logind: conn.Object(busName, busPath), end: end}, nil
}

func (b *bus) close() {
	b.end()
	_ = b.conn.Close()
}

// hints subscribes to the signals after which logind has to be queried again: those with which it announces a shutdown or
// calls one off, and that of its restart. The channel is closed when the connection is lost.
func (b *bus) hints(ctx context.Context) (<-chan *dbus.Signal, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	signals := make(chan *dbus.Signal, 16)
	b.conn.Signal(signals)
	for _, match := range [][]dbus.MatchOption{
		{dbus.WithMatchSender(busName), dbus.WithMatchInterface(busManager)},
		{
			dbus.WithMatchSender("org.freedesktop.DBus"), dbus.WithMatchInterface("org.freedesktop.DBus"),
			dbus.WithMatchMember("NameOwnerChanged"), dbus.WithMatchArg(0, busName),
		},
	} {
		if err := b.conn.AddMatchSignalContext(ctx, match...); err != nil {
			return nil, fmt.Errorf("subscribing to logind's signals: %w", err)
		}
	}
	return signals, nil
}

// isHint reports whether logind has to be queried after a signal. After the signal that it has stopped, it cannot be.
func isHint(signal *dbus.Signal) bool {
	if signal.Name == nameChanged && len(signal.Body) == 3 {
		return signal.Body[2] != ""
	}
	return signal.Name == busManager+".PrepareForShutdown" || signal.Name == busManager+".PrepareForSleep"
}

// owner returns the unique bus name of logind, which changes when it is restarted.
func (b *bus) owner(ctx context.Context) (name string, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := b.conn.BusObject().CallWithContext(ctx, "org.freedesktop.DBus.GetNameOwner", 0, busName).Store(&name); err != nil {
		return "", fmt.Errorf("asking the bus for logind: %w", err)
	}
	return name, nil
}

// shutdownType returns the type of shutdown that a signal of logind's announces, such as "reboot"; "" for any other signal.
// Since systemd 255, the signal precedes PrepareForShutdown.
func (b *bus) shutdownType(ctx context.Context, signal *dbus.Signal) string {
	if signal.Name != busManager+".PrepareForShutdownWithMetadata" || len(signal.Body) != 2 {
		return ""
	}
	if owner, err := b.owner(ctx); err != nil || signal.Sender != owner {
		return ""
	}
	if begins, _ := signal.Body[0].(bool); !begins {
		return ""
	}
	metadata, _ := signal.Body[1].(map[string]dbus.Variant)
	shutdownType, _ := metadata["type"].Value().(string)
	return shutdownType
}

// property reads a property of logind's manager.
func (b *bus) property(ctx context.Context, name string, into any) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	value := dbus.Variant{}
	err := b.logind.CallWithContext(ctx, "org.freedesktop.DBus.Properties.Get", 0, busManager, name).Store(&value)
	if err == nil {
		err = value.Store(into)
	}
	if err != nil {
		return fmt.Errorf("asking logind for %s: %w", name, err)
	}
	return nil
}

// call calls a method of logind's manager.
func (b *bus) call(ctx context.Context, method string, args ...any) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := b.logind.CallWithContext(ctx, busManager+"."+method, 0, args...).Err; err != nil {
		return fmt.Errorf("asking logind for %s: %w", method, err)
	}
	return nil
}

// manager reads the properties of logind's manager.
func (b *bus) manager(ctx context.Context) (manager, error) {
	var usec uint64
	var down, asleep bool
	var key string
	err := b.property(ctx, "InhibitDelayMaxUSec", &usec)
	for name, into := range map[string]any{"PreparingForShutdown": &down, "PreparingForSleep": &asleep, "HandlePowerKey": &key} {
		if err == nil {
			err = b.property(ctx, name, into)
		}
	}
	if err != nil {
		return manager{}, err
	}
	return manager{
		delay:     fromMicroseconds(usec),
		preparing: map[string]bool{shutdownLock: down, sleepLock: asleep},
		powerKey:  key,
	}, nil
}

// fromMicroseconds converts a duration of systemd's, to a day at most. systemd's infinity would overflow.
func fromMicroseconds(usec uint64) time.Duration {
	return time.Duration(min(usec, uint64((24*time.Hour).Microseconds()))) * time.Microsecond // a day fits
}

// inhibit takes a lock of the given mode: "delay" or "block". Closing the file releases it.
func (b *bus) inhibit(ctx context.Context, what, mode string) (*os.File, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var fd dbus.UnixFD
	err := b.logind.CallWithContext(ctx, busManager+".Inhibit", 0,
		what, "nth", "draining this Kubernetes node before it goes down", mode).Store(&fd)
	if err != nil {
		return nil, fmt.Errorf("taking the inhibitor lock %q: %w", what, err)
	}
	return os.NewFile(uintptr(fd), "inhibitor lock"), nil
}

// systemd connects to the host's systemd, through its private socket or the bus.
func (h Host) systemd(ctx context.Context) (*systemd.Conn, error) {
	conn, err := h.serviceManager(ctx)
	if err == nil {
		return conn, nil
	}
	conn, busErr := systemd.NewConnection(func() (*dbus.Conn, error) { return h.systemBus(ctx) })
	if busErr != nil {
		return nil, fmt.Errorf("connecting to systemd: %w, %w", err, busErr)
	}
	return conn, nil
}

// GoingDown reports whether systemd is stopping the whole system, not this service alone. If systemd does not answer, it
// returns false.
func (h Host) GoingDown(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	conn, err := h.systemd(ctx)
	if err != nil {
		return false
	}
	defer conn.Close()
	state, err := conn.SystemStateContext(ctx)
	return err == nil && state.Value.Value() == "stopping"
}

// Environment returns the environment of the first of these services that is loaded, from the unit and its drop-ins: the
// variables of Environment=, as "NAME=value", and the paths on the host of EnvironmentFile=, which override these. If none of
// the services is loaded, all results are empty.
func (h Host) Environment(ctx context.Context, services ...string) (service string, variables, files []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	conn, err := h.systemd(ctx)
	if err != nil {
		return "", nil, nil, fmt.Errorf("asking for the environment of %s: %w", services[0], err)
	}
	defer conn.Close()
	for _, service := range services {
		loaded, err := isLoaded(ctx, conn, service)
		if err != nil {
			return "", nil, nil, err
		}
		if !loaded {
			continue
		}
		if err := property(ctx, conn, service, "Environment", &variables); err != nil {
			return "", nil, nil, err
		}
		var named []struct {
			Path    string
			Ignored bool // if it does not exist
		}
		if err := property(ctx, conn, service, "EnvironmentFiles", &named); err != nil {
			return "", nil, nil, err
		}
		for _, file := range named {
			files = append(files, file.Path)
		}
		return service, variables, files, nil
	}
	return "", nil, nil, nil
}

// isLoaded asks systemd whether there is such a unit.
func isLoaded(ctx context.Context, conn *systemd.Conn, unit string) (bool, error) {
	state, err := conn.GetUnitPropertyContext(ctx, unit, "LoadState")
	if err != nil {
		return false, fmt.Errorf("asking systemd for %s: %w", unit, err)
	}
	return state.Value.Value() == "loaded", nil
}

// Credentials returns the credentials of a service, from the unit and its drop-ins, each as a line of a unit, such as
// "LoadCredential=ID:PATH". stale is set if these files have changed since systemd has read them. If there is no such service,
// loaded is false. A systemd without support for credentials has none.
func (h Host) Credentials(ctx context.Context, service string) (lines []string, loaded, stale bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	conn, err := h.systemd(ctx)
	if err != nil {
		return nil, false, false, fmt.Errorf("asking for the credentials of %s: %w", service, err)
	}
	defer conn.Close()
	if loaded, err := isLoaded(ctx, conn, service); err != nil || !loaded {
		return nil, false, false, err
	}
	if needed, err := conn.GetUnitPropertyContext(ctx, service, "NeedDaemonReload"); err == nil {
		stale, _ = needed.Value.Value().(bool)
	}
	for _, name := range []string{"LoadCredential", "LoadCredentialEncrypted"} {
		var found []struct{ ID, Path string }
		if err := ifKnown(property(ctx, conn, service, name, &found)); err != nil {
			return nil, false, false, err
		}
		for _, c := range found {
			lines = append(lines, name+"="+c.ID+":"+c.Path)
		}
	}
	for _, name := range []string{"SetCredential", "SetCredentialEncrypted"} {
		var found []struct {
			ID   string
			Data []byte
		}
		if err := ifKnown(property(ctx, conn, service, name, &found)); err != nil {
			return nil, false, false, err
		}
		for _, c := range found {
			lines = append(lines, name+"="+c.ID+":"+string(c.Data))
		}
	}
	var globs []string
	if err := ifKnown(property(ctx, conn, service, "ImportCredential", &globs)); err != nil {
		return nil, false, false, err
	}
	for _, glob := range globs {
		lines = append(lines, "ImportCredential="+glob)
	}
	return lines, true, stale, nil
}

// ifKnown returns err, unless it is that this version of systemd does not know the property.
func ifKnown(err error) error {
	if fault, ok := errors.AsType[dbus.Error](err); ok && fault.Name == "org.freedesktop.DBus.Error.UnknownProperty" {
		return nil
	}
	return err
}

// Delay asks logind for InhibitDelayMaxSec, which is how long delay locks may hold a shutdown up.
func (h Host) Delay(ctx context.Context) (time.Duration, error) {
	b, err := h.dial(ctx)
	if err != nil {
		return 0, err
	}
	defer b.close()
	m, err := b.manager(ctx)
	return m.delay, err
}

// StartTarget makes systemd start a target, and returns when all units that the target wants are started; a Type=oneshot unit is
// when it has finished. The error says that the target could not be started, which of the units have failed, or that ctx has
// ended; units that are running go on then.
func (h Host) StartTarget(ctx context.Context, target string) error {
	conn, err := h.systemd(ctx)
	if err != nil {
		return fmt.Errorf("starting %s: %w", target, err)
	}
	defer conn.Close()
	if err := startUnit(ctx, conn, target); err != nil { // When ctx ends, the connection's own error hides that.
		return fmt.Errorf("starting %s: %w", target, cmp.Or(ctx.Err(), err))
	}
	return wantedFailures(ctx, conn, target)
}

// startUnit starts a unit and waits until its start job is done.
func startUnit(ctx context.Context, conn *systemd.Conn, unit string) error {
	if err := conn.Subscribe(); err != nil { // Without it, systemd sends no signals about jobs over the bus.
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

// wantedFailures returns an error with the failed units among those that a target wants: a target starts without them.
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

// unitProperty reads a property of the Unit interface, which all types of units have.
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
