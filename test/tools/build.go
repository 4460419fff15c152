package tools

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nth-project/nth/test/internal/cache"
)

// linkerFlags leave out what only a debugger reads: half of the size.
const linkerFlags = "-s -w"

// A report of how far a build is comes at least this often, so that five
// minutes on a cold machine never look like a hang.
const reportEvery = 10 * time.Second

// Build compiles the programs that are missing, those of the suites apart only
// if they are named, and tells progress, line by line, to out. With nothing to
// do it returns at once and says nothing. Two builds at the same time are safe:
// the second waits for the first one's result.
func Build(ctx context.Context, out io.Writer, apart ...string) error {
	top, err := cache.Top()
	if err != nil {
		return err
	}
	for _, s := range suites {
		if s.apart && !slices.Contains(apart, s.name) {
			continue
		}
		if err := s.ensure(ctx, top, out); err != nil {
			return fmt.Errorf("building %s: %w", s.name, err)
		}
	}
	return nil
}

// ensure builds the suite into its cache directory unless it is there. The
// directory appears by a rename, complete or not at all.
func (s suite) ensure(ctx context.Context, top string, out io.Writer) error {
	dir, err := s.cacheDir(top)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	waiting := func() { fmt.Fprintf(out, "waiting for another build of %s\n", s) }
	return cache.Make(ctx, dir, waiting, func() error {
		scratch, err := os.MkdirTemp(filepath.Dir(dir), "."+s.name+"-*")
		if err != nil {
			return err
		}
		defer os.RemoveAll(scratch) // nothing is left of it after the rename
		fill := s.compile
		if s.npm {
			fill = s.install
		}
		if err := fill(ctx, top, scratch, out); err != nil {
			return err
		}
		return os.Rename(scratch, dir)
	})
}

// compile runs one go build for all programs of the suite.
func (s suite) compile(ctx context.Context, top, into string, out io.Writer) error {
	version, err := s.version(top)
	if err != nil {
		return err
	}
	linker := linkerFlags
	for _, stamp := range s.stamps {
		linker += fmt.Sprintf(" -X %s=%s", stamp, version)
	}
	args := []string{"build", "-v", "-trimpath", "-tags=" + s.tags, "-ldflags=" + linker, "-o", into + "/"}
	for _, p := range s.programs {
		args = append(args, p.pkg)
	}
	fmt.Fprintf(out, "building %s (%s)\n", s, version)
	stale, err := s.stale(ctx, top)
	if err != nil {
		return err
	}
	build := s.command(ctx, top, args...)
	log := &buildLog{stale: stale}
	build.Stderr = log
	begin := time.Now()
	report := func(of string) { fmt.Fprintf(out, "  %-24s %4.0f s\n", of, time.Since(begin).Seconds()) }
	ended := make(chan error)
	if err := build.Start(); err != nil {
		return fmt.Errorf("running go build: %w", err)
	}
	go func() { ended <- build.Wait() }()
	for building := true; building; {
		select {
		case err = <-ended:
			building = false
		case <-time.After(reportEvery):
			report(log.progress())
		}
	}
	if err != nil {
		return fmt.Errorf("running go build: %w\n%s", err, log.rest())
	}
	report(s.name)
	return s.rename(into)
}

// stale counts the packages that are to be compiled.
func (s suite) stale(ctx context.Context, top string) (int, error) {
	args := []string{"list", "-deps", "-trimpath", "-tags=" + s.tags, "-f", "{{if .Stale}}{{.ImportPath}}{{end}}"}
	for _, p := range s.programs {
		args = append(args, p.pkg)
	}
	said, err := s.command(ctx, top, args...).Output()
	if err != nil {
		return 0, fmt.Errorf("listing what is to be compiled of %s: %w", s, err)
	}
	return len(strings.Fields(string(said))), nil
}

// command prepares a run of the go command in the suite's own module, free of
// settings of the caller that would choose another one.
func (s suite) command(ctx context.Context, top string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = s.directory(top)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-buildvcs=false", "GOWORK=off")
	// An interrupted go build stops its compilers and clears its work directory.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	return cmd
}

// rename gives the programs the lab's names for them.
func (s suite) rename(dir string) error {
	for _, p := range s.programs {
		if p.made == "" {
			continue
		}
		if err := os.Rename(filepath.Join(dir, p.made), filepath.Join(dir, p.name)); err != nil {
			return err
		}
	}
	return nil
}

// A buildLog reads what go build -v says: the name of each package that was
// compiled, and what went wrong.
type buildLog struct {
	mu       sync.Mutex
	partial  []byte
	packages int
	stale    int // packages in all
	other    []string
}

// Write takes the output of go build.
func (l *buildLog) Write(data []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.partial = append(l.partial, data...)
	for {
		advance, line, _ := bufio.ScanLines(l.partial, false)
		if advance == 0 {
			return len(data), nil
		}
		l.partial = l.partial[advance:]
		switch text := string(line); {
		case strings.HasPrefix(text, "go: downloading "):
		case !strings.ContainsAny(text, " :#"):
			l.packages++
		default:
			l.other = append(l.other, text)
		}
	}
}

func (l *buildLog) progress() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return fmt.Sprintf("%d of %d packages", l.packages, l.stale)
}

func (l *buildLog) rest() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.other, "\n")
}
