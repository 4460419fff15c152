package logind_test

import (
	"bufio"
	"context"
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

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/logind"
)

// patience bounds every wait.
const patience = 30 * time.Second

const (
	bootID = "0f2c"
	delay  = 90 * time.Second
	margin = 5 * time.Second
)

// busPolicy is what distributions ship for the system bus: everybody may send signals to everybody, and nobody but root (here, this
// process) may own names or call methods.
const busPolicy = `<busconfig><type>system</type><listen>unix:path=%s</listen><auth>EXTERNAL</auth>
<policy context="default"><allow user="*"/><deny own="*"/><deny send_type="method_call"/><allow send_type="signal"/>
<allow send_requested_reply="true" send_type="method_return"/><allow send_requested_reply="true" send_type="error"/>
<allow receive_type="method_call"/><allow receive_type="method_return"/><allow receive_type="error"/><allow receive_type="signal"/>
<allow send_destination="org.freedesktop.DBus" send_interface="org.freedesktop.DBus"/></policy>
<policy user="%d"><allow own="*"/><allow send_type="method_call"/></policy></busconfig>`

// systemBus is a real message bus, of a host that has nothing else.
type systemBus struct {
	dir    string
	daemon *exec.Cmd
}

func newBus(t *testing.T) *systemBus {
	t.Helper()
	needDaemon(t)
	dir, err := os.MkdirTemp("", "host, 100%") //nolint:usetesting // t.TempDir can be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	b := &systemBus{dir: dir}
	if err := os.MkdirAll(filepath.Dir(b.socket()), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{dir, filepath.Join(dir, "run"), filepath.Dir(b.socket())} {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	config := fmt.Appendf(nil, busPolicy, dbus.EscapeBusAddressValue(b.socket()), os.Getuid())
	if err := os.WriteFile(filepath.Join(dir, "conf"), config, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.stop)
	return b
}

func (b *systemBus) host() logind.Host { return logind.Host(b.dir) }
func (b *systemBus) socket() string    { return filepath.Join(b.dir, "run/dbus/system_bus_socket") }
func (b *systemBus) address() string {
	return "unix:path=" + dbus.EscapeBusAddressValue(b.socket())
}

// start returns when the bus can be connected to.
func (b *systemBus) start(t *testing.T) {
	t.Helper()
	b.daemon = exec.Command("dbus-daemon", "--config-file="+filepath.Join(b.dir, "conf"), "--nofork", "--nopidfile", "--print-address")
	b.daemon.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // also if the test is killed
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
	_ = b.daemon.Process.Kill() // It fails only if the bus has ended.
	_ = b.daemon.Wait()         // It was killed.
	_ = os.Remove(b.socket())
	b.daemon = nil
}

func (b *systemBus) connect(t *testing.T) *dbus.Conn {
	t.Helper()
	conn, err := dbus.Connect(b.address())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// needDaemon installs the bus where it is missing. Without it, nothing here can be tested.
func needDaemon(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("dbus-daemon"); err == nil {
		return
	}
	install := exec.Command("/bin/sh", "-c", "apt-get -qq update && apt-get -qq install -y --no-install-recommends dbus-daemon >&2")
	install.Stderr = os.Stderr
	if err := install.Run(); err != nil {
		t.Fatalf("these tests need dbus-daemon (package dbus-daemon or dbus), which cannot be installed: %v", err)
	}
}

const (
	loginName   = "org.freedesktop.login1"
	loginPath   = dbus.ObjectPath("/org/freedesktop/login1")
	managerName = "org.freedesktop.login1.Manager"
	systemdName = "org.freedesktop.systemd1"
	systemdPath = dbus.ObjectPath("/org/freedesktop/systemd1")
	properties  = "org.freedesktop.DBus.Properties"
)

// standIn is on the bus what logind is, as far as a shutdown goes.
type standIn struct {
	bus  *systemBus
	conn *dbus.Conn

	mu        sync.Mutex
	delay     time.Duration
	preparing bool
	kind      string // of the shutdown
	sleeping  bool
	powerKey  string // HandlePowerKey
	powerOffs int    // how often it was asked for
	refuses   bool   // to power off
	words     string // the wall message
	scheduled time.Time
	noKey     bool   // it grants no lock on the power key
	noSleep   bool   // it grants no lock on the sleep
	pipes     []pipe // one for each lock that was taken
}

// pipe is a lock: who took it has a copy of the end to write to.
type pipe struct {
	what        string
	read, write *os.File
	inode       uint64
}

// newLogind returns a stand-in that is not on the bus yet.
func newLogind(t *testing.T, bus *systemBus) *standIn {
	t.Helper()
	l := &standIn{bus: bus, delay: delay, powerKey: "poweroff"}
	t.Cleanup(func() {
		l.leave()
		l.mu.Lock() // A call may still be answered.
		defer l.mu.Unlock()
		for _, p := range l.pipes {
			_, _ = p.read.Close(), p.write.Close() // Nothing was written.
		}
	})
	return l
}

// join brings logind onto the bus, with all that it knew.
func (l *standIn) join(t *testing.T) {
	t.Helper()
	l.conn = l.bus.connect(t)
	export(t, l.conn, loginPath, managerName, map[string]any{"Inhibit": l.inhibit, "PowerOff": l.powerOff, "ListInhibitors": l.list,
		"SetWallMessage": l.setWallMessage, "ScheduleShutdown": l.schedule})
	export(t, l.conn, loginPath, properties, map[string]any{"GetAll": l.getAll})
	own(t, l.conn, loginName)
}

func export(t *testing.T, conn *dbus.Conn, at dbus.ObjectPath, face string, methods map[string]any) {
	t.Helper()
	if err := conn.ExportSubtreeMethodTable(methods, at, face); err != nil {
		t.Fatal(err)
	}
}

func own(t *testing.T, conn *dbus.Conn, name string) {
	t.Helper()
	if reply, err := conn.RequestName(name, dbus.NameFlagDoNotQueue); err != nil || reply != dbus.RequestNameReplyPrimaryOwner {
		t.Fatalf("taking the name %s: %v, %v", name, reply, err)
	}
}

// leave takes logind off the bus, as a restart does for a moment.
func (l *standIn) leave() {
	if l.conn != nil {
		_ = l.conn.Close()
		l.conn = nil
	}
}

func (l *standIn) getAll(string) (map[string]dbus.Variant, *dbus.Error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := map[string]dbus.Variant{
		"InhibitDelayMaxUSec":  dbus.MakeVariant(uint64(l.delay.Microseconds())),
		"PreparingForShutdown": dbus.MakeVariant(l.preparing),
		"PreparingForSleep":    dbus.MakeVariant(l.sleeping),
		"HandlePowerKey":       dbus.MakeVariant(l.powerKey),
		"WallMessage":          dbus.MakeVariant(l.words),
	}
	if !l.scheduled.IsZero() {
		all["ScheduledShutdown"] = dbus.MakeVariant(scheduled{"poweroff", uint64(l.scheduled.UnixMicro())})
	}
	if l.kind != "" {
		all["PreparingForShutdownWithMetadata"] = dbus.MakeVariant(map[string]dbus.Variant{"type": dbus.MakeVariant(l.kind)})
	}
	return all, nil
}

func (l *standIn) inhibit(what, who, why, mode string) (dbus.UnixFD, *dbus.Error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.preparing && what == "shutdown" {
		return 0, dbus.NewError(loginName+".OperationInProgress", []any{"the operation is already running"})
	}
	modes := map[string]string{"shutdown": "delay", "sleep": "delay", "handle-power-key": "block"}
	if who != "nth" || why == "" || mode != modes[what] || l.noKey && mode == "block" || l.noSleep && what == "sleep" {
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
	if l.refuses {
		return dbus.NewError(loginName+".BlockedByInhibitorLock", []any{"Operation denied due to active block inhibitor"})
	}
	return nil
}

// scheduled is logind's property of a shutdown that is to come.
type scheduled struct {
	Type string
	Usec uint64
}

func (l *standIn) setWallMessage(words string, _ bool) *dbus.Error {
	l.set(func(l *standIn) { l.words = words })
	return nil
}

func (l *standIn) schedule(what string, usec uint64) *dbus.Error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if what != "poweroff" || l.refuses {
		return dbus.MakeFailedError(fmt.Errorf("refusing to schedule %q", what))
	}
	l.scheduled = time.UnixMicro(int64(usec))
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
	l.emit(t, "PrepareForShutdown", begins)
}

// prepareSleep announces a sleep, or that it is over.
func (l *standIn) prepareSleep(t *testing.T, begins bool) {
	t.Helper()
	l.set(func(l *standIn) { l.sleeping = begins })
	l.emit(t, "PrepareForSleep", begins)
}

func (l *standIn) emit(t *testing.T, signal string, begins bool) {
	t.Helper()
	if err := l.conn.Emit(loginPath, managerName+"."+signal, begins); err != nil {
		t.Fatal(err)
	}
}

// locks is how often the lock was taken, and how many are held.
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

// held reports whether this process has more ends of the pipe than the stand-in keeps: the source is in it.
func (p pipe) held(t *testing.T) bool {
	t.Helper()
	const open = "/proc/self/fd"
	descriptors, err := os.ReadDir(open)
	if err != nil {
		t.Fatal(err)
	}
	copies := 0
	for _, d := range descriptors {
		var of syscall.Stat_t
		if syscall.Stat(filepath.Join(open, d.Name()), &of) == nil && of.Ino == p.inode && of.Mode&syscall.S_IFMT == syscall.S_IFIFO {
			copies++
		}
	}
	return copies > len([]*os.File{p.read, p.write})
}

// manager is on the bus what systemd is.
type manager struct {
	conn *dbus.Conn

	mu      sync.Mutex
	asked   []string    // the units to start, with the modes
	refusal *dbus.Error // of jobs
	working bool        // jobs are not done yet
}

// manage brings systemd onto the bus.
func manage(t *testing.T, bus *systemBus) *manager {
	t.Helper()
	m := &manager{conn: bus.connect(t)}
	export(t, m.conn, systemdPath, systemdName+".Manager", map[string]any{"StartUnit": m.start})
	export(t, m.conn, systemdPath, properties, map[string]any{"GetAll": m.job})
	own(t, m.conn, systemdName)
	return m
}

const jobPath = systemdPath + "/job/7"

// job has no properties that matter. A job that is done is not known.
func (m *manager) job(string) (map[string]dbus.Variant, *dbus.Error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.working {
		return map[string]dbus.Variant{}, nil
	}
	return nil, dbus.NewError("org.freedesktop.DBus.Error.UnknownObject", []any{"Unknown object."})
}

func (m *manager) start(unit, mode string) (dbus.ObjectPath, *dbus.Error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.asked = append(m.asked, unit+" "+mode)
	return jobPath, m.refusal
}

// with returns what f finds, which has systemd for itself.
func with[T any](m *manager, f func() T) T {
	m.mu.Lock()
	defer m.mu.Unlock()
	return f()
}

// rig is a source that runs, on a host of its own, and what it says.
type rig struct {
	bus    *systemBus
	logind *standIn
	source *logind.Source

	snapshots chan []event.Event // of shutdowns
	sleeps    chan []event.Event
	holding   chan time.Duration
	keyHeld   chan bool
	troubles  chan error
	off       chan error
	said      bool // that a shutdown is announced
	stop      func()
}

// newRig returns a source that does not run yet, and a bus and a logind that are not there yet.
func newRig(t *testing.T) *rig {
	t.Helper()
	bus := newBus(t)
	r := &rig{
		bus: bus, logind: newLogind(t, bus),
		snapshots: make(chan []event.Event, 1000), sleeps: make(chan []event.Event, 1000), keyHeld: make(chan bool, 100),
		troubles: make(chan error, 1000), holding: make(chan time.Duration, 100), off: make(chan error, 100),
	}
	r.source = r.newSource()
	return r
}

// newSource returns a source like the one that the rig has, as the next process has it.
func (r *rig) newSource() *logind.Source {
	return logind.New(logind.Options{
		Host: r.bus.host(), BootID: bootID, Margin: margin, Kinds: []event.Kind{event.Shutdown, event.Hibernation},
		Holding: func(d time.Duration) { r.holding <- d },
		Off:     func(err error) { r.off <- err },
		Key: &logind.KeyOptions{
			Held:    func(held bool, _ string) { r.keyHeld <- held },
			Trouble: func(err error) { r.troubles <- err },
		},
	})
}

// holdingRig returns a source that holds the lock and has said that nothing is announced.
func holdingRig(t *testing.T) *rig {
	t.Helper()
	r := newRig(t)
	r.bus.start(t)
	r.logind.join(t)
	r.run(t)
	if got := next(t, r.holding); got != delay {
		t.Fatalf("the lock holds a shutdown for %s, want %s", got, delay)
	}
	r.nothing(t)
	return r
}

func (r *rig) run(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); r.source.Run(ctx, r) }()
	r.stop = func() {
		cancel()
		next(t, done)
		r.stop = func() {}
	}
	t.Cleanup(func() { r.stop() })
}

// Snapshot implements event.Sink.
func (r *rig) Snapshot(s event.Snapshot) {
	if s.Kind == event.Shutdown {
		r.snapshots <- s.Events
	} else {
		r.sleeps <- s.Events
	}
}

// Trouble implements event.Sink.
func (r *rig) Trouble(event.Kind, error) {}

// announced takes the next snapshot that has something, which must be the shutdown. Once it is announced, none may have nothing:
// each look before says so, and a press may come between two.
func (r *rig) announced(t *testing.T) event.Event {
	t.Helper()
	events := next(t, r.snapshots)
	for ; len(events) == 0 && !r.said; events = next(t, r.snapshots) {
	}
	r.said = true
	if len(events) != 1 || events[0].ID != "shutdown-"+bootID || events[0].Kind != event.Shutdown || events[0].State != event.Pending {
		t.Fatalf("announced is %v, want the shutdown", events)
	}
	return events[0]
}

// nothing takes snapshots until one is empty: nothing is announced, or no longer.
func (r *rig) nothing(t *testing.T) {
	t.Helper()
	for len(next(t, r.snapshots)) > 0 {
	}
	r.said = false
}

// saidNoMore fails the test if anything was announced since.
func (r *rig) saidNoMore(t *testing.T) {
	t.Helper()
	r.stop()
	for len(r.snapshots) > 0 {
		t.Errorf("then it was announced %v", <-r.snapshots)
	}
}

// mustHave waits until the lock was taken so often, and so many are held.
func (r *rig) mustHave(t *testing.T, what string, taken, held int) {
	t.Helper()
	var gotTaken, gotHeld int
	r.await(t, fmt.Sprintf("the lock on %s is taken %d times and held %d times", what, taken, held), func() bool {
		gotTaken, gotHeld = r.logind.locks(t, what)
		return gotTaken == taken && gotHeld == held
	})
}

// await waits until the condition is met.
func (*rig) await(t *testing.T, what string, met func() bool) {
	t.Helper()
	for limit := time.Now().Add(patience); !met(); time.Sleep(time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("it does not come that %s", what)
		}
	}
}

func next[T any](t *testing.T, from <-chan T) T {
	t.Helper()
	select {
	case value := <-from:
		return value
	case <-time.After(patience):
		t.Fatal("it does not come")
		panic("unreachable")
	}
}

// mustEnd fails the test unless a deadline is near the one that is wanted.
func mustEnd(t *testing.T, ev event.Event, want time.Time) {
	t.Helper()
	if off := ev.Deadline.Sub(want); off.Abs() > 5*time.Second {
		t.Errorf("the deadline is %s off", off)
	}
}

// wasAsked reports whether systemd was asked to start a unit, with a mode.
func (m *manager) wasAsked(unit string) bool {
	return with(m, func() bool { return slices.Contains(m.asked, unit) })
}
