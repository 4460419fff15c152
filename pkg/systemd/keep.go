package systemd

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/coreos/go-systemd/v22/activation"
	"golang.org/x/sys/unix"
)

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
		sent = sendFile(socket, "FDSTORE=1\nFDNAME="+name, int(fd)) //nolint:gosec // descriptors are small
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
		sent = unix.Sendmsg(int(to), []byte(state), unix.UnixRights(fd), nil, unix.MSG_NOSIGNAL) //nolint:gosec // descriptors are small
		return !errors.Is(sent, unix.EAGAIN)
	})
	return cmp.Or(err, sent)
}

// Forget asks the service manager to close the files that it holds under this name.
func (n *Notifier) Forget(name string) { n.send("FDSTOREREMOVE=1\nFDNAME=" + name) }
