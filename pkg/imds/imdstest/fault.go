package imdstest

import (
	"io"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/nth-project/nth/pkg/imds/standin"
)

// Kind is a kind of fault.
type Kind string

// The kinds of faults.
const (
	// Reset begins an answer and then resets the connection.
	Reset Kind = "reset"
	// Hang accepts the request and answers it, properly, only once the fault is over.
	Hang Kind = "hang"
	// Unavailable answers with the HTTP status 503.
	Unavailable Kind = "unavailable"
	// Garbage answers 200 with bytes that are not JSON.
	Garbage Kind = "garbage"
)

// Kinds lists all kinds of faults.
func Kinds() []Kind { return []Kind{Reset, Hang, Unavailable, Garbage} }

// Fault is a fault of the service. It affects all requests. If several are set, the last one counts.
type Fault struct {
	Kind Kind
	// For is how long the fault lasts.
	For time.Duration
}

// setFault is a fault that is set.
type setFault struct {
	Fault
	over chan struct{} // closed when the fault is over
}

// Fault breaks the service for as long as the fault says.
func (s *Server) Fault(f Fault) {
	set := &setFault{f, make(chan struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, set)
	time.AfterFunc(f.For, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.faults = slices.DeleteFunc(s.faults, func(other *setFault) bool { return other == set })
		close(set.over)
	})
}

// newestFault returns the fault that affects a request now; nil if there is none.
func (s *Server) newestFault() *setFault {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.faults) == 0 {
		return nil
	}
	return s.faults[len(s.faults)-1]
}

// inject answers a request, or does not, as the kind of fault says.
func (s *Server) inject(f *setFault, w http.ResponseWriter, r *http.Request) {
	switch f.Kind {
	case Reset:
		s.reset(w)
	case Hang: // Wait until the fault is over, or the client has left.
		select {
		case <-f.over:
			s.send(w, s.Answer(r))
		case <-r.Context().Done():
		}
	case Garbage:
		s.send(w, standin.Answer{Status: http.StatusOK, Body: "\x80no document"})
	default: // Unavailable
		s.send(w, standin.Answer{Status: http.StatusServiceUnavailable})
	}
}

// reset sends the beginning of an answer and then an RST.
func (s *Server) reset(w http.ResponseWriter) {
	connection, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		s.send(w, standin.Answer{Status: http.StatusInternalServerError})
		return
	}
	_, _ = io.WriteString(connection, "HTTP/1.1 200 OK\r\nServer: EC2ws\r\nConnection: close\r\nContent-Length: 64\r\n\r\n{")
	if tcp, ok := connection.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // Close sends an RST.
	}
	_ = connection.Close()
}
