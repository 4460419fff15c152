package logind_test

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
)

const (
	loginName    = "org.freedesktop.login1"
	loginPath    = dbus.ObjectPath("/org/freedesktop/login1")
	managerName  = "org.freedesktop.login1.Manager"
	announcement = managerName + ".PrepareForShutdown"
)

// busConfig is that of a bus on which everybody may do everything.
const busConfig = `<busconfig><listen>unix:path=%s</listen><policy context="default">
<allow user="*"/><allow own="*"/><allow send_destination="*"/><allow receive_sender="*"/></policy></busconfig>`

// A systemBus is a real message bus that the code under test takes for the system's.
type systemBus struct {
	dir    string
	daemon *exec.Cmd
}

func newBus(t *testing.T) *systemBus {
	t.Helper()
	needDaemon(t)
	dir, err := os.MkdirTemp("", "bus") //nolint:usetesting // t.TempDir can be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	b := &systemBus{dir: dir}
	if err := os.WriteFile(filepath.Join(dir, "conf"), fmt.Appendf(nil, busConfig, b.socket()), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", b.address())
	t.Cleanup(b.stop)
	return b
}

func (b *systemBus) socket() string  { return filepath.Join(b.dir, "bus") }
func (b *systemBus) address() string { return "unix:path=" + b.socket() }

// start returns when the bus can be connected to.
func (b *systemBus) start(t *testing.T) {
	t.Helper()
	b.daemon = exec.Command("dbus-daemon", "--config-file="+filepath.Join(b.dir, "conf"), "--nofork", "--nopidfile", "--print-address")
	b.daemon.Stderr = os.Stderr
	said, err := b.daemon.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := b.daemon.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(said).ReadString('\n'); err != nil {
		t.Fatalf("starting the bus: %v", err)
	}
}

func (b *systemBus) stop() {
	if b.daemon == nil {
		return
	}
	_ = b.daemon.Process.Kill() // fails only if it has ended
	_ = b.daemon.Wait()         // it was killed
	_ = os.Remove(b.socket())
	b.daemon = nil
}

// needDaemon installs the bus where it is missing and may be, and skips the test where not; but not in CI, where nobody
// would notice.
func needDaemon(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("dbus-daemon"); err == nil {
		return
	}
	if os.Getuid() == 0 {
		fmt.Fprintln(os.Stderr, "*** dbus-daemon is missing: installing it with apt-get ***")
		install := exec.Command("/bin/sh", "-c", "apt-get -qq update && apt-get -qq install -y --no-install-recommends dbus-daemon >&2")
		install.Stderr = os.Stderr
		if install.Run() == nil {
			return
		}
	}
	if os.Getenv("CI") != "" {
		t.Fatal("there is no dbus-daemon, and it cannot be installed")
	}
	fmt.Fprintf(os.Stderr, "\n*** %s is SKIPPED: there is no dbus-daemon ***\n\n", t.Name())
	t.Skip("there is no dbus-daemon")
}

// A standIn is on the bus what logind is, as far as a shutdown goes.
type standIn struct {
	bus  *systemBus
	conn *dbus.Conn

	mu        sync.Mutex
	delay     time.Duration
	preparing bool
	sleeping  bool
	powerKey  string    // HandlePowerKey
	scheduled scheduled // what was asked of it
	powerOffs int       // how often it was asked for
	refuses   bool      // to power off
	blocked   bool      // somebody else has a block lock on shutdown, which since systemd 257 is heeded for root, too
	timers    []string  // of systemd
	started   []string  // units, of systemd
	pipes     []pipe    // one for each lock that was taken
}

// scheduled is as on the bus.
type scheduled struct {
	What string
	At   uint64
}

// A pipe is a lock: the one who took it has the end to write to, or a closed one.
type pipe struct {
	what        string
	read, write *os.File
	inode       uint64
}

// newLogind returns a stand-in that is not on the bus yet.
func newLogind(t *testing.T, bus *systemBus, delay time.Duration) *standIn {
	t.Helper()
	l := &standIn{bus: bus, delay: delay, powerKey: "poweroff"}
	t.Cleanup(func() {
		l.leave()
		l.mu.Lock() // a call that came before may still be answered
		defer l.mu.Unlock()
		for _, p := range l.pipes {
			_, _ = p.read.Close(), p.write.Close() // nothing was written
		}
	})
	return l
}

// join brings logind onto the bus, with all that it knew.
func (l *standIn) join(t *testing.T) {
	t.Helper()
	l.conn = connect(t, l.bus)
	manager := map[string]any{
		"Inhibit": l.inhibit, "PowerOff": l.powerOff, "ScheduleShutdown": l.schedule, "ListInhibitors": l.list,
	}
	properties := map[string]any{"Get": l.get}
	if err := errors.Join(
		l.conn.ExportMethodTable(manager, loginPath, managerName),
		l.conn.ExportMethodTable(map[string]any{"StartUnit": l.startUnit, "StartTransientUnit": l.startTransientUnit}, "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager"),
		l.conn.ExportMethodTable(properties, loginPath, "org.freedesktop.DBus.Properties"),
	); err != nil {
		t.Fatal(err)
	}
	if reply, err := l.conn.RequestName(loginName, dbus.NameFlagDoNotQueue); err != nil || reply != dbus.RequestNameReplyPrimaryOwner {
		t.Fatalf("taking logind's name: %v %v", reply, err)
	}
}

// servesAsSystemd lets it take the place of the service manager, too.
func (l *standIn) servesAsSystemd(t *testing.T) {
	t.Helper()
	if reply, err := l.conn.RequestName("org.freedesktop.systemd1", dbus.NameFlagDoNotQueue); err != nil || reply != dbus.RequestNameReplyPrimaryOwner {
		t.Fatalf("taking systemd's name: %v %v", reply, err)
	}
}

func (l *standIn) startUnit(unit, _ string) (dbus.ObjectPath, *dbus.Error) {
	l.set(func(l *standIn) { l.started = append(l.started, unit) })
	return "/org/freedesktop/systemd1/job/1", nil
}

// setting is a property of a unit that is made by asking for it.
type setting struct {
	Name  string
	Value dbus.Variant
}

// auxiliary is another unit that comes with it.
type auxiliary struct {
	Name     string
	Settings []setting
}

// startTransientUnit takes the one timer that it is asked for, once.
func (l *standIn) startTransientUnit(name, mode string, settings []setting, others []auxiliary) (dbus.ObjectPath, *dbus.Error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if slices.Contains(l.timers, name) {
		return "", dbus.NewError("org.freedesktop.systemd1.UnitExists", []any{"Unit " + name + " was already loaded or has a fragment file."})
	}
	var spans []struct {
		Base string
		Time uint64
	}
	ends := map[string]string{}
	for _, s := range settings {
		if s.Name == "TimersMonotonic" {
			_ = s.Value.Store(&spans) // what it is not, is missed below
		}
	}
	for _, other := range others {
		for _, s := range other.Settings {
			if action, is := s.Value.Value().(string); is {
				ends[s.Name] = action
			}
		}
	}
	left := time.Duration(0)
	if len(spans) == 1 && spans[0].Base == "OnActiveSec" {
		left = time.Duration(spans[0].Time) * time.Microsecond // it fits
	}
	if mode != "fail" || len(others) != 1 || others[0].Name != "nth-power-off.service" || name != "nth-power-off.timer" ||
		ends["SuccessAction"] != "poweroff" || ends["FailureAction"] != "poweroff" || (left-150*time.Second).Abs() > patience {
		return "", dbus.MakeFailedError(fmt.Errorf("refusing %s after %s, with %v, mode %q", name, left, others, mode))
	}
	l.timers = append(l.timers, name)
	return "/org/freedesktop/systemd1/job/2", nil
}

func connect(t *testing.T, bus *systemBus) *dbus.Conn {
	t.Helper()
	conn, err := dbus.Connect(bus.address())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// leave takes logind off the bus, as a restart does for a moment.
func (l *standIn) leave() {
	if l.conn != nil {
		_ = l.conn.Close()
		l.conn = nil
	}
}

func (l *standIn) get(of, property string) (dbus.Variant, *dbus.Error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case of == managerName && property == "InhibitDelayMaxUSec":
		return dbus.MakeVariant(uint64(l.delay.Microseconds())), nil
	case of == managerName && property == "PreparingForShutdown":
		return dbus.MakeVariant(l.preparing), nil
	case of == managerName && property == "PreparingForSleep":
		return dbus.MakeVariant(l.sleeping), nil
	case of == managerName && property == "HandlePowerKey":
		return dbus.MakeVariant(l.powerKey), nil
	case of == managerName && property == "ScheduledShutdown":
		return dbus.MakeVariant(l.scheduled), nil
	}
	return dbus.Variant{}, dbus.MakeFailedError(fmt.Errorf("no property %s of %s", property, of))
}

func (l *standIn) inhibit(what, who, why, mode string) (dbus.UnixFD, *dbus.Error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.preparing && what == "shutdown" {
		return 0, dbus.NewError(loginName+".OperationInProgress", []any{"the operation is already running"})
	}
	modes := map[string]string{"shutdown": "delay", "sleep": "delay", "handle-power-key": "block"}
	if who != "nth" || why == "" || mode != modes[what] {
		return 0, dbus.MakeFailedError(fmt.Errorf("refusing a lock of %q for %q, for %q, mode %q", what, who, why, mode))
	}
	read, write, err := os.Pipe()
	if err != nil {
		return 0, dbus.MakeFailedError(err)
	}
	var of syscall.Stat_t
	if err := syscall.Fstat(int(write.Fd()), &of); err != nil {
		return 0, dbus.MakeFailedError(err)
	}
	l.pipes = append(l.pipes, pipe{what, read, write, of.Ino})
	return dbus.UnixFD(write.Fd()), nil
}

func (l *standIn) powerOff(bool) *dbus.Error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.powerOffs++
	if l.blocked {
		return errBlocked
	}
	if l.refuses {
		return dbus.MakeFailedError(errors.New("not today"))
	}
	return nil
}

var errBlocked = dbus.NewError(loginName+".BlockedByInhibitorLock", []any{"Operation denied due to active block inhibitor"})

func (l *standIn) schedule(what string, at uint64) *dbus.Error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.blocked {
		return errBlocked
	}
	l.scheduled = scheduled{what, at}
	return nil
}

type inhibitor struct {
	What, Who, Why, Mode string
	UID, PID             uint32
}

func (l *standIn) list() ([]inhibitor, *dbus.Error) {
	return []inhibitor{
		{"shutdown:handle-power-key", "somebody", "", "delay", 0, 1},
		{"sleep:handle-power-key", "nth", "", "block", 0, 2},
		{"shutdown", "other", "", "block", 0, 3},
	}, nil
}

// set changes what logind says when it is asked.
func (l *standIn) set(change func(*standIn)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change(l)
}

// prepare announces a shutdown, or calls it off.
func (l *standIn) prepare(t *testing.T, begins bool) {
	t.Helper()
	l.set(func(l *standIn) { l.preparing = begins })
	if err := l.conn.Emit(loginPath, announcement, begins); err != nil {
		t.Fatal(err)
	}
}

// prepareSleep announces a sleep, or that it is over.
func (l *standIn) prepareSleep(t *testing.T, begins bool) {
	t.Helper()
	l.set(func(l *standIn) { l.sleeping = begins })
	if err := l.conn.Emit(loginPath, managerName+".PrepareForSleep", begins); err != nil {
		t.Fatal(err)
	}
}

// locks is how often the lock was taken, and held how many are held. It is to be called only when nth has got what it
// took, since logind's own copy is closed.
func (l *standIn) locks(t *testing.T, what string) (taken, held int) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range l.pipes {
		if p.what != what {
			continue
		}
		taken++
		if p.held(t) {
			held++
		}
	}
	return taken, held
}

// held tells whether this process has the end to write to once more than the stand-in keeps: the source is in it. The stand-in's own stays
// open, as the bus may not have got it yet.
func (p pipe) held(t *testing.T) bool {
	t.Helper()
	const open = "/proc/self/fd"
	descriptors, err := os.ReadDir(open)
	if err != nil {
		t.Fatal(err)
	}
	copies := 0
	for _, d := range descriptors {
		at := filepath.Join(open, d.Name())
		var of syscall.Stat_t
		if syscall.Stat(at, &of) == nil && of.Ino == p.inode && of.Mode&syscall.S_IFMT == syscall.S_IFIFO {
			copies++
		}
	}
	return copies > len([]*os.File{p.read, p.write})
}

// forged is a signal like logind's that is addressed to one connection.
func forged(destination, member string, body ...any) *dbus.Message {
	return &dbus.Message{
		Type: dbus.TypeSignal,
		Headers: map[dbus.HeaderField]dbus.Variant{
			dbus.FieldDestination: dbus.MakeVariant(destination),
			dbus.FieldPath:        dbus.MakeVariant(loginPath),
			dbus.FieldInterface:   dbus.MakeVariant(managerName),
			dbus.FieldMember:      dbus.MakeVariant(member),
			dbus.FieldSignature:   dbus.MakeVariant(dbus.SignatureOf(body...)),
		},
		Body: body,
	}
}
