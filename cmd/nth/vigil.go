package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/nth-project/nth/cmd/internal/program"
	"github.com/nth-project/nth/pkg/systemd"
)

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
