package logind

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/godbus/dbus/v5"
)

// callTimeout is how long a connection, or a call over it, may take.
const callTimeout = 5 * time.Second

// Host is a machine's root directory. Empty means that of this process; in a container, the host's is another.
type Host string

// conn is a connection to the system bus for calls, one after the other.
//
// Any local user may send signals and calls to any connection of the system bus, with file descriptors. godbus (v5.2.4) decodes them all,
// panics on some, and never closes the descriptors. So conn drops all messages unread but the answers to its own calls, and uses godbus only to
// encode and decode those. Answers are safe: the bus passes on no answer that nobody has asked for.
type conn struct {
	socket *net.UnixConn
	serial uint32     // of the last call
	files  []*os.File // the descriptors that came with the last message
}

// bus connects to the host's system bus. The caller closes the connection.
func (h Host) bus(ctx context.Context) (*conn, error) {
	failed := func(err error) (*conn, error) { return nil, fmt.Errorf("connecting to the system bus: %w", err) }
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	dialed, err := new(net.Dialer).DialContext(ctx, "unix", filepath.Join("/", string(h), "run/dbus/system_bus_socket"))
	if err != nil {
		return failed(err)
	}
	c := &conn{socket: dialed.(*net.UnixConn)} //nolint:forcetypeassert // "unix" gives no other type.
	if err = c.authenticate(ctx); err == nil {
		err = c.call(ctx, "org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus.Hello", []any{new(string)})
	}
	if err != nil {
		c.close()
		return failed(err)
	}
	return c, nil
}

// longestGreeting is the most that the bus may say before the first message, in bytes.
const longestGreeting = 256

// errNoDBus is the error of a peer that is not a bus as nth needs it.
var errNoDBus = errors.New("the other side does not speak D-Bus, or does not pass file descriptors")

// authenticate says who this process is, and asks for file descriptors: logind's answer to Inhibit has the lock in one. See the D-Bus
// specification, "Authentication Protocol".
func (c *conn) authenticate(ctx context.Context) (err error) {
	defer c.bound(ctx, &err)()
	user := hex.EncodeToString([]byte(strconv.Itoa(os.Getuid())))
	if _, err := io.WriteString(c.socket, "\x00AUTH EXTERNAL "+user+"\r\nNEGOTIATE_UNIX_FD\r\nBEGIN\r\n"); err != nil {
		return err
	}
	greeting, one := "", make([]byte, 1) // The bus's two lines are read by the byte: what follows them is a message.
	for strings.Count(greeting, "\n") < 2 && len(greeting) < longestGreeting {
		if _, err := c.socket.Read(one); err != nil {
			return err
		}
		greeting += string(one)
	}
	if !strings.HasPrefix(greeting, "OK ") || !strings.HasSuffix(greeting, "\nAGREE_UNIX_FD\r\n") {
		return errNoDBus
	}
	return nil
}

// bound ends the connection when ctx ends before the function that it returns is called. That puts the reason into err.
func (c *conn) bound(ctx context.Context, err *error) (done func()) {
	stop := context.AfterFunc(ctx, func() { _ = c.socket.Close() })
	return func() {
		if !stop() { // *err says only that the socket is closed.
			*err = ctx.Err()
		}
	}
}

// close ends the connection.
func (c *conn) close() {
	_ = c.socket.Close()
	c.closeFiles()
}

// closeFiles closes the descriptors that came with the last message and that nobody has taken.
func (c *conn) closeFiles() {
	for _, file := range c.files {
		_ = file.Close() // It was never used.
	}
	c.files = nil
}

// call calls a method of the object at path, of the service called name. It stores what the method returns in the variables that results point
// to. Descriptors that came with the answer are in c.files until the next call. The error is a dbus.Error if the service refuses. A call that
// gets no answer ends the connection.
func (c *conn) call(ctx context.Context, name string, path dbus.ObjectPath, method string, results []any, args ...any) (err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	defer c.bound(ctx, &err)()
	if err := c.send(name, path, method, args); err != nil {
		return err
	}
	for {
		answer, err := c.next()
		if err != nil {
			return err
		}
		if answer == nil || answer.Headers[dbus.FieldReplySerial].Value() != c.serial {
			continue
		}
		if answer.Type == dbus.TypeError {
			reason, _ := answer.Headers[dbus.FieldErrorName].Value().(string)
			return dbus.Error{Name: reason, Body: answer.Body}
		}
		return dbus.Store(answer.Body, results...)
	}
}

// send sends a call, with the next serial number.
func (c *conn) send(name string, path dbus.ObjectPath, method string, args []any) error {
	dot := strings.LastIndexByte(method, '.')
	m := &dbus.Message{Type: dbus.TypeMethodCall, Body: args, Headers: map[dbus.HeaderField]dbus.Variant{
		dbus.FieldDestination: dbus.MakeVariant(name),
		dbus.FieldPath:        dbus.MakeVariant(path),
		dbus.FieldInterface:   dbus.MakeVariant(method[:dot]),
		dbus.FieldMember:      dbus.MakeVariant(method[dot+1:]),
	}}
	if len(args) > 0 {
		m.Headers[dbus.FieldSignature] = dbus.MakeVariant(dbus.SignatureOf(args...))
	}
	var encoded bytes.Buffer
	if err := m.EncodeTo(&encoded, binary.LittleEndian); err != nil {
		return err
	}
	c.serial++
	binary.LittleEndian.PutUint32(encoded.Bytes()[8:], c.serial) // godbus leaves the serial number 0.
	_, err := encoded.WriteTo(c.socket)
	return err
}

// The fixed part of each message: 16 bytes, with the byte order, the type, and the lengths of the body and of the header's fields.
// See the D-Bus specification, "Message Format".
const (
	fixedPart     = 16
	longestAnswer = 4 << 20 // The longest are the credentials of a unit, of 1 MiB each at most.
	mostFiles     = 16      // that dbus-daemon and dbus-broker let a message have
)

// next reads one message. It returns nil for a message that is no answer, or is too long, and drops that.
func (c *conn) next() (*dbus.Message, error) {
	c.closeFiles()
	message := make([]byte, fixedPart)
	if _, err := io.ReadFull(c, message); err != nil {
		return nil, err
	}
	var order binary.ByteOrder = binary.LittleEndian
	switch message[0] {
	case 'l': // little endian
	case 'B':
		order = binary.BigEndian
	default:
		return nil, errNoDBus
	}
	fields := (int64(order.Uint32(message[12:])) + 7) &^ 7 // The body begins at a multiple of eight.
	rest := fields + int64(order.Uint32(message[4:]))
	kind := dbus.Type(message[1])
	if answers := kind == dbus.TypeMethodReply || kind == dbus.TypeError; !answers || rest > longestAnswer {
		_, err := io.CopyN(io.Discard, c, rest)
		return nil, err
	}
	message = append(message, make([]byte, rest)...)
	if _, err := io.ReadFull(c, message[fixedPart:]); err != nil {
		return nil, err
	}
	return dbus.DecodeMessage(bytes.NewReader(message))
}

// Read implements io.Reader. It has no buffer: a read ahead would mix up which descriptors belong to which message.
func (c *conn) Read(p []byte) (int, error) {
	rights := make([]byte, syscall.CmsgSpace(4*mostFiles)) // The kernel drops what does not fit.
	n, given, _, _, err := c.socket.ReadMsgUnix(p, rights)
	if err != nil {
		return 0, err
	}
	if n == 0 {
		return 0, io.EOF
	}
	messages, err := syscall.ParseSocketControlMessage(rights[:given])
	for _, m := range messages {
		fds, _ := syscall.ParseUnixRights(&m) // It fails for a message without descriptors.
		for _, fd := range fds {
			c.files = append(c.files, os.NewFile(uintptr(fd), "inhibitor lock"))
		}
	}
	return n, err
}
