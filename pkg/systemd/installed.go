package systemd

import (
	"os"
	"path/filepath"
)

// The paths at which packages or operators install nth's files. The first that exists counts.
var (
	unitPaths   = []string{"/etc/systemd/system/nth.service", "/run/systemd/system/nth.service", "/usr/lib/systemd/system/nth.service", "/lib/systemd/system/nth.service"}
	wantedPaths = []string{"/etc/systemd/system/multi-user.target.wants/nth.service", "/usr/lib/systemd/system/multi-user.target.wants/nth.service"}
	dropInPaths = []string{"/etc/systemd/logind.conf.d/80-nth.conf", "/usr/lib/systemd/logind.conf.d/80-nth.conf", "/lib/systemd/logind.conf.d/80-nth.conf"}
)

// Installed has the paths of nth's files for systemd; "" for a file that is not installed.
type Installed struct {
	// Unit is the service's unit file, and Enabled the link that starts it at boot.
	Unit, Enabled string
	// DropIn configures logind to delay shutdowns.
	DropIn string
}

// FindInstalled looks for nth's files below root, which is "/" or the root of an image that is being built. It asks no systemd: an image has
// none that runs.
func FindInstalled(root string) Installed {
	return Installed{
		Unit: firstOf(root, unitPaths), Enabled: firstOf(root, wantedPaths),
		DropIn: firstOf(root, dropInPaths),
	}
}

// firstOf returns the first path that exists below root; "" if none does. A symbolic link counts even if its target does not exist. In
// an image, an absolute link leads to a path of the machine that builds the image.
func firstOf(root string, paths []string) string {
	for _, path := range paths {
		if _, err := os.Lstat(filepath.Join(root, path)); err == nil {
			return path
		}
	}
	return ""
}
