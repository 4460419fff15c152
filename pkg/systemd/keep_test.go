package systemd_test

import (
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

func TestWithoutAServiceManagerNobodyKeepsAnything(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	if err := new(systemd.Notifier).Keep("event0", os.Stdin); err == nil {
		t.Error("somebody keeps it")
	}
	if kept := systemd.Kept(); len(kept) != 0 {
		t.Errorf("somebody has kept %v", kept)
	}
}
