package lab

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// A port is a TCP port of 127.0.0.1 that stays ours: a socket is bound to it
// but never listens, and a component that asks for port sharing can bind to it
// as well, again after a restart too. Nobody else is given the port, which a
// port that was free a moment ago can't promise.
type port struct {
	number int
	fd     int
}

func reservePort() (port, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return port{}, fmt.Errorf("reserving a port: %w", err)
	}
	number, err := bindShared(fd)
	if err != nil {
		unix.Close(fd)
		return port{}, fmt.Errorf("reserving a port: %w", err)
	}
	return port{number: number, fd: fd}, nil
}

func bindShared(fd int) (int, error) {
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err != nil {
		return 0, err
	}
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return 0, err
	}
	address, err := unix.Getsockname(fd)
	if err != nil {
		return 0, err
	}
	inet, ok := address.(*unix.SockaddrInet4)
	if !ok {
		return 0, fmt.Errorf("the address is a %T", address)
	}
	return inet.Port, nil
}

// release gives the port back to the system.
func (p port) release() { unix.Close(p.fd) }

// url returns the address of a server on the port.
func (p port) url(scheme string) string { return fmt.Sprintf("%s://127.0.0.1:%d", scheme, p.number) }

// ReservePort keeps a TCP port of 127.0.0.1 for servers that share ports
// (SO_REUSEPORT), so that they can close it and open it again, until release.
// Connections to it are refused while none of them listens.
func ReservePort() (number int, release func(), err error) {
	p, err := reservePort()
	if err != nil {
		return 0, nil, err
	}
	return p.number, p.release, nil
}
