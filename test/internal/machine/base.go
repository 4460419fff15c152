package machine

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
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

// base returns the directory with the root file system of a suite that has some more packages, and makes it if it is not
// there.
func base(ctx context.Context, suite string, more []string, tell func(string, ...any)) (string, error) {
	if known := append(Suites(), Next); !slices.Contains(known, suite) {
		return "", fmt.Errorf("booting a machine: %q is none of %q", suite, known)
	}
	bases, err := cacheDir()
	if err != nil {
		return "", err
	}
	include := strings.Join(slices.Concat(packages, more), ",")
	key := sha256.Sum256([]byte(suite + baseScript + include))
	dir := filepath.Join(bases, fmt.Sprintf("%s-%.6x", suite, key))
	err = cache.Make(ctx, dir, func() { tell("waiting for somebody else to make a machine of %s", suite) }, func() error {
		tell("making a machine of %s in %s; this takes some 20 s, once", suite, dir)
		command := exec.CommandContext(ctx, "/bin/sh", "-c", baseScript, "base.sh", suite, dir, include)
		command.Cancel = func() error { return command.Process.Signal(os.Interrupt) }
		if said, err := command.CombinedOutput(); err != nil {
			return fmt.Errorf("%w\n%s", err, lastLines(said, 20))
		}
		return nil
	})
	if err != nil {
		return "", fmt.Errorf("making a machine of %s: %w", suite, err)
	}
	return dir, nil
}

// cacheDir returns, and makes, the directory of this package in the cache.
func cacheDir() (string, error) {
	dir, err := cache.Dir("machine")
	if err != nil {
		return "", err
	}
	// The way there goes through the root of another mount namespace, too, in which no link leads to the same place.
	return filepath.EvalSymlinks(dir)
}

// tools are the programs that a host needs, by the Debian package that has them.
var tools = map[string]string{"systemd-nspawn": "systemd-container", "mmdebstrap": "mmdebstrap"}

// Root returns the directory with the root file system of a suite that has some more packages. It is made if it is not
// there, and shared: nobody may write to it.
func Root(t lab.TB, suite string, packages ...string) string {
	t.Helper()
	Need(t, tools)
	dir, err := base(t.Context(), suite, packages, t.Logf)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return dir
}

// Need installs those of the programs that the host lacks, each from the Debian package that the map names. Where there
// can be no machines the test is skipped, loudly; in CI, where nobody would notice, it fails.
func Need(t lab.TB, programs map[string]string) {
	t.Helper()
	if os.Getuid() != 0 {
		lab.Without(t, "booting a machine needs root")
	}
	if err := apt.Install(t.Context(), programs, t.Logf); err != nil {
		lab.Without(t, fmt.Sprintf("the host cannot boot machines: %v", err))
	}
}

func lastLines(text []byte, count int) []byte {
	lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	return bytes.Join(lines[max(0, len(lines)-count):], []byte("\n"))
}
