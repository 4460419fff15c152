package systemd

import (
	"os"
	"path/filepath"

	"github.com/coreos/go-systemd/v22/journal"
)

// JournalAnswers tells whether there is a journal to write entries with fields to.
func JournalAnswers() bool { return journal.Enabled() }

// The places of what a package installs, the one that wins first.
var (
	unitPaths    = []string{"/etc/systemd/system/nth.service", "/run/systemd/system/nth.service", "/usr/lib/systemd/system/nth.service", "/lib/systemd/system/nth.service"}
	wantedPaths  = []string{"/etc/systemd/system/multi-user.target.wants/nth.service", "/usr/lib/systemd/system/multi-user.target.wants/nth.service"}
	catalogPaths = []string{"/usr/lib/systemd/catalog/nth.catalog", "/lib/systemd/catalog/nth.catalog"}
	dropInPaths  = []string{"/etc/systemd/logind.conf.d/80-nth.conf", "/usr/lib/systemd/logind.conf.d/80-nth.conf", "/lib/systemd/logind.conf.d/80-nth.conf"}
)

// Installed is what of nth is installed for systemd, each as the path of a file; empty if it is not there.
type Installed struct {
	// Unit is the service's, and Enabled the link that starts it at boot.
	Unit, Enabled string
	// Catalog explains the messages in the journal, and DropIn makes logind grant a drain its time.
	Catalog, DropIn string
}

// FindInstalled looks below root, "/" for the machine itself. It asks nobody, so that it works while an image is made.
func FindInstalled(root string) Installed {
	return Installed{
		Unit: firstOf(root, unitPaths), Enabled: firstOf(root, wantedPaths),
		Catalog: firstOf(root, catalogPaths), DropIn: firstOf(root, dropInPaths),
	}
}

// firstOf returns the first path that is there. A link counts, wherever it leads: in an image that is being made, an
// absolute one leads out of it.
func firstOf(root string, paths []string) string {
	for _, path := range paths {
		if _, err := os.Lstat(filepath.Join(root, path)); err == nil {
			return path
		}
	}
	return ""
}
