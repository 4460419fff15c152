package logind_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
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

const (
	loginName   = "org.freedesktop.login1"
	systemdName = "org.freedesktop.systemd1"
)

// host has a system bus with what logind and systemd are on it, as far as a shutdown goes. The lab has real ones.
type host struct {
	dir string

	mu       sync.Mutex
	listener net.Listener // nil while there is no bus
	conns    []net.Conn
	noise    []*dbus.Message // what another user sends before each answer
	// away: logind is not on the bus.
	away      bool
	hangs     bool // logind gives no answers
	delay     time.Duration
	preparing bool
	kind      string // of the shutdown
	sleeping  bool
	powerKey  string // HandlePowerKey
	powerOffs int    // how often it was asked for
	refuses   bool   // to power off
	words     string // the wall message
	scheduled time.Time
	noSleep   bool   // it grants no lock on the sleep
	pipes     []pipe // one for each lock that was taken

	systemd bool     // systemd is on the bus
	units   []string // that systemd was asked to start, with the modes
	refusal error    // of jobs
	working bool     // jobs are not done yet
}

// pipe is a lock: who took it has a copy of the end to write to.
type pipe struct {
	what        string
	read, write *os.File
	inode       uint64
}

// newHost returns a host without a bus.
func newHost(t *testing.T) *host {
	t.Helper()
	dir, err := os.MkdirTemp("", "host, 100%") //nolint:usetesting // t.TempDir can be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	h := &host{dir: dir, delay: delay, powerKey: "poweroff"}
	if err := os.MkdirAll(filepath.Dir(h.socket()), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		h.stop()
		h.mu.Lock() // A call may still be answered.
		defer h.mu.Unlock()
		for _, p := range h.pipes {
			_, _ = p.read.Close(), p.write.Close() // Nothing was written.
		}
	})
	return h
}

func (h *host) root() logind.Host { return logind.Host(h.dir) }
func (h *host) socket() string    { return filepath.Join(h.dir, "run/dbus/system_bus_socket") }

// start brings up the bus. Each connection is served until one side hangs up.
func (h *host) start(t *testing.T, serve func(*net.UnixConn)) {
	t.Helper()
	listener, err := net.Listen("unix", h.socket())
	if err != nil {
		t.Fatal(err)
	}
	h.set(func() { h.listener = listener })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // The bus was stopped.
			}
			h.set(func() { h.conns = append(h.conns, conn) })
			go func() {
				defer func() { _ = conn.Close() }()
				serve(conn.(*net.UnixConn)) // What listens on "unix" accepts those.
			}()
		}
	}()
}

// stop ends the bus with all connections.
func (h *host) stop() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.listener == nil {
		return
	}
	_ = h.listener.Close() // That also removes the socket.
	for _, conn := range h.conns {
		_ = conn.Close()
	}
	h.listener, h.conns = nil, nil
}

// set changes what logind and systemd say when they are asked, or looks at what they were asked.
func (h *host) set(change func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change()
}

// prepare announces a shutdown, or calls it off.
func (h *host) prepare(begins bool) { h.set(func() { h.preparing = begins }) }

// serve speaks D-Bus with one client until that hangs up.
func (h *host) serve(conn *net.UnixConn) {
	in := bufio.NewReader(conn)
	for line := ""; line != "BEGIN\r\n"; {
		var err error
		if line, err = in.ReadString('\n'); err != nil {
			return
		}
	}
	_, _ = io.WriteString(conn, "OK 1\r\nAGREE_UNIX_FD\r\n") // If the client has hung up, no call comes.
	for {
		asked, err := dbus.DecodeMessage(in)
		if err != nil {
			return
		}
		h.set(func() {
			if h.hangs && asked.Headers[dbus.FieldDestination].Value() == loginName {
				return
			}
			for _, m := range h.noise {
				send(conn, m)
			}
			result, err := h.answer(asked)
			reply := message(dbus.TypeMethodReply, result)
			if err != nil {
				reply = message(dbus.TypeError, []any{err.Error()})
				reply.Headers[dbus.FieldErrorName] = dbus.MakeVariant("org.example.Refused")
			}
			reply.Headers[dbus.FieldReplySerial] = dbus.MakeVariant(asked.Serial())
			send(conn, reply)
		})
	}
}

// message looks like one of logind's.
func message(kind dbus.Type, body []any) *dbus.Message {
	m := &dbus.Message{Type: kind, Flags: dbus.FlagNoReplyExpected, Body: body, Headers: map[dbus.HeaderField]dbus.Variant{
		dbus.FieldPath:      dbus.MakeVariant(dbus.ObjectPath("/org/freedesktop/login1")),
		dbus.FieldInterface: dbus.MakeVariant(loginName + ".Manager"),
		dbus.FieldMember:    dbus.MakeVariant("PrepareForShutdown"),
	}}
	if len(body) > 0 {
		m.Headers[dbus.FieldSignature] = dbus.MakeVariant(dbus.SignatureOf(body...))
	}
	return m
}

// send sends a message, with its descriptors.
func send(conn *net.UnixConn, m *dbus.Message) {
	var text bytes.Buffer
	fds, err := m.EncodeToWithFDs(&text, binary.LittleEndian)
	if err != nil {
		return
	}
	if len(fds) > 0 { // They come with the first byte.
		if _, _, err := conn.WriteMsgUnix(text.Next(1), syscall.UnixRights(fds...), nil); err != nil {
			return
		}
	}
	_, _ = text.WriteTo(conn) // If the client has hung up, the next message does not come.
}

// answer returns what a method returns. The caller holds h.mu.
func (h *host) answer(asked *dbus.Message) ([]any, error) {
	name, _ := asked.Headers[dbus.FieldDestination].Value().(string)
	method, _ := asked.Headers[dbus.FieldMember].Value().(string)
	if name == loginName && h.away || name == systemdName && !h.systemd {
		return nil, fmt.Errorf("the name %s is not activatable", name)
	}
	switch arguments := asked.Body; name + " " + method {
	case "org.freedesktop.DBus Hello":
		return []any{":1.7"}, nil
	case loginName + " GetAll":
		return []any{h.properties()}, nil
	case loginName + " Inhibit":
		return h.inhibit(arguments)
	case loginName + " ListInhibitors":
		return []any{[]logind.Inhibitor{
			{"shutdown:handle-power-key", "somebody", "", "delay", 0, 1},
			{"sleep:handle-power-key", "nth", "", "block", 0, 2},
			{"shutdown", "other", "", "block", 0, 3},
		}}, nil
	case loginName + " SetWallMessage":
		h.words, _ = arguments[0].(string)
		return nil, nil
	case loginName + " ScheduleShutdown":
		if arguments[0] != "poweroff" || h.refuses {
			return nil, fmt.Errorf("refusing to schedule %q", arguments[0])
		}
		h.scheduled = time.UnixMicro(int64(arguments[1].(uint64))) // An answer to anything else would be a panic.
		return nil, nil
	case loginName + " PowerOff", loginName + " Reboot":
		h.powerOffs++
		if h.refuses {
			return nil, fmt.Errorf("operation denied due to active block inhibitor")
		}
		return nil, nil
	case systemdName + " StartUnit":
		h.units = append(h.units, fmt.Sprintf("%s %s", arguments...))
		return []any{dbus.ObjectPath("/org/freedesktop/systemd1/job/7")}, h.refusal
	case systemdName + " GetAll": // A job has no properties that matter. A job that is done is not known.
		if !h.working {
			return nil, fmt.Errorf("unknown object")
		}
		return []any{map[string]dbus.Variant{}}, nil
	}
	return nil, fmt.Errorf("%s has no method %s", name, method)
}

func (h *host) properties() map[string]dbus.Variant {
	all := map[string]dbus.Variant{
		"InhibitDelayMaxUSec":  dbus.MakeVariant(uint64(h.delay.Microseconds())),
		"PreparingForShutdown": dbus.MakeVariant(h.preparing),
		"PreparingForSleep":    dbus.MakeVariant(h.sleeping),
		"HandlePowerKey":       dbus.MakeVariant(h.powerKey),
		"WallMessage":          dbus.MakeVariant(h.words),
	}
	if !h.scheduled.IsZero() {
		all["ScheduledShutdown"] = dbus.MakeVariant(struct {
			Type string
			Usec uint64
		}{"poweroff", uint64(h.scheduled.UnixMicro())})
	}
	if h.kind != "" {
		all["PreparingForShutdownWithMetadata"] = dbus.MakeVariant(map[string]dbus.Variant{"type": dbus.MakeVariant(h.kind)})
	}
	return all
}

func (h *host) inhibit(arguments []any) ([]any, error) {
	what, mode := arguments[0], arguments[3]
	modes := map[any]any{"shutdown": "delay", "sleep": "delay", powerKey: "block"}
	if h.preparing && what == "shutdown" || arguments[1] != "nth" || arguments[2] == "" || mode != modes[what] || h.noSleep && what == "sleep" {
		return nil, fmt.Errorf("refusing a lock with %v", arguments)
	}
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	var of syscall.Stat_t
	if err := syscall.Fstat(int(write.Fd()), &of); err != nil {
		return nil, err
	}
	h.pipes = append(h.pipes, pipe{fmt.Sprint(what), read, write, of.Ino})
	return []any{dbus.UnixFD(write.Fd())}, nil
}

// locks is how often the lock was taken, and how many are held.
func (h *host) locks(t *testing.T, what string) (taken, held int) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, p := range h.pipes {
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

// rig is a source that runs, on a host of its own, and what it says.
type rig struct {
	*host
	source *logind.Source

	snapshots chan []event.Event // of shutdowns
	sleeps    chan []event.Event
	holding   chan time.Duration
	keyHeld   chan bool
	off       chan error
	trouble   chan error // in powering the machine off
	said      bool       // that a shutdown is announced
	end       func()

	listening bool      // The power key is read.
	pressed   time.Time // when it was pressed, until that is read
}

// newRig returns a source that does not run yet, on a host without a bus.
func newRig(t *testing.T) *rig {
	t.Helper()
	t.Parallel()
	return newSerialRig(t)
}

// newSerialRig is newRig for a test that does not run in parallel with others.
func newSerialRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{
		host:      newHost(t),
		snapshots: make(chan []event.Event, 1000), sleeps: make(chan []event.Event, 1000), keyHeld: make(chan bool, 100),
		holding: make(chan time.Duration, 100), off: make(chan error, 100), trouble: make(chan error, 1000),
	}
	r.source = r.newSource()
	return r
}

// newSource returns a source like the one that the rig has, as the next process has it.
func (r *rig) newSource() *logind.Source {
	return logind.New(logind.Options{
		Host: r.root(), BootID: bootID, Kinds: []event.Kind{event.Shutdown, event.Hibernation},
		Notice: func(d time.Duration, err error) {
			if err != nil {
				r.off <- err
				return
			}
			r.holding <- d
		},
		Key: logind.KeyOptions{
			Read: func() (listening bool, pressed time.Time) {
				r.set(func() { listening, pressed, r.pressed = r.listening, r.pressed, time.Time{} })
				return listening, pressed
			},
			Held:    func(held bool, _ string) { r.keyHeld <- held },
			Trouble: func(_ bool, err error) { r.trouble <- err },
		},
	})
}

// holdingRig returns a source that holds the lock and has said that nothing is announced.
func holdingRig(t *testing.T) *rig {
	t.Helper()
	r := newRig(t)
	r.host.start(t, r.serve)
	r.run(t)
	if got := next(t, r.holding); got != delay {
		t.Fatalf("the lock holds a shutdown for %s, want %s", got, delay)
	}
	r.nothing(t)
	return r
}

// press presses the power key, and waits until that is read.
func (r *rig) press(t *testing.T, at time.Time) {
	t.Helper()
	r.set(func() { r.pressed = at })
	r.await(t, "the key is read", func() (isRead bool) {
		r.set(func() { isRead = r.pressed.IsZero() })
		return isRead
	})
}

func (r *rig) run(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); r.source.Run(ctx, r) }()
	r.end = func() {
		cancel()
		next(t, done)
		r.end = func() {}
	}
	t.Cleanup(func() { r.end() })
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
	r.end()
	for len(r.snapshots) > 0 {
		t.Errorf("then it was announced %v", <-r.snapshots)
	}
}

// mustHave waits until the lock was taken so often, and so many are held.
func (r *rig) mustHave(t *testing.T, what string, taken, held int) {
	t.Helper()
	var gotTaken, gotHeld int
	r.await(t, fmt.Sprintf("the lock on %s is taken %d times and held %d times", what, taken, held), func() bool {
		gotTaken, gotHeld = r.locks(t, what)
		return gotTaken == taken && gotHeld == held
	})
}

// await waits until the condition is met.
func (*host) await(t *testing.T, what string, met func() bool) {
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
func (h *host) wasAsked(unit string) (found bool) {
	h.set(func() { found = slices.Contains(h.units, unit) })
	return found
}
