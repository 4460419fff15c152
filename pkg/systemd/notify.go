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
// Telling is best effort and returns nothing: a service works on when nobody listens. Err has the first failure, for a
// log line that explains why systemd lost patience.
type Notifier struct {
	mu     sync.Mutex
	status string
	err    error
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
	n.mu.Lock()
	defer n.mu.Unlock()
	// A line break would begin another assignment.
	status := strings.Join(strings.Fields(fmt.Sprintf(format, args...)), " ")
	if status != n.status && n.sendLocked("STATUS="+status) {
		n.status = status
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
	n.mu.Lock()
	defer n.mu.Unlock()
	n.sendLocked(state)
}

func (n *Notifier) sendLocked(state string) bool {
	_, err := daemon.SdNotify(false, state)
	if err != nil {
		n.keep(fmt.Errorf("telling systemd %q: %w", state, err))
	}
	return err == nil
}

func (n *Notifier) keep(err error) {
	if n.err == nil {
		n.err = err
	}
}
