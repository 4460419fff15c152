package imdstest

import (
	"bytes"
	"crypto/rand"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/nth-project/nth/pkg/imds/standin"
)

// play lets a request meet a fault. It returns the HTTP status that was sent, 0 if none was.
func (s *Simulator) play(f *setFault, w http.ResponseWriter, r *http.Request) int {
	switch f.Kind {
	case Reset, Refuse:
		return s.reset(w)
	case Hang:
		return s.hang(f, w, r)
	case Slow:
		return s.drip(f, w, r)
	case Unauthorized:
		return s.send(w, standin.Answer{Status: http.StatusUnauthorized})
	case Status, TokenDown:
		return s.send(w, standin.Answer{Status: f.Status})
	case Garbage:
		return s.send(w, standin.Answer{Status: http.StatusOK, Body: garbage()})
	case Oversized:
		return s.flood(w, r)
	default:
		// A test that misspells a fault finds its name in the log of requests.
		return s.send(w, standin.Answer{Status: http.StatusNotImplemented})
	}
}

// reset sends the beginning of an answer and then an RST in place of the rest.
func (s *Simulator) reset(w http.ResponseWriter) int {
	connection, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		// There is no connection to reset, as with httptest.ResponseRecorder.
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
func (s *Simulator) hang(f *setFault, w http.ResponseWriter, r *http.Request) int {
	select {
	case <-f.lifted:
		return s.send(w, s.service.Answer(r))
	case <-r.Context().Done():
		return 0
	}
}

// drip sends the right answer byte by byte. Lifting the fault sends the rest at once.
func (s *Simulator) drip(f *setFault, w http.ResponseWriter, r *http.Request) int {
	a := s.service.Answer(r)
	s.traffic.answered(a.Status)
	body := a.Header(w)
	w.WriteHeader(a.Status)
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

// flood sends a JSON list of nothing but white space, so that neither a reader without a bound nor a decoder stops by
// itself.
func (s *Simulator) flood(w http.ResponseWriter, r *http.Request) int {
	const size = 1 << 30
	s.traffic.answered(http.StatusOK)
	standin.SetServer(w.Header())
	w.Header().Set("Content-Type", "text/plain")
	w.WriteHeader(http.StatusOK)
	_, _ = io.WriteString(w, "[")
	blank := bytes.Repeat([]byte(" "), 64<<10)
	for sent := 0; sent < size && r.Context().Err() == nil; sent += len(blank) {
		if _, err := w.Write(blank); err != nil {
			break
		}
	}
	return http.StatusOK
}

// garbage is bytes that no JSON document begins with.
func garbage() string {
	random := make([]byte, 256)
	_, _ = rand.Read(random) // never fails, by its documentation
	random[0] = 0x80
	return string(random)
}
