package systemd_test

import (
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/systemd"
)

// manager plays the service manager: it listens where $NOTIFY_SOCKET says.
type manager struct {
	t    *testing.T
	conn *net.UnixConn
}

func listen(t *testing.T) *manager {
	t.Helper()
	// Socket paths may be no longer than 108 bytes, which the names of test directories can exceed.
	dir, err := os.MkdirTemp("", "nth") //nolint:usetesting // for the reason above
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	t.Setenv("NOTIFY_SOCKET", path)
	return &manager{t, conn}
}

// next returns the next datagram. Datagrams are queued by the time their sender returns, so the wait only bounds a
// test that fails.
func (m *manager) next() string {
	m.t.Helper()
	_ = m.conn.SetReadDeadline(time.Now().Add(30 * time.Second))
	buf := make([]byte, 4096)
	n, err := m.conn.Read(buf)
	if err != nil {
		m.t.Fatal(err)
	}
	return string(buf[:n])
}

func (m *manager) expect(want ...string) {
	m.t.Helper()
	for _, w := range want {
		if got := m.next(); got != w {
			m.t.Errorf("got %q, want %q", got, w)
		}
	}
}

func TestNotifier_SendsEachStateAndAStatusOnce(t *testing.T) {
	m := listen(t)
	var n systemd.Notifier
	n.Ready()
	n.Status("watching %d documents", 4)
	n.Status("watching %d documents", 4)
	n.Beat()
	n.Status("draining")
	n.Status("watching %d documents", 4)
	n.Stopping()
	m.expect("READY=1", "STATUS=watching 4 documents", "WATCHDOG=1", "STATUS=draining", "STATUS=watching 4 documents", "STOPPING=1")
	n.Reloading() // in one datagram
	if got := m.next(); !regexp.MustCompile(`^RELOADING=1\nMONOTONIC_USEC=[1-9][0-9]*$`).MatchString(got) {
		t.Errorf("got %q", got)
	}
	if err := n.Err(); err != nil {
		t.Error(err)
	}
}

func TestNotifier_AStatusIsOneLine(t *testing.T) {
	m := listen(t)
	var n systemd.Notifier
	n.Status("refused: %s", "no\nMAINPID=1\n")
	m.expect("STATUS=refused: no MAINPID=1")
	n.Status("refused: \x1b[2J\u202e\xff") // systemd ignores what is not UTF-8, and shows the rest as it is.
	m.expect(`STATUS=refused: \x1b[2J\u202e\xff`)
	n.Status("%s", strings.Repeat("a", 1<<20)) // No datagram is so long.
	m.expect("STATUS=" + strings.Repeat("a", 1021) + "…")
	if err := n.Err(); err != nil {
		t.Error(err)
	}
}

func TestNotifier_RepeatsAStatusThatWasLost(t *testing.T) {
	m := listen(t)
	heard := os.Getenv("NOTIFY_SOCKET")
	t.Setenv("NOTIFY_SOCKET", heard+".gone")
	var n systemd.Notifier
	n.Status("watching")
	if n.Err() == nil {
		t.Error("the failure is not kept")
	}
	t.Setenv("NOTIFY_SOCKET", heard)
	n.Status("watching")
	m.expect("STATUS=watching")
}

// While the service manager reloads its units, or waits for a disk, it reads nothing, and its socket has room for some hundred
// words of all services.
func TestNotifier_ABusyManagerDelaysNothing(t *testing.T) {
	m := listen(t)
	var n systemd.Notifier
	said := make(chan struct{})
	go func() {
		defer close(said)
		for left := range 3000 {
			n.Status("draining, %d s left", left)
			n.Beat()
		}
	}()
	select {
	case <-said:
	case <-time.After(30 * time.Second):
		t.Fatal("it waits until the service manager listens")
	}
	if got := m.next(); got != "STATUS=draining, 0 s left" {
		t.Errorf("the first word is %q", got)
	}
	heard := make(chan struct{})
	defer close(heard)
	go func() {
		for again := time.NewTicker(time.Millisecond); ; <-again.C {
			select {
			case <-heard:
				return
			default:
				n.Status("drained")
			}
		}
	}()
	for m.next() != "STATUS=drained" {
		continue // The test fails if it does not come.
	}
}
