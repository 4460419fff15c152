package systemd

import (
	"net"
	"time"

	"golang.org/x/sys/unix"
)

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
