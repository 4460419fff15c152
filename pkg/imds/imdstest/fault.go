package imdstest

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/nth-project/nth/pkg/imds/standin"
)

// Kind is a kind of fault.
type Kind string

// The kinds of faults.
const (
	// Reset begins an answer and then resets the connection.
	Reset Kind = "reset"
	// Hang accepts the request and answers it, properly, only once the fault is lifted.
	Hang Kind = "hang"
	// Slow sends the right answer byte by byte over the time Fault.Over.
	Slow Kind = "slow"
	// Status answers with the HTTP status Fault.Status.
	Status Kind = "status"
	// Garbage answers 200 with bytes that are not JSON.
	Garbage Kind = "garbage"
	// Oversized answers 200 with a body of 1 GiB that looks like the beginning of a JSON list up to its end.
	Oversized Kind = "oversized"
)

// Kinds lists all kinds of faults.
func Kinds() []Kind {
	return []Kind{Reset, Hang, Slow, Status, Garbage, Oversized}
}

// Fault is a fault of the service. Several can be set; a request meets the last one that matches it.
type Fault struct {
	Kind Kind
	// Path limits the fault to documents below it: "/latest/meta-data/spot" or "meta-data/spot". Empty means all, requests
	// for tokens included.
	Path string
	// Status is the status that Status answers with; 500 unless given. With 401 and Path "meta-data", no token is good enough.
	Status int
	// Over is how long a Slow answer takes; 30 seconds unless given.
	Over time.Duration
	// For is after how long the fault is lifted; never unless given.
	For time.Duration
}

// String describes the fault in a few words.
func (f Fault) String() string {
	text := string(f.Kind)
	switch f.Kind {
	case Status:
		text += fmt.Sprintf(" %d", f.Status)
	case Slow:
		text += fmt.Sprintf(" over %v", f.Over)
	}
	if f.Path != "" {
		text += " on " + f.Path
	}
	if f.For > 0 {
		text += fmt.Sprintf(" for %v", f.For)
	}
	return text
}

// setFault is a fault that is set.
type setFault struct {
	Fault
	lifted chan struct{} // closed when it is lifted
}

func (f *setFault) meets(r *http.Request) bool {
	_, path := standin.SplitVersion(r.URL.Path)
	prefix := standin.DocumentPath(f.Path)
	return prefix == "" || path == prefix || strings.HasPrefix(path, prefix+"/")
}

// Fault breaks the service until Lift, or for as long as the fault says. It returns the fault in a few words.
func (s *Server) Fault(f Fault) string {
	if f.Kind == Status && f.Status == 0 {
		f.Status = http.StatusInternalServerError
	}
	if f.Kind == Slow && f.Over <= 0 {
		f.Over = 30 * time.Second
	}
	set := &setFault{f, make(chan struct{})}
	if f.For > 0 {
		time.AfterFunc(f.For, func() { s.lift(func(other *setFault) bool { return other == set }) })
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, set)
	return f.String()
}

// Lift repairs the service: no fault is left, and requests that hang are answered.
func (s *Server) Lift() { s.lift(func(*setFault) bool { return true }) }

func (s *Server) lift(which func(*setFault) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = slices.DeleteFunc(s.faults, func(f *setFault) bool {
		if !which(f) {
			return false
		}
		close(f.lifted)
		return true
	})
}

// Faults lists the faults that are set.
func (s *Server) Faults() []Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]Fault, len(s.faults))
	for i, f := range s.faults {
		list[i] = f.Fault
	}
	return list
}

// faultOf returns the newest fault that a request meets; nil if there is none.
func (s *Server) faultOf(r *http.Request) *setFault {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, fault := range slices.Backward(s.faults) {
		if fault.meets(r) {
			return fault
		}
	}
	return nil
}

// inject answers a request as a fault has it. It returns the HTTP status, 0 if there was none.
func (s *Server) inject(f *setFault, w http.ResponseWriter, r *http.Request) int {
	switch f.Kind {
	case Reset:
		return s.reset(w)
	case Hang:
		return s.hang(f, w, r)
	case Slow:
		return s.drip(f, w, r)
	case Status:
		return s.send(w, standin.Answer{Status: f.Status})
	case Garbage:
		return s.send(w, standin.Answer{Status: http.StatusOK, Body: "\x80no document"})
	case Oversized:
		return s.flood(w, r)
	default:
		return s.send(w, standin.Answer{Status: http.StatusNotImplemented})
	}
}

// reset sends the beginning of an answer and then an RST.
func (s *Server) reset(w http.ResponseWriter) int {
	connection, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return s.send(w, standin.Answer{Status: http.StatusInternalServerError})
	}
	_, _ = io.WriteString(connection, "HTTP/1.1 200 OK\r\nServer: EC2ws\r\nConnection: close\r\nContent-Length: 64\r\n\r\n{")
	if tcp, ok := connection.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = connection.Close()
	return 0
}

// hang holds the request until the fault is lifted or the client has left.
func (s *Server) hang(f *setFault, w http.ResponseWriter, r *http.Request) int {
	select {
	case <-f.lifted:
		return s.send(w, s.Answer(r))
	case <-r.Context().Done():
		return 0
	}
}

// drip sends the right answer byte by byte. Lifting the fault sends the rest at once.
func (s *Server) drip(f *setFault, w http.ResponseWriter, r *http.Request) int {
	a := s.Answer(r)
	body := a.Header(w)
	s.begin(w, a.Status)
	_ = http.NewResponseController(w).Flush()

	tick := time.NewTicker(max(f.Over/time.Duration(len(body)+1), time.Millisecond))
	defer tick.Stop()
	for ; len(body) > 0; body = body[1:] {
		select {
		case <-tick.C:
		case <-f.lifted:
			_, _ = w.Write(body)
			return a.Status
		case <-r.Context().Done():
			return a.Status
		}
		_, _ = w.Write(body[:1])
		_ = http.NewResponseController(w).Flush()
	}
	return a.Status
}

// flood sends a JSON list of nothing but white space, so that neither an unbounded reader nor a decoder stops by itself.
func (s *Server) flood(w http.ResponseWriter, r *http.Request) int {
	const size = 1 << 30
	standin.SetServer(w.Header())
	w.Header().Set("Content-Type", "text/plain")
	s.begin(w, http.StatusOK)
	_, _ = io.WriteString(w, "[")
	blank := bytes.Repeat([]byte(" "), 64<<10)
	for sent := 0; sent < size && r.Context().Err() == nil; sent += len(blank) {
		if _, err := w.Write(blank); err != nil {
			break
		}
	}
	return http.StatusOK
}
