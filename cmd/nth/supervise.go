package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/nth-project/nth/cmd/internal/daemon"
	"github.com/nth-project/nth/cmd/internal/program"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/systemd"
)

// Bottlerocket starts a host container again 45 s after it has ended: a crash in the middle of a spot notice would cost more
// than a third of it. So "nth run" is two processes there: a parent that does nothing but start the other one again, and the
// daemon.

// underParent is a command for nth's own use: the daemon, below that parent.
const underParent = "run-under-parent"

// The pause before a process is started again begins with restartPause, and doubles up to longestRestartPause while
// processes end one after the other. One that has lived for steadyLife did not fail at once.
const (
	restartPause        = 500 * time.Millisecond
	longestRestartPause = 10 * time.Second
	steadyLife          = time.Minute
)

// A supervised process is the daemon.
type supervised interface {
	Signal(s os.Signal) error
	// Wait returns when the process has ended: with its exit status, or -1, and how it ended in words.
	Wait() (status int, how string)
}

// supervisor keeps a process running.
type supervisor struct {
	start func() (supervised, error)
	log   *logrus.Entry
}

// run returns the exit status of the process once that has ended as it was asked to, or because of something that another
// attempt would end with, too. Signals are handed on.
func (s supervisor) run(signals <-chan os.Signal) (status int) {
	for pause := restartPause; ; pause = min(2*pause, longestRestartPause) {
		began := time.Now()
		process, err := s.start()
		how := "it could not be started"
		if err == nil {
			var asked bool
			asked, status, how = attend(process, signals)
			if asked || status == program.ExitUsage || status == program.ExitConfig {
				return status
			}
		}
		lived := time.Since(began)
		if lived >= steadyLife {
			pause = restartPause
		}
		s.say(fmt.Sprintf("nth has ended after %s (%s); starting it again in %s", lived.Round(time.Millisecond), how, pause), err)
		if stopAsked(signals, pause) {
			return program.ExitOK
		}
	}
}

// attend hands signals on to a process until that has ended, and tells whether it was asked to.
func attend(process supervised, signals <-chan os.Signal) (asked bool, status int, how string) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		status, how = process.Wait()
	}()
	for {
		select {
		case <-ended:
			return asked, status, how
		case received := <-signals:
			asked = asked || asksToStop(received)
			_ = process.Signal(received) // It fails only if the process has ended.
		}
	}
}

// stopAsked tells whether a pause was ended by a signal that asks to stop. A process that is yet to begin has no use for another one.
func stopAsked(signals <-chan os.Signal, pause time.Duration) bool {
	over := time.NewTimer(pause)
	defer over.Stop()
	for {
		select {
		case <-over.C:
			return false
		case received := <-signals:
			if asksToStop(received) {
				return true
			}
		}
	}
}

func asksToStop(s os.Signal) bool { return s == syscall.SIGTERM || s == syscall.SIGINT }

// say writes one line. A log that takes none is no reason to start nothing.
func (s supervisor) say(line string, err error) {
	program.Within(time.Second, func() {
		if err != nil {
			line += ": " + err.Error()
		}
		s.log.Error(line)
	})
}

// supervise runs the daemon with these arguments below a parent, which this process becomes.
func supervise(args []string, to program.Streams) error {
	// A child is to die with its parent, which for the kernel is the thread that has started it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT)
	defer signal.Stop(signals)
	s := supervisor{
		start: func() (supervised, error) { return startDaemon(args, to) },
		log:   logrus.NewEntry(daemon.NewLogger("nth", config.Log{Level: "info", Format: "prefix"}, to.Out)),
	}
	switch s.run(signals) {
	case program.ExitOK:
		return nil
	case program.ExitConfig:
		return errToldConfig
	default:
		return program.ErrTold
	}
}

// childDaemon is the daemon as a process.
type childDaemon struct{ command *exec.Cmd }

func startDaemon(args []string, to program.Streams) (supervised, error) {
	command := exec.Command("/proc/self/exe", append([]string{underParent}, args...)...) // it is ended by signals
	command.Args[0] = os.Args[0]
	command.Stdin, command.Stdout, command.Stderr = os.Stdin, to.Out, to.Err
	// In a group of its own, so that what a terminal sends to all comes once: a second signal would end it at once.
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	return childDaemon{command}, command.Start()
}

// Signal implements supervised.
func (c childDaemon) Signal(s os.Signal) error { return c.command.Process.Signal(s) }

// Wait implements supervised.
func (c childDaemon) Wait() (status int, how string) {
	_ = c.command.Wait() // The state says it.
	return c.command.ProcessState.ExitCode(), c.command.ProcessState.String()
}

// vigil is the watchdog where no service manager has one for nth: in a host container of Bottlerocket, and where somebody
// started nth by hand. Where the main loop gives no sign of life, it ends the process, so that whatever supervises that can
// start it again.
type vigil struct {
	*systemd.Notifier
	beaten   atomic.Bool
	stopping chan struct{}
	stop     sync.Once
}

func newVigil(service *systemd.Notifier) *vigil {
	return &vigil{Notifier: service, stopping: make(chan struct{})}
}

// Beat implements agent.Service.
func (v *vigil) Beat() {
	v.beaten.Store(true)
	v.Notifier.Beat()
}

// Stopping implements agent.Service. How long the rest may take is bounded, and nobody beats any more.
func (v *vigil) Stopping() {
	v.stop.Do(func() { close(v.stopping) })
	v.Notifier.Stopping()
}

// vigilTick is how often a vigil looks, and vigilPatience how many looks in a row may find no sign of life: with that, as long
// as WatchdogSec= of nth's unit. It counts looks instead of asking a clock: a machine that has slept, or a container that
// was frozen, has missed the looks as well.
const (
	vigilTick     = time.Second
	vigilPatience = 30
)

// begin has the process end should it stall, unless a service manager watches it, until it is called off or nth stops.
func (v *vigil) begin(ctx context.Context, log *logrus.Entry, stderr io.Writer) (callOff func()) {
	watching, callOff := context.WithCancel(context.WithoutCancel(ctx)) // A drain may outlive ctx.
	if v.WatchdogInterval() == 0 {
		go v.watch(watching, func() { giveUp(log, stderr, os.Exit) })
	}
	return callOff
}

// watch calls stalled once there has been no sign of life for too long, unless ctx ends or nth stops before that.
func (v *vigil) watch(ctx context.Context, stalled func()) {
	looks := time.NewTicker(vigilTick)
	defer looks.Stop()
	for silent := 0; silent < vigilPatience; silent++ {
		select {
		case <-ctx.Done():
			return
		case <-v.stopping:
			return
		case <-looks.C:
		}
		if v.beaten.Swap(false) {
			silent = -1
		}
	}
	stalled()
}

// lastGasp is how long a process that has stalled tries to say so. What it would write to may be what it hangs on.
const lastGasp = 2 * time.Second

// longestDump is how much is written of what the process was doing: a daemon has some hundred goroutines at most.
const longestDump = 1 << 20

// giveUp says that the process has stalled and what it was doing, and ends it.
func giveUp(log *logrus.Entry, stderr io.Writer, exit func(int)) {
	program.Within(lastGasp, func() {
		log.WithField(systemd.FieldMessageID, systemd.Stalled).
			Errorf("the main loop has given no sign of life for %s, and no service manager watches: ending nth, so that it can be started again",
				vigilPatience*vigilTick)
		dump := make([]byte, longestDump)
		fmt.Fprintf(stderr, "%s\n", dump[:runtime.Stack(dump, true)])
	})
	exit(program.ExitError)
}
