package logind_test

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/logind"
)

// The tests run themselves as other processes, which have these roles.
const (
	roleVariable = "NTH_TEST_ROLE"
	sourceRole   = "source"   // watches the host in its argument
	attackRole   = "attacker" // of the process in its second argument, over the bus in its first
)

func TestMain(m *testing.M) {
	switch arguments := os.Args[1:]; os.Getenv(roleVariable) {
	case sourceRole:
		watch(logind.Host(arguments[0]))
	case attackRole:
		pid, _ := strconv.ParseUint(arguments[1], 10, 32) // 0 is nobody.
		if err := attack(arguments[0], uint32(pid)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	default:
		os.Exit(m.Run())
	}
}

// play starts this program in a role.
func play(t *testing.T, role string, as *syscall.Credential, arguments ...string) (process *exec.Cmd, said *bufio.Reader) {
	t.Helper()
	process = exec.Command("/proc/self/exe", arguments...)
	process.Env = append(os.Environ(), roleVariable+"="+role)
	process.Dir, process.Stderr = "/", os.Stderr
	process.SysProcAttr = &syscall.SysProcAttr{Credential: as}
	out, err := process.StdoutPipe()
	if err == nil {
		err = process.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = process.Process.Kill() }) // It fails only if the process has ended.
	return process, bufio.NewReader(out)
}

// printer prints what is announced, and lets it go on at once.
type printer struct{ source *logind.Source }

func (p *printer) Snapshot(s event.Snapshot) {
	if s.Kind != event.Shutdown {
		return
	}
	fmt.Println(len(s.Events), "announced")
	if len(s.Events) > 0 {
		go p.source.Release(event.Shutdown)
	}
}

func (*printer) Trouble(event.Kind, error) {}

// watch is what nth does with the bus. It ends with its standard output.
func watch(host logind.Host) {
	source := logind.New(logind.Options{
		Host: host, BootID: bootID, Kinds: []event.Kind{event.Shutdown, event.Hibernation}, Key: &logind.KeyOptions{},
	})
	source.ListenToKey(true)
	_ = source.Run(context.Background(), &printer{source}) // It has no error.
}

// bodies has all basic types and containers of D-Bus, with and without descriptors.
func bodies(file dbus.UnixFD) [][]any {
	deep := any(byte(1))
	for range 30 {
		deep = []dbus.Variant{dbus.MakeVariant(deep)}
	}
	files := make([]dbus.UnixFD, 16)
	for i := range files {
		files[i] = file
	}
	return [][]any{
		{}, {byte(1)}, {true}, {int16(1)}, {uint16(1)}, {int32(1)}, {uint32(1)}, {int64(1)}, {uint64(1)}, {1.5}, {"a"},
		{dbus.ObjectPath("/a")}, {dbus.SignatureOf("a")}, {dbus.MakeVariant(1.5)}, {deep}, {[]byte{1}}, {[]string{"a", "b"}},
		{[]dbus.UnixFD{}}, {map[string]dbus.Variant{"a": dbus.MakeVariant("b")}}, {map[byte][]bool{1: {true}}}, {[][]uint64{{1}, {}}},
		{[]struct{ A, B string }{{"a", "b"}}}, {struct {
			A byte
			B []struct{ C int64 }
		}{}}, {file}, {files}, {[]struct{ A dbus.UnixFD }{{file}}}, {dbus.MakeVariant(file)}, {map[string]dbus.UnixFD{"a": file}},
		{make([]byte, 8<<20)},
	}
}

// flood is how many signals without a body are sent in all, and filed how many have descriptors.
const (
	flood  = 200_000
	filed  = 300
	rounds = 20
)

// attack sends a process what anybody may send. It says when it begins.
func attack(bus string, victim uint32) error {
	conn, err := dbus.Connect(bus)
	if err != nil {
		return err
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	defer func() { _ = null.Close() }() // It was only sent.
	file := dbus.UnixFD(null.Fd())
	if owner, err := pidOf(conn, conn.Names()[0]); err != nil || owner == 0 {
		return fmt.Errorf("asking the bus for a process: %w", err)
	}
	for round := range rounds { // The victim has other connections each time.
		names, err := connectionsOf(conn, victim)
		for limit := time.Now().Add(patience); err == nil && len(names) == 0 && time.Now().Before(limit); time.Sleep(10 * time.Millisecond) {
			names, err = connectionsOf(conn, victim) // It may be about to connect again: a call can take too long on a slow machine.
		}
		if err != nil || len(names) == 0 {
			return fmt.Errorf("looking for the victim: %q, %w", names, err)
		}
		for _, name := range names {
			for i, body := range bodies(file) {
				if round > 0 && i == len(bodies(file))-1 {
					break // The large one takes long to make.
				}
				for _, kind := range []dbus.Type{dbus.TypeSignal, dbus.TypeMethodCall, dbus.TypeMethodReply, dbus.TypeError} {
					conn.Send(message(kind, name, body), nil)
				}
			}
		}
		for i := range flood / rounds {
			conn.Send(message(dbus.TypeSignal, names[i%len(names)], nil), nil)
		}
		for i := range filed / rounds {
			body := make([]any, 16)
			for j := range body {
				body[j] = file
			}
			conn.Send(message(dbus.TypeSignal, names[i%len(names)], body), nil)
		}
		if _, err := connectionsOf(conn, victim); err != nil { // The bus has passed everything on.
			return err
		}
		if round == 0 {
			fmt.Println("begun")
		}
	}
	return nil
}

func pidOf(conn *dbus.Conn, name string) (pid uint32, err error) {
	err = conn.BusObject().Call("org.freedesktop.DBus.GetConnectionUnixProcessID", 0, name).Store(&pid)
	return pid, err
}

// connectionsOf are the names that a process has on the bus.
func connectionsOf(conn *dbus.Conn, process uint32) (own []string, err error) {
	var names []string
	if err := conn.BusObject().Call("org.freedesktop.DBus.ListNames", 0).Store(&names); err != nil {
		return nil, err
	}
	for _, name := range names {
		if pid, err := pidOf(conn, name); err == nil && pid == process && strings.HasPrefix(name, ":") { // Others have gone meanwhile.
			own = append(own, name)
		}
	}
	return own, nil
}

// message looks like one of logind's, and is for one connection.
func message(kind dbus.Type, to string, body []any) *dbus.Message {
	m := &dbus.Message{Type: kind, Flags: dbus.FlagNoReplyExpected, Body: body, Headers: map[dbus.HeaderField]dbus.Variant{
		dbus.FieldDestination: dbus.MakeVariant(to),
		dbus.FieldPath:        dbus.MakeVariant(loginPath),
		dbus.FieldInterface:   dbus.MakeVariant(managerName),
		dbus.FieldMember:      dbus.MakeVariant("PrepareForShutdown"),
	}}
	if kind == dbus.TypeMethodReply || kind == dbus.TypeError {
		m.Headers[dbus.FieldReplySerial] = dbus.MakeVariant(uint32(1))
		m.Headers[dbus.FieldErrorName] = dbus.MakeVariant("org.freedesktop.DBus.Error.Failed")
	}
	if len(body) > 0 {
		m.Headers[dbus.FieldSignature] = dbus.MakeVariant(dbus.SignatureOf(body...))
	}
	return m
}

func TestSource_CannotBeStoppedBlindedOrBloatedOverTheBus(t *testing.T) {
	bus := newBus(t)
	bus.start(t)
	login := newLogind(t, bus)
	login.join(t)
	source, said := play(t, sourceRole, nil, bus.dir)
	hear := func(want string) {
		t.Helper()
		for {
			line, err := said.ReadString('\n')
			if err != nil {
				t.Fatalf("waiting for %q: %v", want, err)
			}
			if strings.HasPrefix(line, want) {
				return
			}
		}
	}
	hear("0 announced")

	var other *syscall.Credential // Only root can become another user.
	if os.Getuid() == 0 {
		other = &syscall.Credential{Uid: 65534, Gid: 65534}
	}
	attacker, begun := play(t, attackRole, other, bus.address(), strconv.Itoa(source.Process.Pid))
	if _, err := begun.ReadString('\n'); err != nil {
		t.Fatalf("the attack does not begin: %v", err)
	}
	attacked := make(chan error, 1)
	go func() {
		_, _ = io.Copy(io.Discard, begun) // until it ends
		attacked <- attacker.Wait()
	}()
	heard := 0
	for over := false; !over || heard == 0; heard++ { // Each ends with another call of Inhibit.
		login.prepare(t, true)
		hear("1 announced")
		login.prepare(t, false)
		hear("0 announced")
		select {
		case err := <-attacked:
			if err != nil {
				t.Fatalf("the attack failed: %v", err)
			}
			over = true
		case <-time.After(100 * time.Millisecond):
		}
	}
	open, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(source.Process.Pid), "fd"))
	if err != nil {
		t.Fatalf("the process has ended: %v", err)
	}
	peak := peakMemory(t, source.Process.Pid)
	t.Logf("%d shutdowns were heard of meanwhile; %d descriptors are open, and the peak is %d MiB", heard, len(open), peak>>20)
	if len(open) >= 100 || peak >= 64<<20 {
		t.Errorf("%d descriptors are open and the peak is %d MiB, want less than 100 and 64 MiB", len(open), peak>>20)
	}
}

// peakMemory is the most that a process has had in memory, in bytes.
func peakMemory(t *testing.T, pid int) int64 {
	t.Helper()
	status, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
	if err != nil {
		t.Fatal(err)
	}
	_, peak, _ := strings.Cut(string(status), "VmHWM:")
	kib, err := strconv.ParseInt(strings.Fields(peak)[0], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return kib << 10
}

// Any user can keep the bus busy with connections that never say who they are (max_incomplete_connections).
func TestSource_HearsShutdownsWhileNobodyCanConnect(t *testing.T) {
	r := holdingRig(t)
	var first net.Conn
	for range 70 {
		silent, err := net.Dial("unix", r.bus.socket())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = silent.Close() })
		first = cmp.Or(first, silent)
	}
	if _, err := r.bus.host().Delay(t.Context()); err == nil {
		t.Fatal("the bus can be connected to")
	}
	for range 2 { // Each ends with another call of Inhibit.
		r.logind.prepare(t, true)
		r.announced(t)
		r.source.Release(event.Shutdown)
		r.logind.prepare(t, false)
		r.nothing(t)
	}
	_ = first.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	if _, err := io.Copy(io.Discard, first); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the shutdowns were only heard when the bus had hung up (%v)", err)
	}
}

// The bus that a connection is made to may answer anything, or nothing.
func TestHost_DoesNotWaitForWhatIsNoBus(t *testing.T) {
	for name, answer := range map[string]string{
		"silence":                "",
		"another protocol":       "HTTP/1.1 400 Bad Request\r\n\r\n",
		"no messages":            "REJECTED EXTERNAL\r\nOK 1\r\n\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
		"a message of 128 MiB":   "REJECTED EXTERNAL\r\nOK 1\r\nl\x02\x01\x01\x00\x00\x00\x08\x01\x00\x00\x00\x00\x00\x00\x00",
		"half a message":         "REJECTED EXTERNAL\r\nOK 1\r\nl\x02\x01\x01\x08",
		"an end before the name": "REJECTED EXTERNAL\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bus := newBus(t)
			serve(t, bus, answer)
			if got, err := bus.host().Delay(t.Context()); err == nil {
				t.Errorf("logind grants %s", got)
			}
		})
	}
}
