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
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nth-project/nth/cmd/internal/cli"
	"github.com/nth-project/nth/cmd/internal/daemon"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/systemd"
)

// Bottlerocket restarts a host container 45 s after it has exited, which is more than a third of a spot notice. So "nth run" is two
// processes there: the daemon, and a parent that does nothing but restart it.

// underParent is an internal command: the daemon, as a child of that parent.
const underParent = "run-under-parent"

// The backoff before a restart begins with restartPause, and doubles up to longestRestartPause. It is reset by a process that has run for
// steadyLife.
const (
	restartPause        = 500 * time.Millisecond
	longestRestartPause = 10 * time.Second
	steadyLife          = time.Minute
)

// supervised is the daemon's process.
type supervised interface {
	Signal(s os.Signal) error
	// Wait waits for the process to exit, and returns its exit status, or -1, and a description of it.
	Wait() (status int, how string)
}

// supervisor keeps a process running.
type supervisor struct {
	start func() (supervised, error)
	log   *logrus.Entry
}

// run returns the exit status of the process when it has exited as it was asked to, or for a reason that would end the next one, too.
// Signals are forwarded.
func (s supervisor) run(signals <-chan os.Signal) (status int) {
	for pause := restartPause; ; pause = min(2*pause, longestRestartPause) {
		began := time.Now()
		process, err := s.start()
		how := "it could not be started"
		if err == nil {
			var asked bool
			asked, status, how = attend(process, signals)
			if asked || status == cli.ExitUsage || status == cli.ExitConfig {
				return status
			}
		}
		lived := time.Since(began)
		if lived >= steadyLife {
			pause = restartPause
		}
		s.say(fmt.Sprintf("nth has ended after %s (%s); starting it again in %s", lived.Round(time.Millisecond), how, pause), err)
		if stopAsked(signals, pause) {
			return cli.ExitOK
		}
	}
}

// attend forwards signals to a process until it exits, and reports whether it was asked to.
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
			_ = process.Signal(received) // It fails only if the process has exited.
		}
	}
}

// stopAsked waits for a pause, and reports whether a signal asked to stop meanwhile. Other signals are dropped.
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

// say logs one line. A log that hangs must not prevent a restart.
func (s supervisor) say(line string, err error) {
	daemon.Within(time.Second, func() {
		if err != nil {
			line += ": " + err.Error()
		}
		s.log.Error(line)
	})
}

// supervise runs the daemon, with the flags of the command, as a child of this process.
func supervise(cmd *cobra.Command) error {
	// To the kernel, the parent whose death kills the child is the thread that has started it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT)
	defer signal.Stop(signals)
	s := supervisor{
		start: func() (supervised, error) { return startDaemon(cmd) },
		log:   logrus.NewEntry(daemon.NewLogger("nth", config.Log{Level: "info", Format: "prefix"}, cmd.OutOrStdout())),
	}
	switch s.run(signals) {
	case cli.ExitOK:
		return nil
	case cli.ExitConfig:
		return errToldConfig
	default:
		return cli.ErrReported
	}
}

// childDaemon is the daemon as a process.
type childDaemon struct{ command *exec.Cmd }

// startDaemon starts this program again as the daemon, with the flags that were given to the command.
func startDaemon(parent *cobra.Command) (supervised, error) {
	args := []string{underParent}
	parent.Flags().Visit(func(f *pflag.Flag) { args = append(args, "--"+f.Name+"="+f.Value.String()) })
	command := exec.Command("/proc/self/exe", args...) // Signals end it.
	command.Args[0] = os.Args[0]
	command.Stdin, command.Stdout, command.Stderr = os.Stdin, parent.OutOrStdout(), parent.ErrOrStderr()
	// In its own process group, it gets a terminal's signals once, from this process: a second one would end it immediately.
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	return childDaemon{command}, command.Start()
}

// Signal implements supervised.
func (c childDaemon) Signal(s os.Signal) error { return c.command.Process.Signal(s) }

// Wait implements supervised.
func (c childDaemon) Wait() (status int, how string) {
	_ = c.command.Wait() // The state has it.
	return c.command.ProcessState.ExitCode(), c.command.ProcessState.String()
}

// watchdog is the service manager with a watchdog for where it has none: in a host container of Bottlerocket, or if nth was started
// manually. If the main loop hangs, the process exits, so that whatever supervises it can restart it.
type watchdog struct {
	*systemd.Notifier
	beaten   atomic.Bool
	stopping chan struct{}
	stop     sync.Once
}

func newWatchdog(service *systemd.Notifier) *watchdog {
	return &watchdog{Notifier: service, stopping: make(chan struct{})}
}

// Beat implements agent.Service.
func (w *watchdog) Beat() {
	w.beaten.Store(true)
	w.Notifier.Beat()
}

// Stopping implements agent.Service. It ends the watchdog: the loop does not beat any more, and the time for stopping is bounded elsewhere.
func (w *watchdog) Stopping() {
	w.stop.Do(func() { close(w.stopping) })
	w.Notifier.Stopping()
}

// watchdogTicks is how many ticks in a row may pass without a beat: as long as WatchdogSec= of nth's unit. Ticks are counted instead of
// reading a clock, as a machine that has slept, or a container that was frozen, has missed the ticks, too.
const (
	watchdogTick  = time.Second
	watchdogTicks = 30
)

// start starts the watchdog, unless the service manager has one. callOff ends it.
func (w *watchdog) start(ctx context.Context, log *logrus.Entry, stderr io.Writer) (callOff func()) {
	watching, callOff := context.WithCancel(context.WithoutCancel(ctx)) // A drain may outlive ctx.
	if w.WatchdogInterval() == 0 {
		go w.watch(watching, func() { giveUp(log, stderr, os.Exit) })
	}
	return callOff
}

// watch calls stalled when there have been no beats for too long, unless ctx ends or nth stops before.
func (w *watchdog) watch(ctx context.Context, stalled func()) {
	ticks := time.NewTicker(watchdogTick)
	defer ticks.Stop()
	for silent := 0; silent < watchdogTicks; silent++ {
		select {
		case <-ctx.Done():
			return
		case <-w.stopping:
			return
		case <-ticks.C:
		}
		if w.beaten.Swap(false) {
			silent = -1
		}
	}
	stalled()
}

// stallTimeout is how long a process that hangs tries to log that. The log may be what it hangs on.
const stallTimeout = 2 * time.Second

// longestDump is the size of the goroutine dump in bytes: a daemon has some hundred goroutines at most.
const longestDump = 1 << 20

// giveUp logs that the process hangs, dumps its goroutines, and exits.
func giveUp(log *logrus.Entry, stderr io.Writer, exit func(int)) {
	daemon.Within(stallTimeout, func() {
		log.WithField(systemd.FieldMessageID, systemd.Stalled).
			Errorf("the main loop has given no sign of life for %s, and no service manager watches: ending nth, so that it can be started again",
				watchdogTicks*watchdogTick)
		dump := make([]byte, longestDump)
		fmt.Fprintf(stderr, "%s\n", dump[:runtime.Stack(dump, true)])
	})
	exit(cli.ExitError)
}
