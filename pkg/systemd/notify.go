// Package systemd is the border to the service manager and its journal: ready, status, watchdog, reload, and log
// entries with fields.
//
// It is a leaf: it knows nothing of nodes and pods. Everything in it is silent where there is no systemd, so that
// callers need not ask.
package systemd

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

// Notifier tells the service manager how the service is doing, over the socket in $NOTIFY_SOCKET. Without one it does
// nothing. The zero value is ready for use, from several goroutines.
//
// Telling is best effort and returns nothing: a service works on when nobody listens, nor does it wait for long for a
// manager that is too busy to listen, whose socket is full of what others say. It hears of everything later, in its order. Err
// has the first failure, for a log line that explains why systemd lost patience.
type Notifier struct {
	mu     sync.Mutex
	status string // that was told last; empty if it is to be told again
	err    error

	begin   sync.Once
	courier courier
}

// Ready says that the service has started, or has finished reloading.
func (n *Notifier) Ready() { n.send(daemon.SdNotifyReady) }

// Stopping says that the service has begun to stop.
func (n *Notifier) Stopping() { n.send(daemon.SdNotifyStopping) }

// Beat says that the service is alive. It is due at least twice in each WatchdogInterval.
func (n *Notifier) Beat() { n.send(daemon.SdNotifyWatchdog) }

// Reloading says that the service reads its settings anew; Ready ends it.
func (n *Notifier) Reloading() {
	// Type=notify-reload wants both in one datagram.
	n.send(daemon.SdNotifyReloading + "\n" + strings.TrimSpace(daemon.SdNotifyMonotonicUsec()))
}

// Status sets the one line that "systemctl status" shows. Saying the same again sends nothing.
func (n *Notifier) Status(format string, args ...any) {
	// A line break would begin another assignment.
	status := strings.Join(strings.Fields(fmt.Sprintf(format, args...)), " ")
	n.mu.Lock()
	news := status != n.status
	n.status = status
	n.mu.Unlock()
	if news {
		n.send("STATUS=" + status)
	}
}

// Err returns the first error met in telling the service manager anything; nil if there was none.
func (n *Notifier) Err() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.err
}

// WatchdogInterval returns how long systemd waits for a Beat before it kills the service; 0 if it does not watch.
func (n *Notifier) WatchdogInterval() time.Duration {
	interval, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.keep(fmt.Errorf("reading the watchdog's interval: %w", err))
	}
	return interval
}

func (n *Notifier) send(state string) {
	n.begin.Do(func() { n.courier.deliver = n.deliver })
	n.courier.take(state, 0, nil)
}

// deliver is called for one state at a time, and for what stands for those that were lost, which has fields and is no state.
func (n *Notifier) deliver(l letter) {
	lost := l.fields != nil
	var err error
	if !lost {
		_, err = daemon.SdNotify(false, l.message)
	}
	if !lost && err == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.status = ""
	if err != nil {
		n.keep(fmt.Errorf("telling systemd %q: %w", l.message, err))
	}
}

func (n *Notifier) keep(err error) {
	if n.err == nil {
		n.err = err
	}
}
