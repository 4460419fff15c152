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

// manager is what logind's manager object says of itself.
type manager struct {
	// delay is InhibitDelayMaxSec as it is in effect, whichever file it comes from.
	delay time.Duration
	// preparing tells by the names of locks what is announced: true from the announcement on, until it was called off or,
	// for a sleep, is over.
	preparing map[string]bool
	// powerKey is what logind does when the power key is pressed, HandlePowerKey.
	powerKey string
}

// What logind has locks for, by its names.
const (
	shutdownLock = "shutdown"
	sleepLock    = "sleep"
	powerKeyLock = "handle-power-key"
)

// answerLimit bounds a question to the bus.
const answerLimit = 5 * time.Second

// Host is the machine that is spoken to, by the directory in which its file system begins: "" is that of this process,
// and in a container it may be another.
type Host string

// systemBus connects to the host's system bus.
func (h Host) systemBus(ctx context.Context) (*dbus.Conn, error) {
	if h == "" {
		return dbus.ConnectSystemBus(dbus.WithContext(ctx))
	}
	return dbus.Connect(h.address("run/dbus/system_bus_socket"), dbus.WithContext(ctx))
}

// serviceManager connects to the host's systemd by its private socket, which is there without a bus.
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
			_ = conn.Close() // it was of no use
			return nil, err
		}
		return conn, nil
	})
}

func (h Host) address(socket string) string {
	return "unix:path=" + dbus.EscapeBusAddressValue(filepath.Join(string(h), socket))
}

// bus is a connection to the system bus. go-systemd's login1 would do, but gives no access to the manager's properties,
// waits without a limit, and takes a signal for logind's whoever has sent it.
type bus struct {
	conn   *dbus.Conn
	logind dbus.BusObject
	end    context.CancelFunc
}

// dial connects to the system bus, until ctx ends or the bus is closed.
func (h Host) dial(ctx context.Context) (*bus, error) {
	ctx, end := context.WithCancel(ctx)
	overdue := time.AfterFunc(answerLimit, end)
	defer overdue.Stop()
	conn, err := h.systemBus(ctx)
	if err != nil {
		end()
		return nil, fmt.Errorf("connecting to the system bus: %w", err)
	}
	return &bus{conn: conn, logind: conn.Object(busName, busPath), end: end}, nil
}

func (b *bus) close() {
	b.end()
	_ = b.conn.Close() // nothing was written
}

// hints subscribes to what makes it worth asking logind again: that it announces a shutdown or calls one off, and that
// it was started again. The channel is closed when the connection is lost.
func (b *bus) hints(ctx context.Context) (<-chan *dbus.Signal, error) {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
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

// worthALook tells whether logind should be asked after a signal. While it is away, there is nobody to ask.
func worthALook(signal *dbus.Signal) bool {
	if signal.Name == nameChanged && len(signal.Body) == 3 {
		return signal.Body[2] != ""
	}
	return signal.Name == busManager+".PrepareForShutdown" || signal.Name == busManager+".PrepareForSleep"
}

// owner is the unique name of the logind that is there now: another after it was started again.
func (b *bus) owner(ctx context.Context) (name string, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	if err := b.conn.BusObject().CallWithContext(ctx, "org.freedesktop.DBus.GetNameOwner", 0, busName).Store(&name); err != nil {
		return "", fmt.Errorf("asking the bus for logind: %w", err)
	}
	return name, nil
}

// shutdownType reads from a signal what sort of shutdown is announced; "" if it does not tell, or is not logind's. It
// comes right before PrepareForShutdown, and since systemd 255.
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
	sort, _ := metadata["type"].Value().(string)
	return sort
}

// property reads one of logind's.
func (b *bus) property(ctx context.Context, name string, into any) error {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
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

// call asks logind to do something.
func (b *bus) call(ctx context.Context, method string, args ...any) error {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	if err := b.logind.CallWithContext(ctx, busManager+"."+method, 0, args...).Err; err != nil {
		return fmt.Errorf("asking logind for %s: %w", method, err)
	}
	return nil
}

// manager asks logind.
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

// fromMicroseconds translates a time of systemd's. More than a day is as good as for ever, and the largest value would
// not fit.
func fromMicroseconds(usec uint64) time.Duration {
	return time.Duration(min(usec, uint64((24*time.Hour).Microseconds()))) * time.Microsecond // it fits
}

// inhibit takes a lock of the given mode: "delay" or "block". Closing the file gives it back.
func (b *bus) inhibit(ctx context.Context, what, mode string) (*os.File, error) {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	var fd dbus.UnixFD
	err := b.logind.CallWithContext(ctx, busManager+".Inhibit", 0,
		what, "nth", "draining this Kubernetes node before it goes down", mode).Store(&fd)
	if err != nil {
		return nil, fmt.Errorf("taking the inhibitor lock %q: %w", what, err)
	}
	return os.NewFile(uintptr(fd), "inhibitor lock"), nil
}

// readManager asks logind over a connection of its own.
func (h Host) readManager(ctx context.Context) (manager, error) {
	b, err := h.dial(ctx)
	if err != nil {
		return manager{}, err
	}
	defer b.close()
	return b.manager(ctx)
}

// systemd connects to the host's systemd in any way there is.
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

// GoingDown tells whether systemd is stopping the whole system, rather than this service alone. Where systemd cannot be
// asked, it is not.
func (h Host) GoingDown(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	conn, err := h.systemd(ctx)
	if err != nil {
		return false
	}
	defer conn.Close()
	state, err := conn.SystemStateContext(ctx)
	return err == nil && state.Value.Value() == "stopping"
}

// Environment asks systemd for the environment of the first of these services that there is, whichever files say so: what
// Environment= sets, "NAME=value" each, and the paths on the host that EnvironmentFile= names, which go before that. If there is
// none of the services, all are empty.
func (h Host) Environment(ctx context.Context, services ...string) (service string, variables, files []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	conn, err := h.systemd(ctx)
	if err != nil {
		return "", nil, nil, fmt.Errorf("asking for the environment of %s: %w", services[0], err)
	}
	defer conn.Close()
	for _, service := range services {
		state, err := conn.GetUnitPropertyContext(ctx, service, "LoadState")
		if err != nil {
			return "", nil, nil, fmt.Errorf("asking systemd for %s: %w", service, err)
		}
		if state.Value.Value() != "loaded" {
			continue
		}
		if err := property(ctx, conn, service, "Environment", &variables); err != nil {
			return "", nil, nil, err
		}
		var named []struct {
			Path    string
			Ignored bool // if it is not there
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

// Credentials asks systemd which credentials a service is given, whichever files say so: each is a line as in a unit, such as
// "LoadCredential=ID:PATH". stale tells that these files have changed since systemd has read them. If there is no such service,
// loaded is false. A systemd that knows no credentials gives none.
func (h Host) Credentials(ctx context.Context, service string) (lines []string, loaded, stale bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	conn, err := h.systemd(ctx)
	if err != nil {
		return nil, false, false, fmt.Errorf("asking for the credentials of %s: %w", service, err)
	}
	defer conn.Close()
	state, err := conn.GetUnitPropertyContext(ctx, service, "LoadState")
	if err != nil {
		return nil, false, false, fmt.Errorf("asking systemd for %s: %w", service, err)
	}
	if state.Value.Value() != "loaded" {
		return nil, false, false, nil
	}
	if waits, err := conn.GetUnitPropertyContext(ctx, service, "NeedDaemonReload"); err == nil {
		stale, _ = waits.Value.Value().(bool)
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

// ifKnown is an error of a question, unless it is that this systemd does not know what it is asked for.
func ifKnown(err error) error {
	if fault, ok := errors.AsType[dbus.Error](err); ok && fault.Name == "org.freedesktop.DBus.Error.UnknownProperty" {
		return nil
	}
	return err
}

// Delay asks logind how long it lets a shutdown be held, whichever file says so.
func (h Host) Delay(ctx context.Context) (time.Duration, error) {
	m, err := h.readManager(ctx)
	return m.delay, err
}

// StartTarget has systemd start a target, and returns when all that the target wants has been started; of a unit with Type=oneshot that
// is when it has run. The error says that the target could not be started, which of these units have failed, or that ctx has ended. What
// runs then goes on.
func (h Host) StartTarget(ctx context.Context, target string) error {
	conn, err := h.systemd(ctx)
	if err != nil {
		return fmt.Errorf("starting %s: %w", target, err)
	}
	defer conn.Close()
	if err := startUnit(ctx, conn, target); err != nil { // The connection ends with ctx, and says so in words of its own.
		return fmt.Errorf("starting %s: %w", target, cmp.Or(ctx.Err(), err))
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
