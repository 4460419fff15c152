package logind

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"syscall"

	"github.com/godbus/dbus/v5"
)

// guard is between a socket and godbus, and passes on nothing but answers to calls. Any local user may send signals to any
// connection of the system bus, and godbus v5.2.4 decodes whatever it reads: it panics on a body "ah" once descriptors are
// negotiated, never closes descriptors, and starts a goroutine for each call that it gets. Answers come from the bus, logind and
// systemd: the bus passes on no answer that nobody has asked for.
//
// A signal is dropped unread, and only reported: it means that there may be news, and logind is asked which.
type guard struct {
	socket    *net.UnixConn
	in        io.Reader       // the socket
	withFiles bool            // the bus is asked to pass file descriptors with messages
	came      []*os.File      // those that came with the message that is being read
	files     chan *os.File   // those that came with an answer
	begun     bool            // what is read are messages, and no longer the authentication
	answer    []byte          // what godbus has not yet read of an answer
	signals   chan<- struct{} // is woken by a signal, unless it is nil
}

// The fixed part of each message: 16 bytes, with the byte order, the type, and the lengths of the body and of the header's fields.
// See the D-Bus specification, "Message Format".
const (
	fixedPart     = 16
	longestAnswer = 4 << 20 // The longest are the credentials of a unit, of 1 MiB each at most.
	mostFiles     = 16      // that dbus-daemon and dbus-broker let a message have
)

var errNoDBus = errors.New("the other side does not speak D-Bus")

// newGuard returns a guard of a socket. With withFiles, it asks the bus to pass file descriptors with messages, and keeps the one of an answer
// (see file).
func newGuard(socket *net.UnixConn, withFiles bool, signals chan<- struct{}) *guard {
	g := &guard{socket: socket, withFiles: withFiles, files: make(chan *os.File, 1), signals: signals}
	g.in = receiver{g} // not buffered: a read ahead would mix up which descriptors belong to which message
	if !withFiles {
		g.in = bufio.NewReader(socket)
	}
	return g
}

// Close implements io.Closer.
func (g *guard) Close() error { return g.socket.Close() }

// Write implements io.Writer for godbus. godbus's line BEGIN ends the authentication; that is the last moment at which the bus can be
// asked to pass file descriptors.
func (g *guard) Write(p []byte) (int, error) {
	if !g.begun && bytes.Equal(p, []byte("BEGIN\r\n")) {
		if g.withFiles {
			if err := g.negotiate(); err != nil {
				return 0, err
			}
		}
		g.begun = true
	}
	return g.socket.Write(p)
}

// negotiate asks the bus to pass file descriptors with messages: logind's answer to Inhibit has the lock in one. godbus on this kind
// of socket does not ask for them.
func (g *guard) negotiate() error {
	const agreed = "AGREE_UNIX_FD\r\n"
	if _, err := io.WriteString(g.socket, "NEGOTIATE_UNIX_FD\r\n"); err != nil {
		return err
	}
	line := make([]byte, len(agreed))
	if _, err := io.ReadFull(g.in, line); err != nil {
		return err
	}
	if string(line) != agreed {
		return errors.New("the bus does not pass file descriptors")
	}
	return nil
}

// Read implements io.Reader.
func (g *guard) Read(p []byte) (int, error) {
	if !g.begun {
		return g.in.Read(p)
	}
	for len(g.answer) == 0 {
		if err := g.next(); err != nil {
			return 0, err
		}
	}
	n := copy(p, g.answer)
	g.answer = g.answer[n:]
	return n, nil
}

// next reads one message, and keeps it if it is an answer.
func (g *guard) next() error {
	defer g.closeFiles()
	message := make([]byte, fixedPart)
	if _, err := io.ReadFull(g.in, message); err != nil {
		return err
	}
	var order binary.ByteOrder = binary.LittleEndian
	switch message[0] {
	case 'l':
	case 'B':
		order = binary.BigEndian
	default:
		return errNoDBus
	}
	fields := (int64(order.Uint32(message[12:])) + 7) &^ 7 // The body begins at a multiple of eight.
	rest := fields + int64(order.Uint32(message[4:]))
	kind := dbus.Type(message[1])
	// A longer answer is dropped, too, so that it cannot fill the memory. Its call then ends by the caller's timeout.
	if answer := kind == dbus.TypeMethodReply || kind == dbus.TypeError; !answer || rest > longestAnswer {
		if kind == dbus.TypeSignal {
			poke(g.signals)
		}
		_, err := io.CopyN(io.Discard, g.in, rest)
		return err
	}
	message = append(message, make([]byte, rest)...)
	if _, err := io.ReadFull(g.in, message[fixedPart:]); err != nil {
		return err
	}
	if len(g.came) > 0 {
		select {
		case g.files <- g.came[0]:
			g.came = g.came[1:]
		default: // The descriptor of an earlier answer was not fetched by file. This one is closed.
		}
	}
	g.answer = message
	return nil
}

// closeFiles closes the descriptors that came with the message just read and were not kept for file.
func (g *guard) closeFiles() {
	for _, file := range g.came {
		_ = file.Close() // It was never used.
	}
	g.came = nil
}

// file returns the descriptor that came with an answer; nil if there was none.
func (g *guard) file() *os.File {
	select {
	case file := <-g.files:
		return file
	default:
		return nil
	}
}

// receiver reads a guard's socket, with the descriptors that come with what is read.
type receiver struct{ *guard }

// Read implements io.Reader.
func (r receiver) Read(p []byte) (int, error) {
	rights := make([]byte, syscall.CmsgSpace(4*mostFiles)) // The kernel drops what does not fit.
	n, given, _, _, err := r.socket.ReadMsgUnix(p, rights)
	if err != nil {
		return 0, err
	}
	if n == 0 {
		return 0, io.EOF
	}
	messages, err := syscall.ParseSocketControlMessage(rights[:given])
	if err != nil {
		return 0, err
	}
	for _, m := range messages {
		fds, err := syscall.ParseUnixRights(&m)
		if err != nil {
			continue // It has no descriptors.
		}
		for _, fd := range fds {
			r.came = append(r.came, os.NewFile(uintptr(fd), "inhibitor lock"))
		}
	}
	return n, nil
}

// poke wakes the receiver of a channel.
func poke(channel chan<- struct{}) {
	select {
	case channel <- struct{}{}:
	default:
	}
}
