package asg

import (
	"context"
	"net"
)

// DialWith has the Keeper make its connections with dial.
func (k *Keeper) DialWith(dial func(ctx context.Context, network, address string) (net.Conn, error)) {
	k.dial = dial
}
