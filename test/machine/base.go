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
	"sync"
	"syscall"

	"github.com/nth-project/nth/test/lab"
)

// packages are what a machine has beside the essential: what a server has, python3 to stand for the AWS CLI, and rpm to
// judge the packages of the other family.
var packages = []string{"systemd", "systemd-sysv", "dbus", "libpam-systemd", "procps", "python3", "rpm"}

//go:embed base.sh
var baseScript string

// building keeps the tests of this process from making the same base twice; the lock file does so for others.
var building sync.Mutex

// base returns the directory with the root file system of a suite that has some more packages, and makes it if it is not
// there.
func base(ctx context.Context, suite string, more []string, tell func(string, ...any)) (string, error) {
	if !slices.Contains(Suites(), suite) {
		return "", fmt.Errorf("booting a machine: %q is none of %q", suite, Suites())
	}
	building.Lock()
	defer building.Unlock()
	cache, err := cacheDir()
	if err != nil {
		return "", err
	}
	include := strings.Join(slices.Concat(packages, more), ",")
	key := sha256.Sum256([]byte(suite + baseScript + include))
	dir := filepath.Join(cache, fmt.Sprintf("%s-%.6x", suite, key))
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	unlock, err := lock(dir + ".lock")
	if err != nil {
		return "", fmt.Errorf("making a machine of %s: %w", suite, err)
	}
	defer unlock()
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	tell("making a machine of %s in %s; this takes some 20 s, once", suite, dir)
	command := exec.CommandContext(ctx, "/bin/sh", "-c", baseScript, "base.sh", suite, dir, include)
	command.Cancel = func() error { return command.Process.Signal(os.Interrupt) }
	if said, err := command.CombinedOutput(); err != nil {
		return "", fmt.Errorf("making a machine of %s: %w\n%s", suite, err, lastLines(said, 20))
	}
	return dir, nil
}

// cacheDir returns, and makes, the directory of this package below the project's .cache.
func cacheDir() (string, error) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/nth-project/nth").Output()
	if err != nil {
		return "", fmt.Errorf("finding the product: %w", err)
	}
	dir := filepath.Join(strings.TrimSpace(string(out)), ".cache", "machine")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	// The way there goes through the root of another mount namespace, too, in which no link leads to the same place.
	return filepath.EvalSymlinks(dir)
}

// lock takes a lock file. The kernel gives it back when the process ends.
func lock(path string) (unlock func(), err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX); err != nil {
		file.Close()
		return nil, err
	}
	return func() { file.Close() }, nil
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

// installing keeps two tests from asking for the same packages at once.
var installing sync.Mutex

// Need installs those of the programs that the host lacks, each from the Debian package that the map names. Where there
// can be no machines the test is skipped, loudly; in CI, where nobody would notice, it fails.
func Need(t lab.TB, programs map[string]string) {
	t.Helper()
	if os.Getuid() != 0 {
		without(t, "booting a machine needs root")
	}
	installing.Lock()
	err := install(programs, t.Logf)
	installing.Unlock()
	if err != nil {
		without(t, fmt.Sprintf("the host cannot boot machines: %v", err))
	}
}

func install(programs map[string]string, tell func(string, ...any)) error {
	var missing []string
	for program, debian := range programs {
		if _, err := exec.LookPath(program); err != nil {
			missing = append(missing, debian)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	slices.Sort(missing)
	tell("installing %q on this host", missing)
	// Another process may be at it.
	const apt = "apt-get -o DPkg::Lock::Timeout=120 -qq "
	script := apt + "update && " + apt + "install -y --no-install-recommends " + strings.Join(missing, " ")
	command := exec.Command("/bin/sh", "-c", script)
	command.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	if said, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("installing %q: %w\n%s", missing, err, lastLines(said, 10))
	}
	return nil
}

// without ends a test that this host cannot run.
func without(t lab.TB, reason string) {
	t.Helper()
	skipper, ok := t.(interface{ Skipf(string, ...any) })
	if os.Getenv("CI") != "" || !ok {
		t.Fatalf("%s", reason)
	}
	fmt.Fprintf(os.Stderr, "\n*** %s is SKIPPED: %s ***\n\n", t.Name(), reason)
	skipper.Skipf("%s", reason)
}

func lastLines(text []byte, count int) []byte {
	lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	return bytes.Join(lines[max(0, len(lines)-count):], []byte("\n"))
}
