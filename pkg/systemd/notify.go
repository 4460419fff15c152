// Package systemd talks to the service manager and to the journal: ready, status, watchdog, reload, and log entries with fields. It also finds
// which of nth's files are installed, in this system or in an image that is being built.
//
// It knows nothing of nodes and pods. Without systemd, its functions do nothing and return no error, so that callers need not check. Start with
// Notifier, and JournalHook in journal.go.
package systemd

import (
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
// Notifications are best effort: a method waits sendTimeout at most for a manager that is too busy. Such a manager gets the notifications later,
// in sequence. Err returns the failure, for a log line that explains why systemd killed the service.
type Notifier struct {
	mu     sync.Mutex
	status string // the last status that was sent; "" if Status must send the next one even if that is the same
	err    error  // the result of Err

	sender sender
}

// Ready reports that the service has started, or has finished reloading.
func (n *Notifier) Ready() { n.send(daemon.SdNotifyReady) }

// Stopping reports that the service has begun to stop.
func (n *Notifier) Stopping() { n.send(daemon.SdNotifyStopping) }

// Beat shows the watchdog that the service is alive. Call it at least twice in the WatchdogSec= of the unit.
func (n *Notifier) Beat() { n.send(daemon.SdNotifyWatchdog) }

// Reloading reports that the service has begun to reload its settings. Ready reports the end.
func (n *Notifier) Reloading() {
	// With Type=notify-reload, systemd wants the state and the time in one datagram.
	n.send(daemon.SdNotifyReloading + "\n" + strings.TrimSpace(daemon.SdNotifyMonotonicUsec()))
}

// Status sets the line that "systemctl status" shows. It sends a status only if that differs from the last one.
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

// Err returns why the service manager cannot be notified now; nil if it can.
func (n *Notifier) Err() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.err
}

// send queues a notification in the format of sd_notify(3), and waits up to sendTimeout until that is sent. Err returns a failure until a later
// notification is sent.
func (n *Notifier) send(state string) {
	queued := n.sender.send(func() {
		_, err := daemon.SdNotify(false, state)
		if err != nil {
			err = fmt.Errorf("cannot notify systemd of %q: %w; systemd may restart the service", state, err)
		}
		n.remember(err)
	})
	if !queued {
		n.remember(fmt.Errorf("cannot notify systemd of %q: systemd has not read the last %d notifications; systemd may restart the service", state, maxQueued))
	}
}

// remember keeps the result of a notification for Err; nil if it was sent.
func (n *Notifier) remember(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.err = err
	if err != nil {
		n.status = "" // The lost notification may be the status: Status must send the same one again.
	}
}

// journalSocket is where the journal receives entries with fields.
const journalSocket = "/run/systemd/journal/socket"

// AwaitJournal waits, up to the limit, until the journal has processed the entries that this process has sent. A process calls it before it
// exits: the journal asks the kernel which unit a sender belongs to. If the sender has exited already, "journalctl -u" does not show its
// last entries, which say why the unit has failed.
//
// The journal receives one datagram after another, and ignores empty ones. So AwaitJournal sends an empty datagram. Once the journal has
// received that, it has processed all entries from before.
func AwaitJournal(limit time.Duration) {
	deadline := time.Now().Add(limit)
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Net: "unixgram"})
	if err != nil {
		return // Waiting is best effort, here and below.
	}
	defer func() { _ = conn.Close() }()
	if conn.SetWriteDeadline(deadline) != nil {
		return // Without a deadline, a journal that hangs would block the exit.
	}
	if _, _, err := conn.WriteMsgUnix(nil, nil, &net.UnixAddr{Name: journalSocket, Net: "unixgram"}); err != nil {
		return // There is no journal, or it hangs.
	}
	for unreceived(conn) > 0 && time.Now().Before(deadline) {
		time.Sleep(time.Millisecond)
	}
}

// unreceived returns a positive number while the receiver has yet to read a datagram that was sent over conn. It returns 0 if that is unknown.
// An empty datagram counts, as the kernel counts its own overhead (SIOCOUTQ).
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
