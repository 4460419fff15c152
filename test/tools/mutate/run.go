package mutate

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// With a mutant that hangs, the tests take more than so many times as long as without one, and a while longer.
const (
	patience = 5
	longer   = 10 * time.Second
)

// reportEvery is how often at most progress is told.
const reportEvery = 5 * time.Second

// runner runs the tests of one package, as they were built once.
type runner struct {
	binary  string
	dir     string // of the package, where its tests expect to be
	scratch string
	limit   time.Duration
}

// run builds the rewritten package, finds out which mutants the tests reach, and runs them for each of these. It notes in
// the mutants what came of them, and returns how long the tests take without any.
func (cfg Config) run(ctx context.Context, pkg *loaded, texts map[string]string, mutants []*mutant) (time.Duration, error) {
	scratch, err := os.MkdirTemp("", "mutate-*")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(scratch)
	fmt.Fprintf(cfg.Out, "%s: building its tests with %d mutants\n", pkg.dir, len(mutants))
	r := &runner{binary: filepath.Join(scratch, "tests"), dir: pkg.at, scratch: scratch}
	if err := r.build(ctx, texts); err != nil {
		return 0, err
	}
	took, err := r.reach(ctx, mutants)
	if err != nil {
		return 0, err
	}
	r.limit = patience*took + cmp.Or(cfg.Patience, longer)
	return took, r.all(ctx, mutants, cfg.Workers, &progress{out: cfg.Out, dir: pkg.dir})
}

// build makes the test binary, with the rewritten files in place of those of the tree.
func (r *runner) build(ctx context.Context, texts map[string]string) error {
	replace := map[string]string{}
	for name, text := range texts {
		instead := filepath.Join(r.scratch, filepath.Base(name))
		if err := os.WriteFile(instead, []byte(text), 0o644); err != nil {
			return err
		}
		replace[name] = instead
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return err
	}
	list := filepath.Join(r.scratch, "overlay.json")
	if err := os.WriteFile(list, overlay, 0o644); err != nil {
		return err
	}
	build := exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-overlay", list, "-o", r.binary, ".")
	build.Dir = r.dir
	if output, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("building the tests: %w\n%s", err, output)
	}
	if _, err := os.Stat(r.binary); err != nil {
		return fmt.Errorf("building the tests: the package has none: %w", err)
	}
	return nil
}

// reach runs the tests without a mutant, and notes in the mutants whether they were reached.
func (r *runner) reach(ctx context.Context, mutants []*mutant) (time.Duration, error) {
	notes := filepath.Join(r.scratch, "reached")
	if err := os.WriteFile(notes, nil, 0o644); err != nil {
		return 0, err
	}
	began := time.Now()
	output, err := r.tests(ctx, reachedVariable+"="+notes)
	if err != nil {
		return 0, fmt.Errorf("running the tests without a mutant, which must pass: %w\n%s", err, output)
	}
	took := time.Since(began)
	text, err := os.ReadFile(notes)
	if err != nil {
		return 0, err
	}
	reached := map[string]bool{}
	for id := range strings.Lines(string(text)) {
		reached[strings.TrimSpace(id)] = true
	}
	for _, m := range mutants {
		m.reached = reached[itoa(m.id)]
		m.survived = !m.reached
	}
	return took, nil
}

// all runs the mutants that are reached, several at once.
func (r *runner) all(ctx context.Context, mutants []*mutant, workers int, p *progress) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	queue := make(chan *mutant, len(mutants))
	for _, m := range mutants {
		if m.reached {
			queue <- m
		}
	}
	close(queue)
	p.begin(len(queue))
	var failure error
	var first sync.Once
	var running sync.WaitGroup
	for range max(workers, 1) {
		running.Go(func() {
			for m := range queue {
				if err := r.one(ctx, m); err != nil {
					first.Do(func() { failure = fmt.Errorf("running the tests with %s: %w", m.key, err) })
					stop()
					return
				}
				p.done(m)
			}
		})
	}
	running.Wait()
	return failure
}

// one runs the tests with one mutant.
func (r *runner) one(ctx context.Context, m *mutant) error {
	limited, stop := context.WithTimeout(ctx, r.limit)
	defer stop()
	_, err := r.tests(limited, mutantVariable+"="+itoa(m.id))
	var failed *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err == nil:
		m.survived = true
	case limited.Err() != nil:
		m.hung = true
	case !errors.As(err, &failed):
		return err
	}
	return nil
}

// tests runs the tests until the first fails, in a directory for temporary files of their own. Whatever they leave behind
// ends with them.
func (r *runner) tests(ctx context.Context, variable string) (output string, err error) {
	temporary, err := os.MkdirTemp(r.scratch, "run-*")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(temporary)
	var said tail
	cmd := exec.CommandContext(ctx, r.binary, "-test.failfast")
	cmd.Dir, cmd.Stdout, cmd.Stderr = r.dir, &said, &said
	cmd.Env = append(os.Environ(), "TMPDIR="+temporary, variable)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	if err := cmd.Start(); err != nil {
		return "", err
	}
	if err = cmd.Wait(); errors.Is(err, exec.ErrWaitDelay) {
		err = nil // The tests have passed, and have left somebody behind who still could write.
	}
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // mostly, nobody is left
	return string(said), err
}

// tail is the end of what was written to it.
type tail []byte

// Write takes output.
func (t *tail) Write(data []byte) (int, error) {
	const enough = 4096
	*t = append(*t, data...)
	if len(*t) > 2*enough {
		*t = append((*t)[:0], (*t)[len(*t)-enough:]...)
	}
	return len(data), nil
}

// progress tells how far the runs are.
type progress struct {
	out io.Writer
	dir string

	mu                 sync.Mutex
	began, last        time.Time
	total, ran, killed int
}

func (p *progress) begin(total int) {
	p.began, p.last, p.total = time.Now(), time.Now(), total
	fmt.Fprintf(p.out, "%s: running %d mutants\n", p.dir, total)
}

func (p *progress) done(m *mutant) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ran++
	if !m.survived {
		p.killed++
	}
	if time.Since(p.last) < reportEvery {
		return
	}
	p.last = time.Now()
	left := time.Since(p.began) / time.Duration(p.ran) * time.Duration(p.total-p.ran)
	fmt.Fprintf(p.out, "%s: %d of %d, %d noticed, %s left\n", p.dir, p.ran, p.total, p.killed, left.Round(time.Second))
}
