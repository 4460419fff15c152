package imdstest

import (
	"net"
	"syscall"
)

// holdPort keeps a port from being given to anybody else while nothing listens on it, so that it can be opened again.
// A socket that is bound but does not listen does that: connections to it are refused, and Linux lets net.Listen have
// the port next to it, because both allow the reuse of their address. It is best effort; release is never nil.
func holdPort(address *net.TCPAddr) (release func()) {
	family, name := sockaddr(address)
	socket, err := syscall.Socket(family, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return func() {}
	}
	release = func() { _ = syscall.Close(socket) }
	_ = syscall.SetsockoptInt(socket, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1)
	_ = syscall.Bind(socket, name)
	return release
}

func sockaddr(address *net.TCPAddr) (family int, name syscall.Sockaddr) {
	if ip := address.IP.To4(); ip != nil {
		return syscall.AF_INET, &syscall.SockaddrInet4{Port: address.Port, Addr: [4]byte(ip)}
	}
	name6 := &syscall.SockaddrInet6{Port: address.Port}
	copy(name6.Addr[:], address.IP.To16())
	return syscall.AF_INET6, name6
}
