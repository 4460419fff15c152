package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/nth-project/nth/test/internal/cache"
)

// An edition is a build of nth that is measured.
type edition struct {
	// name is the revision as it was asked for; empty for this checkout.
	name   string
	binary string // empty for this checkout
}

// present is nth as it is in this checkout.
var present = edition{}

// older builds nth as it was at a revision, into the cache, unless it is there.
func older(ctx context.Context, revision string, out io.Writer) (edition, error) {
	top, err := cache.Top()
	if err != nil {
		return edition{}, fmt.Errorf("building nth at %s: %w", revision, err)
	}
	commit, err := run(ctx, top, nil, "git", "rev-parse", "--verify", "--short=12", revision+"^{commit}")
	if err != nil {
		return edition{}, fmt.Errorf("building nth at %s: %w", revision, err)
	}
	built, err := cache.Dir("bin")
	if err != nil {
		return edition{}, fmt.Errorf("building nth at %s: %w", revision, err)
	}
	e := edition{name: revision, binary: filepath.Join(built, "nth-"+commit)}
	fmt.Fprintf(out, "building nth at %s\n", revision)
	err = cache.Make(ctx, e.binary, func() {}, func() error { return buildAt(ctx, top, commit, e.binary) })
	if err != nil {
		return edition{}, fmt.Errorf("building nth at %s: %w", revision, err)
	}
	return e, nil
}

// buildAt builds the program as it was at a commit, as "make build" does.
func buildAt(ctx context.Context, top, commit, path string) (err error) {
	source, err := os.MkdirTemp("", "nth-source-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(source)) }()
	packed := filepath.Join(source, "source.tar")
	if _, err := run(ctx, top, nil, "git", "archive", "--output="+packed, commit); err != nil {
		return err
	}
	if _, err := run(ctx, source, nil, "tar", "-xf", packed); err != nil {
		return err
	}
	temporary := fmt.Sprintf("%s.%d", path, os.Getpid())
	if _, err := run(ctx, source, []string{"CGO_ENABLED=0"}, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", temporary, "./cmd/nth"); err != nil {
		return err
	}
	return os.Rename(temporary, path)
}

// run runs a program to its end, and returns the first line that it said.
func run(ctx context.Context, dir string, env []string, name string, args ...string) (string, error) {
	command := exec.CommandContext(ctx, name, args...)
	command.Dir, command.Env = dir, append(os.Environ(), env...)
	said, err := command.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %w\n%s", command, err, said)
	}
	first, _, _ := strings.Cut(string(said), "\n")
	return first, nil
}
