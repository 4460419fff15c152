// Package pipetest serves HTTP on a network of pipes, for tests in a bubble of testing/synctest: a goroutine that waits for
// a pipe, unlike one that waits for a socket, lets the bubble's clock go on.
//
//	server := pipetest.Serve(handler)
//	defer server.Close()
//	source.DialWith(server.Dial)
package pipetest

import (
	"context"
	"net"
	"net/http"
	"time"
)

// A Server is the only host of a network of its own: whatever address is dialed, it answers.
type Server struct {
	pipes pipes
	http  *http.Server
}

// Serve starts a server in the bubble that the caller is in.
func Serve(handler http.Handler) *Server {
	s := &Server{
		pipes: pipes{conns: make(chan net.Conn), closed: make(chan struct{})},
		http:  &http.Server{Handler: handler}, //nolint:gosec // nobody else reaches it
	}
	go func() { _ = s.http.Serve(s.pipes) }() // ends with http.ErrServerClosed
	return s
}

// Dial connects to the server. It fails if ctx ends before the server has taken the connection.
func (s *Server) Dial(ctx context.Context, _, _ string) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case s.pipes.conns <- server:
		return client, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Close ends the server, and gives a minute of the bubble's to handlers that are on their way and to clients' connections
// that were kept: a bubble must not end before its goroutines.
func (s *Server) Close() {
	_ = s.http.Close() // a listener of pipes closes well
	time.Sleep(time.Minute)
}

// pipes implements net.Listener.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (p pipes) Accept() (net.Conn, error) {
	select {
	case conn := <-p.conns:
		return conn, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p pipes) Close() error {
	close(p.closed)
	return nil
}

func (p pipes) Addr() net.Addr { return &net.TCPAddr{} }
