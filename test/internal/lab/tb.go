package lab

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"sync"
	"testing"
)

// TB is what the lab needs of the one who uses it. *testing.T and *testing.B
// have it; Run gives it to a program.
type TB interface {
	Name() string
	Context() context.Context
	Helper()
	Logf(format string, args ...any)
	Fatalf(format string, args ...any)
	Failed() bool
	Cleanup(f func())
}

// ForTest starts a control plane that belongs to t alone and ends with it.
func ForTest(t TB) *ControlPlane {
	t.Helper()
	return owned(t, followers)
}

// Bare starts an etcd and an API server alone, which belong to t. Nothing is
// done there but what t does: no kubelet is played, no Node is given up for
// lost, and a pod that asks for no grace is gone when it is deleted.
func Bare(t TB) *ControlPlane {
	t.Helper()
	return owned(t, nil)
}

func owned(t TB, beside []component) *ControlPlane {
	t.Helper()
	cp, err := start(t.Context(), beside)
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(func() {
		cp.keepIfFailed(t)
		if err := cp.Stop(); err != nil {
			t.Logf("stopping the control plane: %v", err)
		}
	})
	return cp
}

// keepIfFailed keeps the logs of a control plane with which t failed, and says
// where they are.
func (cp *ControlPlane) keepIfFailed(t TB) {
	if t.Failed() && !cp.kept.Swap(true) {
		t.Logf("the logs of the control plane are in %s", cp.Dir)
	}
}

// plane is the control plane of this test binary, once a test has asked for it.
var plane *ControlPlane

// shared starts it. It outlives the test that happens to be first.
var shared = sync.OnceValue(func() (err error) {
	if plane, err = start(context.Background(), followers); err == nil {
		plane.shared = true
	}
	return err
})

// Shared returns the control plane that all tests of a package use, and starts
// it for the first of them. It needs Main to end it.
func Shared(t TB) *ControlPlane {
	t.Helper()
	if err := shared(); err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(func() { plane.keepIfFailed(t) })
	return plane
}

// Main runs the tests of a package that uses Shared, so many of those side by side that are parallel, and ends the control
// plane after them. They wait far more than they work, so that their number does not depend on that of processors; "-parallel"
// overrides it. A package calls it as
//
//	func TestMain(m *testing.M) { os.Exit(lab.Main(m, 8)) }
func Main(m *testing.M, sideBySide int) int {
	_ = flag.Set("test.parallel", strconv.Itoa(sideBySide)) // The command line is parsed later.
	status := m.Run()
	if plane != nil {
		if err := plane.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, "stopping the control plane:", err)
		}
	}
	return status
}

// Run lets a program use the lab as a test does. What f logs goes to out, line
// by line. A Fatalf ends f and becomes Run's error. Before Run returns it undoes
// what was started, the last first; an end of ctx makes every wait in f fail.
func Run(ctx context.Context, out io.Writer, f func(t TB)) error {
	p := &performance{ctx: ctx, out: out}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer p.clean()
		f(p)
	}()
	<-ended
	return p.failure()
}

// A performance is a run of the lab outside of a test.
type performance struct {
	ctx context.Context
	out io.Writer

	mu       sync.Mutex
	err      error
	cleanups []func()
}

// Name stands in for the name of a test.
func (p *performance) Name() string { return "demo" }

// Context ends when the program is asked to end.
func (p *performance) Context() context.Context { return p.ctx }

// Helper has no meaning outside of a test.
func (p *performance) Helper() {}

// Logf writes a line.
func (p *performance) Logf(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintf(p.out, format+"\n", args...)
}

// Fatalf ends the goroutine that calls it, which is the one that runs f.
func (p *performance) Fatalf(format string, args ...any) {
	p.mu.Lock()
	p.err = errors.Join(p.err, fmt.Errorf(format, args...))
	p.mu.Unlock()
	runtime.Goexit()
}

// Failed reports whether Fatalf was called.
func (p *performance) Failed() bool { return p.failure() != nil }

// Cleanup has f called when the program is done with the lab.
func (p *performance) Cleanup(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cleanups = append(p.cleanups, f)
}

func (p *performance) failure() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// clean calls the cleanups, those too that a cleanup adds.
func (p *performance) clean() {
	for {
		p.mu.Lock()
		last := len(p.cleanups) - 1
		if last < 0 {
			p.mu.Unlock()
			return
		}
		f := p.cleanups[last]
		p.cleanups = p.cleanups[:last]
		p.mu.Unlock()
		f()
	}
}
