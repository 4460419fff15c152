// Package record is nth's memory on disk: what was announced for this machine, how far nth came with it, and in which boot, as
// pkg/state has it.
//
// The record is one file, record.json in the state directory. It is read once, by Open, and each change writes the whole file:
// a temporary file next to it, fsync, rename, fsync of the directory. Put calls back when the entries would survive a
// power cut. Work is recorded before it begins, so that after a crash, an upgrade or a reboot it is known what was begun. A
// reboot is recognized by the kernel's boot ID, not by arithmetic on clocks.
//
// Nobody has to wait for the disk. EC2 retires machines whose volumes fail, and a disk that hangs must not keep the node from
// being drained: Put takes entries into memory, and one writer in the background brings the disk up to date.
//
// A broken record is never a reason not to act. A file that is torn, or that another program or a newer nth wrote, is reported and
// replaced. A directory that cannot be written to is reported for every Put, and the entries stay in
// memory. The Node's annotation names the cordon's owner (pkg/drain), so a lost record does no harm there.
package record

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

var uuid = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// BootID returns the kernel's ID of this boot, which changes with every boot and with nothing else, from
// proc/sys/kernel/random/boot_id below root ("" is "/").
func BootID(root string) (string, error) {
	path := filepath.Join("/", root, "proc/sys/kernel/random/boot_id")
	content, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("reading the boot ID: %w", err)
	}
	id := strings.TrimSpace(string(content))
	if !uuid.MatchString(id) {
		return "", fmt.Errorf("reading the boot ID: %s holds %q, which is no UUID", path, id)
	}
	return id, nil
}

// Uptime returns how long the machine has run since it was booted, and slept, by the kernel's clock that nobody can set
// (CLOCK_BOOTTIME, clock_gettime(2)).
func Uptime() time.Duration {
	var since unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &since) // every supported kernel has it
	return time.Duration(since.Nano())
}
