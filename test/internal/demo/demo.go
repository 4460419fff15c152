// Package demo lets a person watch nth at work: a spot instance is taken back, and its node is cordoned and drained
// in time.
//
// Nothing in it is invented. The control plane is a real one, nth is the program that is shipped, run as a process with
// a kubelet's credential, and the metadata service speaks EC2's protocol. Each line of the timeline comes from one of
// three witnesses: the metadata service, a watch on the API server, and nth's own journal.
//
// A fact (fact.go) is what a witness tells; the timeline puts facts in order; the narrator turns them into rows and the
// page prints those. scene.go is what the lab is furnished with, and verdict.go what it comes to.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/nth-project/nth/test/internal/daemon"
	"github.com/nth-project/nth/test/internal/lab"
	"github.com/nth-project/nth/test/tools"
)

// Options say how the demo is given.
type Options struct {
	Out io.Writer
	// Keep leaves the cluster running at the end, until ctx ends, for a person to look around.
	Keep bool
}

// Run gives the demo. It returns nil if the node ended cordoned and empty of evictable pods and nth stopped as asked,
// and ctx's error if it was interrupted. What it started is gone when it returns.
func Run(ctx context.Context, opts Options) error {
	p := newPage(opts.Out, os.Getenv)
	introduce(p)
	if err := errors.Join(build(ctx, p), ctx.Err()); err != nil {
		return unlessInterrupted(ctx, err)
	}
	dir, err := workspace()
	if err != nil {
		return err
	}
	complete := false
	err = lab.Run(ctx, writerTo(p), func(t lab.TB) {
		play(stage{t}, p, opts.Keep)
		complete = true
	})
	if !complete {
		err = unlessInterrupted(ctx, err)
	}
	if err == nil || ctx.Err() != nil {
		err = errors.Join(err, os.RemoveAll(dir))
	}
	return err
}

// workspace makes a directory in which everything that is started keeps its files, so that nothing is forgotten
// wherever the demo is interrupted.
func workspace() (string, error) {
	dir, err := os.MkdirTemp("", "nth-demo-")
	if err != nil {
		return "", fmt.Errorf("making a place for files: %w", err)
	}
	if err := os.Setenv("TMPDIR", dir); err != nil {
		return "", fmt.Errorf("making a place for files: %w", err)
	}
	return dir, nil
}

// unlessInterrupted returns err, or why ctx ended if it did: what fails after that fails because of it.
func unlessInterrupted(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

func introduce(p *page) {
	p.say(strong, "nth demo: EC2 takes a spot instance back, and nth drains its node in time.")
	p.say(plain, "A real Kubernetes control plane is started here, with a simulated machine. On it runs nth, as it")
	p.say(plain, "would on EC2: a process with the kubelet's credential and a metadata service to watch.")
	p.say(plain, "")
}

// build compiles what is missing.
func build(ctx context.Context, p *page) error {
	if _, err := tools.Path("kube-apiserver"); err != nil {
		p.say(plain, "The control plane's programs are built first. That is done once, in about five minutes.")
	}
	if err := tools.Build(ctx, writerTo(p)); err != nil {
		return err
	}
	p.step("nth")
	began := time.Now()
	path, err := daemon.Binary()
	if err != nil {
		return err
	}
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("looking at nth: %w", err)
	}
	p.done("built in %.1f s, %d MB", time.Since(began).Seconds(), info.Size()>>20)
	return nil
}

// writerTo takes in words that are not ours, line by line.
func writerTo(p *page) io.Writer { return outside{p} }

type outside struct{ p *page }

// Write writes text that ends a line.
func (o outside) Write(text []byte) (int, error) {
	for line := range strings.Lines(string(text)) {
		o.p.say(faint, "  %s", strings.TrimRight(line, "\n"))
	}
	return len(text), nil
}

// A stage is the lab's user here. The lab keeps its files when something failed, for a person to read; not so when the
// person has ended it.
type stage struct{ lab.TB }

// Failed tells whether something went wrong by itself.
func (s stage) Failed() bool { return s.TB.Failed() && s.Context().Err() == nil }
