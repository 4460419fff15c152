//go:build !linux

package imdstest

import "net"

// holdPort holds nothing: how a port can be kept without listening on it differs between systems. While connections
// are refused, another program could take the port.
func holdPort(*net.TCPAddr) (release func()) { return func() {} }
