// Package systemd is the border to the service manager and its journal: ready, status, watchdog, reload, and log
// entries with fields.
//
// It is a leaf: it knows nothing of nodes and pods. Everything in it is silent where there is no systemd, so that
// callers need not ask.
package systemd

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/activation"
	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sys/unix"
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

// Kept returns by their names the files that earlier processes of this service have given to Keep. It is to be called
// once, before a program is started: what is not taken over would be left to that.
func Kept() map[string]*os.File {
	kept := map[string]*os.File{}
	for _, file := range activation.Files(true) {
		kept[file.Name()] = file
	}
	return kept
}

var errAlone = errors.New("there is no service manager that keeps anything for the next process")

// Keep asks the service manager to hold a copy of the file until the service is stopped, for the next process. Of a
// character device that is what can be read next as well, from now on. A manager that takes nothing for two seconds is an error.
func (n *Notifier) Keep(name string, file *os.File) error {
	socket := os.Getenv("NOTIFY_SOCKET")
	if socket == "" {
		return errAlone
	}
	raw, err := file.SyscallConn() // Fd would make reading block
	if err != nil {
		return fmt.Errorf("giving %s to systemd: %w", name, err)
	}
	var sent error
	err = raw.Control(func(fd uintptr) {
		sent = sendFile(socket, "FDSTORE=1\nFDNAME="+name, int(fd)) // descriptors are small
	})
	if err := errors.Join(err, sent); err != nil {
		return fmt.Errorf("giving %s to systemd: %w", name, err)
	}
	return nil
}

// keepPatience is how long a service manager may be too busy to take a file. Who asks for that has just begun, and has more to do.
const keepPatience = 2 * time.Second

// sendFile sends a datagram with a copy of a file. The socket is a connected one: of another, the kernel says that it may be
// written to while it may not, and who waits for that waits with all its might.
func sendFile(socket, state string, fd int) error {
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // what was sent is there
	if err := conn.SetWriteDeadline(time.Now().Add(keepPatience)); err != nil {
		return err
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var sent error
	err = raw.Write(func(to uintptr) bool {
		sent = unix.Sendmsg(int(to), []byte(state), unix.UnixRights(fd), nil, unix.MSG_NOSIGNAL) // descriptors are small
		return !errors.Is(sent, unix.EAGAIN)
	})
	return cmp.Or(err, sent)
}

// Forget asks the service manager to close the files that it holds under this name.
func (n *Notifier) Forget(name string) { n.send("FDSTOREREMOVE=1\nFDNAME=" + name) }

// journalSocket is where the journal takes entries with fields.
const journalSocket = "/run/systemd/journal/socket"

// AwaitJournal waits, up to the limit, until the journal has dealt with the entries that were sent so far. It is for the
// last words of a process: the journal asks the kernel to which unit a sender belongs, and of one that has ended by then
// it learns nothing more, so that "journalctl -u" would not show what the unit has failed of.
//
// The journal takes one datagram after the other, and passes over empty ones. When it has taken an empty one, it has done
// with all that were sent before.
func AwaitJournal(limit time.Duration) {
	overdue := time.Now().Add(limit)
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Net: "unixgram"})
	if err != nil {
		return
	}
	defer func() { _ = conn.Close() }()
	if conn.SetWriteDeadline(overdue) != nil {
		return
	}
	if _, _, err := conn.WriteMsgUnix(nil, nil, &net.UnixAddr{Name: journalSocket, Net: "unixgram"}); err != nil {
		return // There is no journal here, or one that takes nothing more.
	}
	for untaken(conn) > 0 && time.Now().Before(overdue) {
		time.Sleep(time.Millisecond)
	}
}

// untaken is how much of what was sent has not been taken by the other side; 0 also if that cannot be told.
func untaken(conn *net.UnixConn) (left int) {
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
