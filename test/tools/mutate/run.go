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
	"slices"
	"strconv"
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
	// longer is what tests may take with a mutant beyond so many times what they take without.
	longer time.Duration
}

// run builds the rewritten package, finds out which tests reach which mutants, and runs these for each. It notes in the
// mutants what came of them, and returns how long the tests take without any.
func (cfg Config) run(ctx context.Context, pkg *loaded, texts map[string]string, mutants []*mutant) (time.Duration, error) {
	scratch, err := os.MkdirTemp("", "mutate-*")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(scratch)
	fmt.Fprintf(cfg.Out, "%s: building its tests with %d mutants\n", pkg.dir, len(mutants))
	r := &runner{binary: filepath.Join(scratch, "tests"), dir: pkg.at, scratch: scratch, longer: cmp.Or(cfg.Patience, longer)}
	if err := r.build(ctx, texts); err != nil {
		return 0, err
	}
	took, err := r.reach(ctx, mutants)
	if err != nil {
		return 0, err
	}
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

// test is a test of the package, or a pattern of several, and how long it takes without a mutant.
type test struct {
	name string
	took time.Duration
}

// reach runs the tests without a mutant, all of them and then each alone, and notes in the mutants which tests reach them,
// the quickest first. What is reached only while all of them run is for all of them to notice.
func (r *runner) reach(ctx context.Context, mutants []*mutant) (time.Duration, error) {
	all, somehow, err := r.reaches(ctx, ".*")
	if err != nil {
		return 0, err
	}
	names, err := r.list(ctx)
	if err != nil {
		return 0, err
	}
	for _, name := range names {
		alone, reached, err := r.reaches(ctx, name)
		if err != nil {
			return 0, err
		}
		for _, m := range mutants {
			if reached[m.id] {
				m.tests = append(m.tests, alone)
			}
		}
	}
	for _, m := range mutants {
		if len(m.tests) == 0 && somehow[m.id] {
			m.tests = []test{all}
		}
		slices.SortStableFunc(m.tests, func(a, b test) int { return cmp.Compare(a.took, b.took) })
		m.survived = len(m.tests) == 0
	}
	return all.took, nil
}

// reaches runs tests without a mutant, and returns which mutants they reach.
func (r *runner) reaches(ctx context.Context, name string) (test, map[int]bool, error) {
	notes := filepath.Join(r.scratch, "reached")
	if err := os.WriteFile(notes, nil, 0o644); err != nil {
		return test{}, nil, err
	}
	began := time.Now()
	output, err := r.tests(ctx, name, reachedVariable+"="+notes)
	if err != nil {
		return test{}, nil, fmt.Errorf("running the tests %s without a mutant, which must pass: %w\n%s", name, err, output)
	}
	ran := test{name: name, took: time.Since(began)}
	text, err := os.ReadFile(notes)
	if err != nil {
		return test{}, nil, err
	}
	reached := map[int]bool{}
	for _, word := range strings.Fields(string(text)) {
		id, err := strconv.Atoi(word)
		if err != nil {
			return test{}, nil, fmt.Errorf("reading what the tests reach: %w", err)
		}
		reached[id] = true
	}
	return ran, reached, nil
}

// list asks the test binary for its tests, examples and fuzz targets.
func (r *runner) list(ctx context.Context) ([]string, error) {
	cmd := exec.CommandContext(ctx, r.binary, "-test.list=^(Test|Example|Fuzz)")
	cmd.Dir = r.dir
	output, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("asking for the names of the tests: %w", err)
	}
	return strings.Fields(string(output)), nil
}

// all runs the mutants that are reached, several at once.
func (r *runner) all(ctx context.Context, mutants []*mutant, workers int, p *progress) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	queue := make(chan *mutant, len(mutants))
	for _, m := range mutants {
		if len(m.tests) > 0 {
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

// one runs the tests that reach a mutant with it, until one fails. To start the binary takes about as long as most tests,
// so the first runs alone, and then always twice as many as before.
func (r *runner) one(ctx context.Context, m *mutant) error {
	m.survived = true
	for left, size := m.tests, 1; len(left) > 0 && m.survived; size *= 2 {
		some := left[:min(size, len(left))]
		left = left[len(some):]
		if err := r.some(ctx, m, some); err != nil {
			return err
		}
	}
	return nil
}

// some runs some tests with one mutant, and notes whether it survives that.
func (r *runner) some(ctx context.Context, m *mutant, some []test) error {
	limit := r.longer
	var names []string
	for _, t := range some {
		limit += patience * t.took
		names = append(names, t.name)
	}
	limited, stop := context.WithTimeout(ctx, limit)
	defer stop()
	_, err := r.tests(limited, strings.Join(names, "|"), mutantVariable+"="+itoa(m.id))
	var failed *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err == nil:
		return nil
	case limited.Err() != nil:
		m.hung = true
	case !errors.As(err, &failed):
		return err
	}
	m.survived = false
	return nil
}

// tests runs tests until the first fails, in a directory for temporary files of their own. Whatever they leave behind ends
// with them.
func (r *runner) tests(ctx context.Context, names, variable string) (output string, err error) {
	temporary, err := os.MkdirTemp(r.scratch, "run-*")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(temporary)
	var said tail
	cmd := exec.CommandContext(ctx, r.binary, "-test.failfast", "-test.run=^("+names+")$")
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
