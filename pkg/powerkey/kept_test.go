package powerkey_test

import (
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// power_key = "logind" and "systemctl restart nth": systemd has kept the devices. What is pressed then is logind's, and no business of a
// process that comes later, when the setting is taken back.
func TestDevicesOfAnEarlierProcessAreForgottenWhereTheyAreNotWanted(t *testing.T) {
	r := newRig(t)
	r.device(t, "event0")
	r.start(t)
	if !next(t, r.listening) {
		t.Fatal("it does not listen")
	}
	r.stop()
	r.wanted.Store(false)
	r.start(t)
	if next(t, r.listening) {
		t.Fatal("it listens")
	}
	time.Sleep(100 * time.Millisecond)
	if _, kept := r.store.kept()["event0"]; kept {
		t.Error("what is not wanted is kept for the next process")
	}
}

// The lock silences logind for all devices. Where one that has a power key cannot be opened, nobody would answer that.
func TestTheKeyIsNotClaimedWhileADeviceThatHasItCannotBeRead(t *testing.T) {
	r := newRig(t)
	keys := filepath.Join(r.root, "sys/class/input/event0/device/capabilities")
	if err := os.MkdirAll(keys, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(keys, "key"), []byte("10000000000000 0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Chdir(filepath.Join(r.root, "dev/input"))
	unreadable, err := net.Listen("unix", "event0") // ENXIO for whoever opens it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unreadable.Close() })
	r.device(t, "event1")
	r.start(t)
	if next(t, r.listening) {
		t.Error("it says that the key is being read, and event0, which has it, is not")
	}
}
