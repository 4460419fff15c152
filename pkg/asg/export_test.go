package asg

import (
	"context"
	"net"
	"time"
)

// DialWith has the Keeper make its connections with dial.
func (k *Keeper) DialWith(dial func(ctx context.Context, network, address string) (net.Conn, error)) {
	k.dial = dial
}

// ReadClock has the Keeper read the wall clock with now.
func (k *Keeper) ReadClock(now func() time.Time) { k.now = now }
