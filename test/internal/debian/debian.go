// Package debian has programs from Debian's packages for tests: the real ones, as operators run them. They are taken out of
// their packages into the project's .cache, and nothing is installed on the host.
//
//	tree := debian.New(t, "prometheus")
//	tree.Start(t, "prometheus", "--config.file="+file)
package debian

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
	"syscall"
	"time"

	"github.com/nth-project/nth/test/internal/cache"
	"github.com/nth-project/nth/test/internal/lab"
)

//go:embed debian.sh
var script string

// A Tree is a directory in which packages are laid out as they would be below the root.
type Tree struct {
	// Root is the directory's path.
	Root string
}

// New returns the tree of the packages and of what they depend on that this host does not have, and makes it if it is
// not there. A host that cannot have it skips the test, loudly; in CI, where nobody would notice, the test fails.
func New(t lab.TB, packages ...string) Tree {
	t.Helper()
	if _, err := exec.LookPath("apt-get"); err != nil {
		lab.Without(t, "there are no packages of Debian: "+err.Error())
	}
	if os.Getuid() != 0 {
		lab.Without(t, "fetching Debian's packages needs root")
	}
	root, err := tree(t.Context(), packages, t.Logf)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return Tree{Root: root}
}

func tree(ctx context.Context, packages []string, tell func(string, ...any)) (string, error) {
	names := strings.Join(slices.Sorted(slices.Values(packages)), "+")
	// What is missing depends on the release that this host runs.
	release, err := os.ReadFile("/etc/os-release")
	if err != nil {
		return "", fmt.Errorf("fetching %s: %w", names, err)
	}
	trees, err := cache.Dir("debian")
	if err != nil {
		return "", fmt.Errorf("fetching %s: %w", names, err)
	}
	dir := filepath.Join(trees, fmt.Sprintf("%s-%.6x", names, sha256.Sum256([]byte(script+string(release)))))
	err = cache.Make(ctx, dir, func() { tell("waiting for somebody else to fetch %s", names) }, func() error {
		tell("fetching %s and what it needs into %s, once", names, dir)
		said, err := exec.CommandContext(ctx, "/bin/sh", append([]string{"-c", script, "debian.sh", dir}, packages...)...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w\n%s", err, bytes.TrimSpace(said))
		}
		return nil
	})
	if err != nil {
		return "", fmt.Errorf("fetching %s: %w", names, err)
	}
	return dir, nil
}

// Program is the path of a program of the tree.
func (d Tree) Program(t lab.TB, name string) string {
	t.Helper()
	for _, dir := range []string{"usr/bin", "usr/sbin"} {
		path := filepath.Join(d.Root, dir, name)
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	t.Fatalf("there is no program %s in %s", name, d.Root)
	return ""
}

// Start starts a program of the tree, which finds its libraries there, and ends it with the test. What it says is logged
// if the test fails.
func (d Tree) Start(t lab.TB, name string, args ...string) {
	t.Helper()
	var said bytes.Buffer
	command := exec.Command(d.Program(t, name), args...)
	command.Env = append(os.Environ(), d.Environment())
	command.Stdout, command.Stderr = &said, &said
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	command.WaitDelay = time.Second
	if err := command.Start(); err != nil {
		t.Fatalf("starting %s: %v", name, err)
	}
	t.Cleanup(func() {
		_ = syscall.Kill(-command.Process.Pid, syscall.SIGKILL) // fails only if it has ended
		_ = command.Wait()                                      // it was killed
		if t.Failed() {
			t.Logf("%s said:\n%s", name, &said)
		}
	})
}

// Environment is the variable by which programs of the tree find their libraries.
func (d Tree) Environment() string {
	libraries, _ := filepath.Glob(filepath.Join(d.Root, "usr/lib/*-linux-gnu")) // the pattern is right
	more, _ := filepath.Glob(filepath.Join(d.Root, "lib/*-linux-gnu"))
	return "LD_LIBRARY_PATH=" + strings.Join(append(libraries, more...), ":")
}
