package systemd

import (
	"errors"
	"fmt"
	"net"
	"os"

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
// character device that is what can be read next as well, from now on.
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

// sendFile sends a datagram with a copy of a file.
func sendFile(socket, state string, fd int) error {
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Net: "unixgram"})
	if err != nil {
		return err
	}
	_, _, err = conn.WriteMsgUnix([]byte(state), unix.UnixRights(fd), &net.UnixAddr{Name: socket, Net: "unixgram"})
	return errors.Join(err, conn.Close())
}

// Forget asks the service manager to close the files that it holds under this name.
func (n *Notifier) Forget(name string) { n.send("FDSTOREREMOVE=1\nFDNAME=" + name) }
