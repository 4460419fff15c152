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

const (
	// callTimeout is how long it may take to connect, and how long a call may take.
	callTimeout = 5 * time.Second
	// lookTimeout is how long a look waits for logind's properties: meanwhile, the power key is not read.
	lookTimeout = time.Second
)

// Host is the root directory of the machine whose system bus is used. Empty means this process's root; in a container, the host's root is mounted
// elsewhere.
type Host string

// conn is a connection to the system bus for calls, one after the other. It ends with the context that it was made with.
//
// Any local user may send signals and calls to any connection of the system bus, with file descriptors. A connection of godbus (v5.2.4) decodes
// all of them, panics on some, and never closes the descriptors. So conn reads only the answers to its own calls, and drops all other messages.
// It uses godbus only to encode calls and decode answers. Answers are safe: the bus passes on no answer without a call.
type conn struct {
	socket *net.UnixConn
	limit  time.Duration // how long a call may take
	forget func() bool   // stops to wait for the end of the context
	serial uint32        // the number of the last call
	files  []*os.File    // the descriptors that came with the last message, except those that inhibit has taken
}

// bus connects to the host's system bus. The caller closes the connection. When ctx ends, the connection is closed, so that calls return.
func (h Host) bus(ctx context.Context) (*conn, error) {
	failed := func(err error) (*conn, error) { return nil, fmt.Errorf("connecting to the D-Bus system bus: %w", err) }
	dialer := net.Dialer{Timeout: callTimeout}
	dialed, err := dialer.DialContext(ctx, "unix", filepath.Join("/", string(h), "run/dbus/system_bus_socket"))
	if err != nil {
		return failed(err)
	}
	c := &conn{socket: dialed.(*net.UnixConn), limit: callTimeout} //nolint:forcetypeassert // "unix" gives no other type.
	c.forget = context.AfterFunc(ctx, func() { _ = c.socket.Close() })
	if err = c.authenticate(); err == nil {
		err = c.call("org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus.Hello", []any{new(string)})
	}
	if err != nil {
		c.close()
		return failed(err)
	}
	return c, nil
}

// longestGreeting is the most that the bus may send before the first message, in bytes.
const longestGreeting = 256

// errNoDBus means that the socket leads to something else than a system bus.
var errNoDBus = errors.New("the process at the system bus's socket does not speak D-Bus, or does not pass file descriptors")

// authenticate sends the user ID of this process, and asks the bus to pass file descriptors: logind's answer to Inhibit has the lock as a
// descriptor. See the D-Bus specification, "Authentication Protocol".
func (c *conn) authenticate() error {
	user := hex.EncodeToString([]byte(strconv.Itoa(os.Getuid())))
	if err := c.write([]byte("\x00AUTH EXTERNAL " + user + "\r\nNEGOTIATE_UNIX_FD\r\nBEGIN\r\n")); err != nil {
		return err
	}
	greeting, one := "", make([]byte, 1) // The bus's two lines are read byte by byte: the bytes after them belong to a message.
	for strings.Count(greeting, "\n") < 2 && len(greeting) < longestGreeting {
		if _, err := c.Read(one); err != nil {
			return err
		}
		greeting += string(one)
	}
	if !strings.HasPrefix(greeting, "OK ") || !strings.HasSuffix(greeting, "\nAGREE_UNIX_FD\r\n") {
		return errNoDBus
	}
	return nil
}

// write writes to the bus, whose answer then has c.limit.
func (c *conn) write(text []byte) error {
	_ = c.socket.SetDeadline(time.Now().Add(c.limit)) // If the socket is closed, the write fails.
	_, err := c.socket.Write(text)
	return err
}

// close ends the connection.
func (c *conn) close() {
	c.forget()
	_ = c.socket.Close()
	c.closeFiles()
}

// closeFiles closes the descriptors in c.files.
func (c *conn) closeFiles() {
	for _, file := range c.files {
		_ = file.Close()
	}
	c.files = nil
}

// call calls a method of an object. service has the object at path, and method contains the interface. call stores the method's results in the
// variables that results point to. Descriptors that came with the answer are in c.files until the next call.
//
// If the service refuses, the error is a dbus.Error, and the connection remains usable. Without an answer within c.limit, or after an error of
// the connection, the connection is closed.
func (c *conn) call(service string, path dbus.ObjectPath, method string, results []any, args ...any) error {
	answer, err := c.exchange(service, path, method, args)
	if err != nil {
		_ = c.socket.Close()
		return err
	}
	if answer.Type == dbus.TypeError {
		reason, _ := answer.Headers[dbus.FieldErrorName].Value().(string)
		return dbus.Error{Name: reason, Body: answer.Body}
	}
	return dbus.Store(answer.Body, results...)
}

// exchange sends a call with the next serial number, and reads the answer. method is "interface.member".
func (c *conn) exchange(service string, path dbus.ObjectPath, method string, args []any) (*dbus.Message, error) {
	dot := strings.LastIndexByte(method, '.')
	m := &dbus.Message{Type: dbus.TypeMethodCall, Body: args, Headers: map[dbus.HeaderField]dbus.Variant{
		dbus.FieldDestination: dbus.MakeVariant(service),
		dbus.FieldPath:        dbus.MakeVariant(path),
		dbus.FieldInterface:   dbus.MakeVariant(method[:dot]),
		dbus.FieldMember:      dbus.MakeVariant(method[dot+1:]),
	}}
	if len(args) > 0 {
		m.Headers[dbus.FieldSignature] = dbus.MakeVariant(dbus.SignatureOf(args...))
	}
	var encoded bytes.Buffer
	if err := m.EncodeTo(&encoded, binary.LittleEndian); err != nil {
		return nil, err
	}
	c.serial++
	binary.LittleEndian.PutUint32(encoded.Bytes()[8:], c.serial) // godbus leaves the serial number 0.
	if err := c.write(encoded.Bytes()); err != nil {
		return nil, err
	}
	for {
		answer, err := c.next()
		if err != nil || answer != nil && answer.Headers[dbus.FieldReplySerial].Value() == c.serial {
			return answer, err // Other messages are not the answer to this call.
		}
	}
}

const (
	// fixedPart is the length, in bytes, of the first part of each message. That part has the byte order, the type, and the lengths of the
	// body and of the header's fields. See the D-Bus specification, "Message Format".
	fixedPart = 16
	// longestAnswer is the longest answer that is read, in bytes: more than logind and systemd send.
	longestAnswer = 4 << 20
	// mostFiles is how many descriptors dbus-daemon and dbus-broker let a message have.
	mostFiles = 16
)

// next reads one message. A message that is no answer, or is longer than longestAnswer, is dropped: then next returns nil and no error.
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
	fields := (int64(order.Uint32(message[12:])) + 7) &^ 7 // rounded up to a multiple of eight, where the body begins
	rest := fields + int64(order.Uint32(message[4:]))      // the fields and the body
	kind := dbus.Type(message[1])
	if isAnswer := kind == dbus.TypeMethodReply || kind == dbus.TypeError; !isAnswer || rest > longestAnswer {
		_, err := io.CopyN(io.Discard, c, rest)
		return nil, err
	}
	message = append(message, make([]byte, rest)...)
	if _, err := io.ReadFull(c, message[fixedPart:]); err != nil {
		return nil, err
	}
	return dbus.DecodeMessage(bytes.NewReader(message))
}

// Read implements io.Reader. It appends the descriptors that come with the bytes to c.files. It does not read ahead: the descriptors of
// the next message would come with this one.
func (c *conn) Read(p []byte) (int, error) {
	rights := make([]byte, syscall.CmsgSpace(4*mostFiles)) // The kernel drops what does not fit.
	n, given, _, _, err := c.socket.ReadMsgUnix(p, rights)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = fmt.Errorf("no answer within %s", c.limit)
	}
	if err != nil {
		return 0, err
	}
	if n == 0 {
		return 0, io.EOF
	}
	messages, err := syscall.ParseSocketControlMessage(rights[:given])
	for _, m := range messages {
		fds, _ := syscall.ParseUnixRights(&m) // An error means that m has no descriptors.
		for _, fd := range fds {
			c.files = append(c.files, os.NewFile(uintptr(fd), "inhibitor lock"))
		}
	}
	return n, err
}
