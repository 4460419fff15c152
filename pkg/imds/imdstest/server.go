package imdstest

import (
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"sync"
	"time"
)

// Server is a Simulator on a port of its own.
type Server struct {
	*Simulator
	// URL is "http://127.0.0.1:PORT", without a slash at its end.
	URL string

	mux     *http.ServeMux
	http    *http.Server
	address *net.TCPAddr
	serving sync.WaitGroup

	mu       sync.Mutex
	listener net.Listener // nil while connections are refused
	release  func()       // ends the reservation of the port while nothing listens on it
	closed   bool
}

// NewServer starts a Server on a free port of 127.0.0.1. Like httptest.NewServer it panics if there is none.
func NewServer() *Server {
	s, err := Listen("127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	return s
}

// Listen starts a Server on a TCP address such as "127.0.0.1:1338".
func Listen(address string) (*Server, error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("opening the metadata service's port: %w", err)
	}
	s := &Server{
		Simulator: New(),
		URL:       "http://" + listener.Addr().String(),
		address:   listener.Addr().(*net.TCPAddr),
	}
	s.mux = http.NewServeMux()
	s.mux.Handle("/", s.Simulator)
	s.http = &http.Server{
		Handler:   s.mux,
		ConnState: s.countConnection,
		// net/http need not report clients that reset or leave.
		ErrorLog:          log.New(io.Discard, "", 0),
		ReadHeaderTimeout: time.Minute,
	}
	s.onFaults = s.openOrClose
	s.serve(listener)
	return s, nil
}

// Handle serves something else at a path that EC2 does not have. No fault touches it.
func (s *Server) Handle(path string, handler http.Handler) { s.mux.Handle(path, handler) }

// Close cuts all connections and waits for their handlers.
func (s *Server) Close() {
	s.mu.Lock()
	s.closed = true
	s.releasePort()
	s.mu.Unlock()
	_ = s.http.Close()
	s.serving.Wait()
	s.Lift()
}

// openOrClose opens or closes the port, as the active faults ask for.
func (s *Server) openOrClose() {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch refuse := s.refusing(); {
	case s.closed:
	case refuse && s.listener != nil:
		_ = s.listener.Close()
		s.listener = nil
		s.release = holdPort(s.address)
	case !refuse && s.listener == nil:
		listener, err := net.ListenTCP("tcp", s.address)
		if err != nil {
			s.reportChange("opening the port again: %v", err)
			return
		}
		s.releasePort()
		s.serve(listener)
	}
}

func (s *Server) releasePort() {
	if s.release != nil {
		s.release()
		s.release = nil
	}
}

func (s *Server) serve(listener net.Listener) {
	s.listener = listener
	s.serving.Go(func() {
		_ = s.http.Serve(listener) // It ends when Close or a fault closes the listener.
	})
}

// countConnection lets Close wait for all handlers, which http.Server.Close does not. A connection is closed after its
// handler has returned; a hijacked one is the handler's own and ends with it.
func (s *Server) countConnection(_ net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		s.serving.Add(1)
	case http.StateClosed, http.StateHijacked:
		s.serving.Done()
	default:
	}
}
