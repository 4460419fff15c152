// Package pipetest serves HTTP on a network of pipes, for tests in a bubble of testing/synctest: a goroutine that waits for
// a pipe, unlike one that waits for a socket, lets the bubble's clock advance.
//
//	server := pipetest.Serve(handler)
//	defer server.Close()
//	source.DialWith(server.Dial)
package pipetest

import (
	"context"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"
)

// A Server is the only host of a network of its own: whatever address is dialed, it answers.
type Server struct {
	pipes pipes
	http  *http.Server

	open  sync.WaitGroup // connections that are served
	mu    sync.Mutex
	conns map[net.Conn]bool
}

// Serve starts a server in the bubble that the caller is in.
func Serve(handler http.Handler) *Server {
	s := &Server{
		pipes: pipes{conns: make(chan net.Conn), closed: make(chan struct{})},
		conns: map[net.Conn]bool{},
	}
	s.http = &http.Server{Handler: handler, ConnState: s.follow} // nobody else reaches it
	go func() { _ = s.http.Serve(s.pipes) }()                    // ends with http.ErrServerClosed
	return s
}

// Dial connects to the server. It fails if ctx ends before the server has taken the connection, or the server has ended.
func (s *Server) Dial(ctx context.Context, network, _ string) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case s.pipes.conns <- server:
		return client, nil
	case <-s.pipes.closed:
		return nil, &net.OpError{Op: "dial", Net: network, Err: syscall.ECONNREFUSED}
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Break breaks all connections that there are.
func (s *Server) Break() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for conn := range s.conns {
		_ = conn.Close() // a second close has nothing to say
	}
}

// Stop ends the server and waits until its handlers have returned. It takes no longer than they do, and can be used
// outside of a bubble, too.
func (s *Server) Stop() {
	_ = s.http.Close() // a listener of pipes closes well
	s.open.Wait()
}

// Close ends the server, and gives a minute of the bubble's to handlers that are on their way and to clients' connections
// that were kept: a bubble must not end before its goroutines.
func (s *Server) Close() {
	_ = s.http.Close() // a listener of pipes closes well
	time.Sleep(time.Minute)
}

// follow is called at each connection's beginning and end.
func (s *Server) follow(conn net.Conn, state http.ConnState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch state {
	case http.StateNew:
		s.open.Add(1)
		s.conns[conn] = true
	case http.StateClosed, http.StateHijacked:
		delete(s.conns, conn)
		s.open.Done()
	case http.StateActive, http.StateIdle:
	}
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
