package lab

import (
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// A port is a TCP port of 127.0.0.1 that stays ours: a socket is bound to it
// but never listens, and a server that shares ports (SO_REUSEPORT) can bind to it
// as well, again after a restart too. Nobody else is given the port, which a
// port that was free a moment ago can't promise. Connections to it are refused
// while no server listens.
type port struct {
	number int
	fd     int
}

// reservePort keeps a port until release.
func reservePort() (port, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return port{}, fmt.Errorf("reserving a port: %w", err)
	}
	var address unix.Sockaddr
	if err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err == nil {
		err = unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}})
	}
	if err == nil {
		address, err = unix.Getsockname(fd)
	}
	inet, ok := address.(*unix.SockaddrInet4)
	if !ok {
		unix.Close(fd)
		return port{}, fmt.Errorf("reserving a port: the address is %v: %w", address, err)
	}
	return port{number: inet.Port, fd: fd}, nil
}

// release gives the port back to the system.
func (p port) release() { unix.Close(p.fd) }

// url returns the address of a server on the port.
func (p port) url(scheme string) string { return fmt.Sprintf("%s://127.0.0.1:%d", scheme, p.number) }

// FreeAddress is one of 127.0.0.1 that nobody listens at. Somebody else may before the caller's program does; then that says so.
func FreeAddress(t TB) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("looking for a free port: %v", err)
	}
	defer listener.Close()
	return listener.Addr().String()
}
