// Package systemd talks to the service manager and to the journal: ready, status, watchdog, reload, and log entries with fields. It
// also reads unit files, for where systemd cannot be asked.
//
// It knows nothing of nodes and pods. Where there is no systemd, everything in it is silent, so that callers need not check.
package systemd

import (
	"cmp"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sys/unix"

	"github.com/nth-project/nth/pkg/text"
)

// Notifier notifies the service manager, over the socket in $NOTIFY_SOCKET, as sd_notify(3) does. Without a socket it does
// nothing. The zero value is ready for use, from several goroutines.
//
// Notifications are best effort: a service continues when nobody listens, and does not wait for long for a manager that is too
// busy, which gets them later, in order. Err returns the failure, for a log line that explains why systemd killed the service.
type Notifier struct {
	mu     sync.Mutex
	status string // the last one that was sent; "" if the next one must be sent in any case
	err    error  // the watchdog's interval cannot be read
	unsent error  // the first of several in a row

	sender sender
}

// Ready reports that the service has started, or has finished reloading.
func (n *Notifier) Ready() { n.send(daemon.SdNotifyReady) }

// Stopping reports that the service has begun to stop.
func (n *Notifier) Stopping() { n.send(daemon.SdNotifyStopping) }

// Beat feeds the watchdog. It is due at least twice in each WatchdogInterval.
func (n *Notifier) Beat() { n.send(daemon.SdNotifyWatchdog) }

// Reloading reports that the service reloads its settings, until Ready.
func (n *Notifier) Reloading() {
	// Type=notify-reload needs both in one datagram.
	n.send(daemon.SdNotifyReloading + "\n" + strings.TrimSpace(daemon.SdNotifyMonotonicUsec()))
}

// Status sets the line that "systemctl status" shows. The same status again is not sent.
func (n *Notifier) Status(format string, args ...any) {
	// A newline would begin another assignment.
	status := text.Visible(strings.Join(strings.Fields(fmt.Sprintf(format, args...)), " "), text.Line)
	n.mu.Lock()
	changed := status != n.status
	n.status = status
	n.mu.Unlock()
	if changed {
		n.send("STATUS=" + status)
	}
}

// Err returns why the watchdog's interval cannot be read, or why the service manager cannot be notified now; nil if neither.
func (n *Notifier) Err() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return cmp.Or(n.err, n.unsent)
}

// WatchdogInterval returns how long systemd waits for a Beat before it kills the service; 0 if there is no watchdog.
func (n *Notifier) WatchdogInterval() time.Duration {
	interval, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.err = cmp.Or(n.err, fmt.Errorf("reading the watchdog's interval: %w", err))
	}
	return interval
}

func (n *Notifier) send(state string) {
	n.sender.send(datagram{message: state}, n.sendState)
}

// sendState sends a message to systemd, and keeps the error until one succeeds.
func (n *Notifier) sendState(d datagram) {
	var err error
	if d.lost == 0 {
		if _, err = daemon.SdNotify(false, d.message); err == nil {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.unsent = nil
			return
		}
		err = fmt.Errorf("telling systemd %q: %w", d.message, err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.status = "" // It may be among what was lost.
	n.unsent = cmp.Or(n.unsent, err)
}

// journalSocket is where the journal receives entries with fields.
const journalSocket = "/run/systemd/journal/socket"

// AwaitJournal waits, up to the limit, until the journal has processed the entries that were sent so far. It is for the last entries
// of a process: the journal asks the kernel which unit a sender belongs to, and if that has exited already, "journalctl -u" does
// not show why the unit has failed.
//
// The journal receives one datagram after another, and ignores empty ones. When it has received an empty one, it has processed
// all before it.
func AwaitJournal(limit time.Duration) {
	deadline := time.Now().Add(limit)
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Net: "unixgram"})
	if err != nil {
		return
	}
	defer func() { _ = conn.Close() }()
	if conn.SetWriteDeadline(deadline) != nil {
		return
	}
	if _, _, err := conn.WriteMsgUnix(nil, nil, &net.UnixAddr{Name: journalSocket, Net: "unixgram"}); err != nil {
		return // There is no journal, or it hangs.
	}
	for unreceived(conn) > 0 && time.Now().Before(deadline) {
		time.Sleep(time.Millisecond)
	}
}

// unreceived is how many bytes the receiver has not read yet; 0 if that is unknown.
func unreceived(conn *net.UnixConn) (left int) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0
	}
	var refused error
	if err := raw.Control(func(fd uintptr) { left, refused = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) }); err != nil || refused != nil {
		return 0
	}
	return left
}
