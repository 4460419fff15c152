// Package record is nth's memory on disk: what was announced for this machine, how far nth came with it, and in which boot, as
// pkg/state has it.
//
// There is one file, record.json in the state directory. It is read once, by Open, and written whole for what is put: a
// temporary file beside it, fsync, rename, fsync of the directory. Whoever puts something is told when it would survive a
// power cut. What is about to be done is put before it is done, so that a crash, an upgrade or a reboot finds what was
// begun. A reboot is known by the kernel's boot ID, not by arithmetic on clocks.
//
// Nobody has to wait for the disk. A volume that fails is just when EC2 retires a machine, and a disk that hangs must not
// keep the node from being drained: Put takes entries in, in memory, and one writer beside it brings the disk up to date.
//
// Beside it, outbox.json holds the notices that somebody outside the cluster is still to get, and the names of those that
// need not be made again (Outbox). It is there only where such notices are made.
//
// Memory is never a reason not to act. A file that is torn, or that another program or a newer nth wrote, is set aside
// under another name and reported; a directory that cannot be written to is reported for every Put, while the entries
// live on in memory. The node itself carries the cordon's owner (pkg/drain), so a lost record does no harm there.
package record

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// bootIDShape is how the kernel writes a UUID.
var bootIDShape = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// BootID returns the kernel's identity of this boot, from proc/sys/kernel/random/boot_id below root ("" or "/" is the
// machine itself). It changes with every boot and with nothing else.
func BootID(root string) (string, error) {
	path := filepath.Join("/", root, "proc/sys/kernel/random/boot_id")
	content, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("reading the boot ID: %w", err)
	}
	id := strings.TrimSpace(string(content))
	if !bootIDShape.MatchString(id) {
		return "", fmt.Errorf("reading the boot ID: %s holds %q, which is no UUID", path, id)
	}
	return id, nil
}
