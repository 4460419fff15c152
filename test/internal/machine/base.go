package machine

import (
	"crypto/sha256"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nth-project/nth/test/internal/apt"
	"github.com/nth-project/nth/test/internal/cache"
	"github.com/nth-project/nth/test/internal/lab"
)

// packages are what a machine has beside the essential: what a server has, python3 to stand for the AWS CLI, and rpm to
// judge the packages of the other family.
var packages = []string{"systemd", "systemd-sysv", "dbus", "libpam-systemd", "procps", "python3", "rpm"}

//go:embed base.sh
var baseScript string

// tools are the programs that a host needs, by the Debian package that has them.
var tools = map[string]string{"systemd-nspawn": "systemd-container", "mmdebstrap": "mmdebstrap"}

// Root returns the directory with the root file system of a suite that has some more packages. It is made if it is not
// there, and shared: nobody may write to it.
func Root(t lab.TB, suite string, more ...string) string {
	t.Helper()
	Need(t, tools)
	if known := append(Suites(), Next); !slices.Contains(known, suite) {
		t.Fatalf("booting a machine: %q is none of %q", suite, known)
	}
	roots, err := cache.Dir("machine")
	if err == nil {
		// The way there goes through the root of another mount namespace, too, in which no link leads to the same place.
		roots, err = filepath.EvalSymlinks(roots)
	}
	include := strings.Join(slices.Concat(packages, more), ",")
	dir := filepath.Join(roots, fmt.Sprintf("%s-%.6x", suite, sha256.Sum256([]byte(suite+baseScript+include))))
	if err == nil {
		err = cache.Make(t.Context(), dir, func() { t.Logf("waiting for somebody else to make a machine of %s", suite) }, func() error {
			t.Logf("making a machine of %s in %s; this takes some 20 s, once", suite, dir)
			command := exec.CommandContext(t.Context(), "/bin/sh", "-c", baseScript, "base.sh", suite, dir, include)
			command.Cancel = func() error { return command.Process.Signal(os.Interrupt) }
			if said, err := command.CombinedOutput(); err != nil {
				return fmt.Errorf("%w\n%s", err, said)
			}
			return nil
		})
	}
	if err != nil {
		t.Fatalf("making a machine of %s: %v", suite, err)
	}
	return dir
}

// Need installs those of the programs that the host lacks, each from the Debian package that the map names. Where there
// can be no machines the test is skipped, loudly; in CI, where nobody would notice, it fails.
func Need(t lab.TB, programs map[string]string) {
	t.Helper()
	err := errors.New("that needs root")
	if os.Getuid() == 0 {
		err = apt.Install(t.Context(), programs, t.Logf)
	}
	if err == nil {
		return
	}
	if os.Getenv("CI") != "" {
		t.Fatalf("booting a machine: %v", err)
	}
	fmt.Fprintf(os.Stderr, "\n*** %s is SKIPPED: booting a machine: %v ***\n\n", t.Name(), err)
	t.Skipf("booting a machine: %v", err)
}
