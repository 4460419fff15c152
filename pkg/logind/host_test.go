package logind_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/nth-project/nth/pkg/logind"
)

// A container has no bus of its own, and finds the host's below the directory with the host's file system.
func TestTheHostsLogindIsSpokenToFromAContainer(t *testing.T) {
	r := newRig(t)
	r.bus.start(t)
	r.logind.join(t)
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path=/nowhere")
	root, err := os.MkdirTemp("", "host, 100%") //nolint:usetesting // t.TempDir can be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	if err := os.MkdirAll(filepath.Join(root, "run/dbus"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(r.bus.socket(), filepath.Join(root, "run/dbus/system_bus_socket")); err != nil {
		t.Fatal(err)
	}

	host := logind.Host(root)
	if got, err := host.Delay(t.Context()); err != nil || got != delay {
		t.Errorf("the host's logind grants %s, %v", got, err)
	}
	if got, err := logind.Host("").Delay(t.Context()); err == nil {
		t.Errorf("the container's own logind grants %s", got)
	}
	if host.GoingDown(t.Context()) {
		t.Error("a host without a service manager goes down")
	}
	r.source = logind.New(logind.Options{Host: host, BootID: bootID, Margin: margin})
	r.run(t)
	r.nothing(t)
	r.mustHaveLocks(t, 1, 1)
	r.logind.prepare(t, true)
	r.announced(t)
}
