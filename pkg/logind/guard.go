package logind

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"syscall"

	"github.com/godbus/dbus/v5"
	"github.com/nth-project/nth/pkg/loop"
)

// guard is between a socket and godbus, and lets godbus read nothing but answers to its calls. Any local user may send signals and calls to
// any connection of the system bus, and godbus v5.2.4 decodes whatever it reads. It panics on a body "ah" once descriptors are negotiated,
// never closes descriptors, and starts a goroutine for each call that it gets. Answers are safe: they come from the bus, logind or systemd,
// as the bus passes on no answer that nobody has asked for.
//
// The guard drops a signal unread, and wakes the source, which then asks logind what has changed.
type guard struct {
	socket   *net.UnixConn
	received []*os.File      // the descriptors that came with the message that is being read
	files    chan *os.File   // a descriptor that came with an answer, until file fetches it; has room for one
	begun    bool            // the authentication is over: from now on, the other side sends messages
	answer   []byte          // what godbus has not yet read of an answer
	signals  chan<- struct{} // a signal wakes its receiver; nil if nobody waits for signals
}

// The fixed part of each message: 16 bytes, with the byte order, the type, and the lengths of the body and of the header's fields.
// See the D-Bus specification, "Message Format".
const (
	fixedPart     = 16
	longestAnswer = 4 << 20 // The longest are the credentials of a unit, of 1 MiB each at most.
	mostFiles     = 16      // that dbus-daemon and dbus-broker let a message have
)

// errNoDBus is the error of a message that does not begin as D-Bus has it.
var errNoDBus = errors.New("the other side does not speak D-Bus")

// Close implements io.Closer.
func (g *guard) Close() error { return g.socket.Close() }

// Write implements io.Writer: godbus writes its authentication and its calls here. The line BEGIN ends the authentication. That is the last
// moment at which the bus can be asked to pass file descriptors.
func (g *guard) Write(p []byte) (int, error) {
	if !g.begun && bytes.Equal(p, []byte("BEGIN\r\n")) {
		if err := g.negotiate(); err != nil {
			return 0, err
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
	if _, err := io.ReadFull(receiver{g}, line); err != nil {
		return err
	}
	if string(line) != agreed {
		return errors.New("the bus does not pass file descriptors")
	}
	return nil
}

// Read implements io.Reader: godbus reads the authentication and then answers here, and never sees another message.
func (g *guard) Read(p []byte) (int, error) {
	if !g.begun {
		return receiver{g}.Read(p)
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

// next reads one message from the socket. It keeps an answer in g.answer for Read, and drops any other message.
func (g *guard) next() error {
	defer g.closeFiles()
	message := make([]byte, fixedPart)
	if _, err := io.ReadFull(receiver{g}, message); err != nil {
		return err
	}
	var order binary.ByteOrder = binary.LittleEndian
	switch message[0] {
	case 'l': // little endian
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
			loop.Nudge(g.signals)
		}
		_, err := io.CopyN(io.Discard, receiver{g}, rest)
		return err
	}
	message = append(message, make([]byte, rest)...)
	if _, err := io.ReadFull(receiver{g}, message[fixedPart:]); err != nil {
		return err
	}
	if len(g.received) > 0 {
		select {
		case g.files <- g.received[0]:
			g.received = g.received[1:]
		default: // Nobody has fetched the descriptor of an earlier answer. closeFiles closes this one.
		}
	}
	g.answer = message
	return nil
}

// closeFiles closes the descriptors that came with the message just read and were not kept for file.
func (g *guard) closeFiles() {
	for _, file := range g.received {
		_ = file.Close() // It was never used.
	}
	g.received = nil
}

// file returns the descriptor that came with an answer; nil if none came. inhibit calls it after logind's answer.
func (g *guard) file() *os.File {
	select {
	case file := <-g.files:
		return file
	default:
		return nil
	}
}

// receiver reads a guard's socket without a buffer: a read ahead would mix up which descriptors belong to which message. It puts the file descriptors that come with the bytes into the guard's received.
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
			r.received = append(r.received, os.NewFile(uintptr(fd), "inhibitor lock"))
		}
	}
	return n, nil
}
