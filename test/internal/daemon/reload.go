package daemon

import (
	"syscall"

	"github.com/nth-project/nth/test/internal/lab"
)

// Reload makes nth read its settings again, and returns when it has told the service manager that this is done.
func (d *Daemon) Reload(t lab.TB) {
	t.Helper()
	count := d.notify.reloadCount()
	if err := d.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatalf("asking nth to reload: %v", err)
	}
	d.await(t, "the end of a reload", d.notify.reloaded(count+1))
}
