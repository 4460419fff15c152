package logind_test

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"

	"github.com/nth-project/nth/pkg/event"
)

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
	}
}

// message looks like one of logind's.
func message(kind dbus.Type, body []any) *dbus.Message {
	m := &dbus.Message{Type: kind, Flags: dbus.FlagNoReplyExpected, Body: body, Headers: map[dbus.HeaderField]dbus.Variant{
		dbus.FieldPath:      dbus.MakeVariant(loginPath),
		dbus.FieldInterface: dbus.MakeVariant(managerName),
		dbus.FieldMember:    dbus.MakeVariant("PrepareForShutdown"),
	}}
	if len(body) > 0 {
		m.Headers[dbus.FieldSignature] = dbus.MakeVariant(dbus.SignatureOf(body...))
	}
	return m
}

// listen serves each connection to a socket until the test is over.
func listen(t *testing.T, socket string, serve func(*net.UnixConn)) {
	t.Helper()
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // The test is over.
			}
			go func() {
				defer func() { _ = conn.Close() }()
				serve(conn.(*net.UnixConn)) // What listens on "unix" accepts those.
			}()
		}
	}()
}

// answer speaks D-Bus with one client until that hangs up. It answers calls of these methods with one value each, and others with none.
// Before each answer it calls first, which says whether the call is answered; files says whether descriptors are passed on.
func answer(conn *net.UnixConn, results map[string]any, first func(files bool) (answers bool)) {
	in, files := bufio.NewReader(conn), false
	for line := ""; line != "BEGIN\r\n"; {
		var err error
		if line, err = in.ReadString('\n'); err != nil {
			return
		}
		reply := "REJECTED EXTERNAL\r\n"
		switch {
		case strings.HasPrefix(line, "AUTH EXTERNAL"):
			reply = "OK 1\r\n"
		case strings.HasPrefix(line, "NEGOTIATE"):
			reply, files = "AGREE_UNIX_FD\r\n", true
		case strings.HasPrefix(line, "BEGIN"):
			reply = ""
		}
		_, _ = io.WriteString(conn, reply) // If the client has hung up, the next line does not come.
	}
	for {
		asked, err := dbus.DecodeMessage(in)
		if err != nil {
			return
		}
		if !first(files) {
			continue
		}
		reply := message(dbus.TypeMethodReply, nil)
		member, _ := asked.Headers[dbus.FieldMember].Value().(string)
		if result, found := results[member]; found {
			reply = message(dbus.TypeMethodReply, []any{result})
		}
		reply.Headers[dbus.FieldReplySerial] = dbus.MakeVariant(asked.Serial())
		send(conn, reply, files)
	}
}

// send sends a message, unless it has descriptors and they are not passed on.
func send(conn *net.UnixConn, m *dbus.Message, files bool) {
	var text bytes.Buffer
	fds, err := m.EncodeToWithFDs(&text, binary.LittleEndian)
	if err != nil || len(fds) > 0 && !files {
		return
	}
	if len(fds) > 0 { // They come with the first byte.
		if _, _, err := conn.WriteMsgUnix(text.Next(1), syscall.UnixRights(fds...), nil); err != nil {
			return
		}
	}
	_, _ = text.WriteTo(conn) // If the client has hung up, the next message does not come.
}

func TestSource_CannotBeStoppedOrBlindedOverTheBus(t *testing.T) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = null.Close() })
	file := dbus.UnixFD(null.Fd())
	r := newRig(t)
	listen(t, r.bus.socket(), func(conn *net.UnixConn) {
		answer(conn, map[string]any{
			"Hello": ":1.7", "Inhibit": file,
			"GetAll": map[string]dbus.Variant{"InhibitDelayMaxUSec": dbus.MakeVariant(uint64(delay.Microseconds()))},
		}, func(files bool) bool { // All that any user could send comes first.
			for _, body := range bodies(file) {
				send(conn, message(dbus.TypeSignal, body), files)
				send(conn, message(dbus.TypeMethodCall, body), files)
			}
			return true
		})
	})
	before := openFiles(t)
	r.run(t)
	if got := next(t, r.holding); got != delay {
		t.Errorf("the lock holds a shutdown for %s, want %s", got, delay)
	}
	const few = 40 // A message may have 16, and each answer came after a hundred.
	if open := openFiles(t); open > before+few {
		t.Errorf("%d descriptors are open, and %d were before", open, before)
	}
}

// shutDownAndBack has a shutdown announced, released and called off. The source takes another lock then.
func (r *rig) shutDownAndBack(t *testing.T) {
	t.Helper()
	r.logind.prepare(t, true)
	r.announced(t)
	r.source.Release(event.Shutdown)
	r.logind.prepare(t, false)
	r.nothing(t)
}

func openFiles(t *testing.T) int {
	t.Helper()
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(open)
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
	if _, err := r.bus.host().Settings(t.Context()); err == nil {
		t.Fatal("the bus can be connected to")
	}
	for range 2 { // Each ends with another call of Inhibit.
		r.shutDownAndBack(t)
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
			listen(t, bus.socket(), func(conn *net.UnixConn) {
				_, _ = io.WriteString(conn, answer) // Who hears too little has hung up.
				_, _ = io.Copy(io.Discard, conn)
			})
			if got, err := bus.host().Settings(t.Context()); err == nil {
				t.Errorf("logind says %+v", got)
			}
		})
	}
}
