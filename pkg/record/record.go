// Package record is nth's memory on disk: what was announced for this machine, how far nth came with each event, and in which boot. Package
// state has the values: an Entry for each event.
//
// The record is one file, record.json in the state directory. Open reads it once, and each change writes the whole file:
// a temporary file next to it, fsync, rename, fsync of the directory. Put calls back when the entries would survive a
// power cut. Work is recorded before it begins, so that after a crash, an upgrade or a reboot it is known what was begun. The
// kernel's boot ID shows a reboot.
//
// Nobody has to wait for the disk. EC2 retires machines whose volumes fail, and a disk that hangs must not keep the node from
// being drained. So Put takes entries into memory, and one writer in the background brings the disk up to date.
//
// A broken record is never a reason not to act. A file that is torn, or that another program or a newer nth wrote, is reported and
// replaced. If the directory cannot be written to, each Put reports the error, and the entries stay in memory. The claim on the Node
// also says that nth has set the cordon (pkg/drain), so that a cordon is taken back even if the record is lost.
//
// A newcomer starts at Store. The package also has the other files of the daemon: its lock, its status, and the request of "nth drain".
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

// uuid matches a UUID as the kernel writes it.
var uuid = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// BootID returns the kernel's ID of this boot, which changes only with a reboot: see random(4). It reads proc/sys/kernel/random/boot_id below the
// directory root; "" is "/".
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

// Uptime returns the time since the machine was booted, including the time that it slept. Nobody can set this clock (CLOCK_BOOTTIME,
// clock_gettime(2)).
func Uptime() time.Duration {
	var since unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &since) // No error is possible: every supported kernel has this clock.
	return time.Duration(since.Nano())
}
