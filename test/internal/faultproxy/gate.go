package faultproxy

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nth-project/nth/test/internal/lab"
)

// A gate is the proxy's listener. It can refuse connections and hold back everything that is on them.
type gate struct {
	address string
	release func()
	met     func() // called when the black hole swallows something

	mu     sync.Mutex
	inner  net.Listener // nil while connections are refused
	change chan struct{}
	closed bool
	hole   chan struct{} // closed when the black hole ends; nil if there is none
	conns  map[*connection]bool
}

func newGate(met func()) (*gate, error) {
	port, release, err := lab.ReservePort()
	if err != nil {
		return nil, err
	}
	g := &gate{
		address: fmt.Sprintf("127.0.0.1:%d", port), release: release, met: met,
		change: make(chan struct{}), conns: map[*connection]bool{},
	}
	if g.inner, err = g.listen(); err != nil {
		release()
		return nil, err
	}
	return g, nil
}

func (g *gate) listen() (net.Listener, error) {
	shared := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var failed error
		err := raw.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) })
		if err != nil {
			return err
		}
		return failed
	}}
	return shared.Listen(context.Background(), "tcp", g.address)
}

// set opens or closes the gate. It panics if the port, which is reserved, cannot be opened: there is no test to fail.
func (g *gate) set(refuse, blackHole bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.closed:
	case refuse && g.inner != nil:
		_ = g.inner.Close()
		g.inner = nil
		for c := range g.conns {
			c.reset()
		}
	case !refuse && g.inner == nil:
		inner, err := g.listen()
		if err != nil {
			panic(fmt.Sprintf("opening the port %s again: %v", g.address, err))
		}
		g.inner = inner
		g.changed()
	}
	switch {
	case blackHole && g.hole == nil:
		g.hole = make(chan struct{})
	case !blackHole && g.hole != nil:
		close(g.hole)
		g.hole = nil
	}
}

func (g *gate) changed() {
	close(g.change)
	g.change = make(chan struct{})
}

func (g *gate) state() (inner net.Listener, change <-chan struct{}, closed bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.inner, g.change, g.closed
}

// Accept implements net.Listener. While connections are refused there is none to accept.
func (g *gate) Accept() (net.Conn, error) {
	for {
		inner, change, closed := g.state()
		switch {
		case closed:
			return nil, net.ErrClosed
		case inner == nil:
			<-change
			continue
		}
		c, err := inner.Accept()
		if err == nil {
			return g.take(c), nil
		}
		if now, _, _ := g.state(); now == inner {
			return nil, err
		}
	}
}

// Close implements net.Listener.
func (g *gate) Close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	g.changed()
	if g.inner == nil {
		return nil
	}
	err := g.inner.Close()
	g.inner = nil
	return err
}

// Addr implements net.Listener.
func (g *gate) Addr() net.Addr {
	address, _ := net.ResolveTCPAddr("tcp", g.address) // a literal address always resolves
	return address
}

func (g *gate) take(c net.Conn) *connection {
	g.mu.Lock()
	defer g.mu.Unlock()
	taken := &connection{Conn: c, gate: g, over: make(chan struct{})}
	g.conns[taken] = true
	return taken
}

// A connection is one from nth.
type connection struct {
	net.Conn
	gate *gate
	once sync.Once
	over chan struct{} // closed when the connection is
}

// pass waits while there is a black hole.
func (c *connection) pass() error {
	c.gate.mu.Lock()
	hole := c.gate.hole
	c.gate.mu.Unlock()
	if hole == nil {
		return nil
	}
	c.gate.met()
	select {
	case <-hole:
		return nil
	case <-c.over:
		return net.ErrClosed
	}
}

// Read implements net.Conn. What arrives while there is a black hole is held back.
func (c *connection) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if held := c.pass(); held != nil {
		return 0, held
	}
	return n, err
}

// Write implements net.Conn.
func (c *connection) Write(b []byte) (int, error) {
	if err := c.pass(); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

// Close implements net.Conn.
func (c *connection) Close() error {
	c.once.Do(func() { close(c.over) })
	c.gate.mu.Lock()
	delete(c.gate.conns, c)
	c.gate.mu.Unlock()
	return c.Conn.Close()
}

// reset ends the connection in such a way that the client is told of an error.
func (c *connection) reset() {
	c.once.Do(func() { close(c.over) })
	if tcp, ok := c.Conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // fails only if it is closed already
	}
	_ = c.Conn.Close() // the server notices, and closes the rest
}

type connectionKey struct{}

// withConnection lets a handler find the connection of its request.
func withConnection(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connectionKey{}, c.(*tls.Conn).NetConn())
}

func connectionOf(ctx context.Context) *connection { return ctx.Value(connectionKey{}).(*connection) }
