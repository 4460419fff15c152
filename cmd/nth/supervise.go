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

// The pause before a restart begins with restartPause, and doubles up to longestRestartPause. It is reset by a process that has run for
// steadyLife.
const (
	restartPause        = 500 * time.Millisecond
	longestRestartPause = 10 * time.Second
	steadyLife          = time.Minute
)

// keepRunning starts the process that start returns, and another one whenever it has ended. It forwards signals to the process. It returns after
// a signal has asked to stop, or after bad flags or settings have ended the process, since they would end the next one, too. The result is the
// exit status of the last process, or 0 if a signal came in the pause between two.
func keepRunning(start func() *exec.Cmd, log *logrus.Entry, signals <-chan os.Signal) (status int) {
	for pause := time.Duration(0); ; {
		began, process := time.Now(), start()
		how := "it could not be started"
		err := process.Start()
		if err == nil {
			stopAsked := forwardSignals(process, signals)
			status, how = process.ProcessState.ExitCode(), process.ProcessState.String()
			if stopAsked || status == cli.ExitUsage || status == cli.ExitConfig {
				return status
			}
		}
		age := time.Since(began)
		pause = pauseAfter(pause, age)
		logWithin(time.Second, log, fmt.Sprintf("nth has ended after %s (%s); starting it again in %s", age.Round(time.Millisecond), how, pause), err)
		if isAskedToStop(signals, pause) {
			return cli.ExitOK
		}
	}
}

// pauseAfter returns the pause before a restart. last is the pause before the process that has ended, 0 for the first one, and age how long that
// process ran.
func pauseAfter(last, age time.Duration) time.Duration {
	if last == 0 || age >= steadyLife {
		return restartPause
	}
	return min(2*last, longestRestartPause)
}

// forwardSignals forwards signals to a process until it has ended, and reports whether one of them asked it to stop.
func forwardSignals(process *exec.Cmd, signals <-chan os.Signal) (stopAsked bool) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = process.Wait() // ProcessState has the result.
	}()
	for {
		select {
		case <-ended:
			return stopAsked
		case received := <-signals:
			stopAsked = stopAsked || asksToStop(received)
			_ = process.Process.Signal(received) // It fails only if the process has exited.
		}
	}
}

// isAskedToStop waits for a pause, and reports whether a signal asked to stop meanwhile. Other signals are dropped.
func isAskedToStop(signals <-chan os.Signal, pause time.Duration) bool {
	for over := time.After(pause); ; {
		select {
		case <-over:
			return false
		case received := <-signals:
			if asksToStop(received) {
				return true
			}
		}
	}
}

// asksToStop reports whether a signal asks nth to stop. The others are for the daemon only.
func asksToStop(s os.Signal) bool { return s == syscall.SIGTERM || s == syscall.SIGINT }

// logWithin logs one line, and err if it is not nil. It waits no longer than limit: a log that hangs must not prevent a restart.
func logWithin(limit time.Duration, log *logrus.Entry, line string, err error) {
	daemon.Within(limit, func() {
		if err != nil {
			line += ": " + err.Error()
		}
		log.Error(line)
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
	log := logrus.NewEntry(daemon.NewLogger("nth", config.Log{Level: "info", Format: "prefix"}, cmd.OutOrStdout()))
	switch keepRunning(func() *exec.Cmd { return daemonProcess(cmd) }, log, signals) {
	case cli.ExitOK:
		return nil
	case cli.ExitConfig:
		return errReportedConfig
	default:
		return cli.ErrReported
	}
}

// daemonProcess returns this program as the daemon, not started yet, with the flags that were given to the command.
func daemonProcess(parent *cobra.Command) *exec.Cmd {
	args := []string{underParent}
	parent.Flags().Visit(func(f *pflag.Flag) { args = append(args, "--"+f.Name+"="+f.Value.String()) })
	command := exec.Command("/proc/self/exe", args...) // No context: signals end it.
	command.Args[0] = os.Args[0]
	command.Stdin, command.Stdout, command.Stderr = os.Stdin, parent.OutOrStdout(), parent.ErrOrStderr()
	// In its own process group, it gets a terminal's signals once, from this process: a second one would end it immediately.
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	return command
}

// watchdog is the service manager for the agent, with a watchdog of its own where the service manager has none: in a host container of
// Bottlerocket, or if nth was started manually. If the main loop hangs, the process exits, so that its supervisor can restart it.
type watchdog struct {
	*systemd.Notifier
	beaten   atomic.Bool   // the loop has beaten since the last tick
	stopping chan struct{} // closed by Stopping
	stop     sync.Once
}

// newWatchdog returns a watchdog that is not started.
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
			silent = -1 // The loop makes it 0.
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
