package logind_test

import (
	"io"
	"net"
	"os"
	"testing"

	"github.com/godbus/dbus/v5"
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

func openFiles(t *testing.T) int {
	t.Helper()
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(open)
}

// The test counts open files, so it does not run in parallel with others.
func TestSource_CannotBeStoppedOrBlindedOverTheBus(t *testing.T) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = null.Close() })
	r := newSerialRig(t)
	for _, body := range bodies(dbus.UnixFD(null.Fd())) { // All that any user could send comes before each answer.
		r.noise = append(r.noise, message(dbus.TypeSignal, body), message(dbus.TypeMethodCall, body))
	}
	r.start(t, r.serve)
	before := openFiles(t)
	r.run(t)
	if got := next(t, r.holding); got != delay {
		t.Errorf("the lock holds a shutdown for %s, want %s", got, delay)
	}
	r.mustHave(t, "shutdown", 1, 1)
	const few = 40 // A message may have 16, and each answer came after a hundred.
	if open := openFiles(t); open > before+few {
		t.Errorf("%d descriptors are open, and %d were before", open, before)
	}
}

// The bus that a connection is made to may answer anything, or nothing.
func TestHost_DoesNotWaitForWhatIsNoBus(t *testing.T) {
	for name, answer := range map[string]string{
		"silence":              "",
		"another protocol":     "HTTP/1.1 400 Bad Request\r\n\r\n",
		"no end of a line":     string(make([]byte, 1000)),
		"no messages":          "OK 1\r\nAGREE_UNIX_FD\r\n\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
		"a message of 128 MiB": "OK 1\r\nAGREE_UNIX_FD\r\nl\x02\x01\x01\x00\x00\x00\x08\x01\x00\x00\x00\x00\x00\x00\x00",
		"half a message":       "OK 1\r\nAGREE_UNIX_FD\r\nl\x02\x01\x01\x08",
		"no descriptors":       "OK 1\r\nERROR\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t)
			h.start(t, func(conn *net.UnixConn) {
				_, _ = io.WriteString(conn, answer) // Who hears too little has hung up.
				_, _ = io.Copy(io.Discard, conn)
			})
			if got, err := h.root().Settings(t.Context()); err == nil {
				t.Errorf("logind says %+v", got)
			}
		})
	}
}
