package systemd_test

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nth-project/nth/pkg/systemd"
)

func TestTheServiceManagerIsGivenACopyOfAFileAndToldToForgetIt(t *testing.T) {
	m := listen(t)
	path := filepath.Join(t.TempDir(), "kept")
	if err := os.WriteFile(path, []byte("word"), 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	var n systemd.Notifier
	if err := n.Keep("event0", file); err != nil {
		t.Fatal(err)
	}
	_ = file.Close() // the copy stays

	text, rights := make([]byte, 4096), make([]byte, 4096)
	_ = m.conn.SetReadDeadline(time.Now().Add(30 * time.Second))
	said, given, _, _, err := m.conn.ReadMsgUnix(text, rights)
	if err != nil || string(text[:said]) != "FDSTORE=1\nFDNAME=event0" {
		t.Fatalf("got %q, %v", text[:said], err)
	}
	messages, err := unix.ParseSocketControlMessage(rights[:given])
	if err != nil || len(messages) != 1 {
		t.Fatalf("got %d messages with it, %v", len(messages), err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		t.Fatalf("got %d files, %v", len(fds), err)
	}
	kept := os.NewFile(uintptr(fds[0]), "copy")
	defer func() { _ = kept.Close() }()
	if count, err := kept.Read(text); err != nil || string(text[:count]) != "word" {
		t.Errorf("the copy has %q, %v", text[:count], err)
	}

	n.Forget("event0")
	m.expect("FDSTOREREMOVE=1\nFDNAME=event0")
	if err := n.Err(); err != nil {
		t.Error(err)
	}
}

// fill has others say so much to the manager that its socket takes nothing more, and returns how many have.
func (m *manager) fill() (said int) {
	m.t.Helper()
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: os.Getenv("NOTIFY_SOCKET"), Net: "unixgram"})
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { _ = conn.Close() })
	raw, err := conn.SyscallConn()
	if err != nil {
		m.t.Fatal(err)
	}
	err = raw.Write(func(fd uintptr) bool {
		for ; unix.Send(int(fd), []byte("STATUS=another"), unix.MSG_DONTWAIT) == nil; said++ {
		}
		return true
	})
	if err != nil || said == 0 {
		m.t.Fatalf("%d datagrams were said: %v", said, err)
	}
	return said
}

func TestAServiceManagerThatTakesNothingHoldsNobodyUp(t *testing.T) {
	m := listen(t)
	m.fill()
	ended := make(chan error)
	go func() { ended <- new(systemd.Notifier).Keep("event0", os.Stdin) }()
	select {
	case err := <-ended:
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("it ends with %v", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("it is waited for")
	}
}

func TestAServiceManagerThatIsBusyForAMomentIsGivenTheFileAllTheSame(t *testing.T) {
	m := listen(t)
	for began := time.Now(); ; {
		others := m.fill()
		ended := make(chan error)
		go func() { ended <- new(systemd.Notifier).Keep("event0", os.Stdin) }()
		time.Sleep(100 * time.Millisecond) // Mostly, it waits by then.
		for range others {
			m.next()
		}
		select {
		case err := <-ended:
			if err == nil {
				return
			}
		case <-time.After(time.Minute):
		}
		if time.Since(began) > 30*time.Second { // A machine that is busy itself may have kept it from reading.
			t.Fatal("it was not given the file")
		}
	}
}

func TestWithoutAServiceManagerNobodyKeepsAnything(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	if err := new(systemd.Notifier).Keep("event0", os.Stdin); err == nil {
		t.Error("somebody keeps it")
	}
	if kept := systemd.Kept(); len(kept) != 0 {
		t.Errorf("somebody has kept %v", kept)
	}
}
