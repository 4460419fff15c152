package imdstest

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
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
	// Unauthorized refuses every token with 401. Tokens are still handed out.
	Unauthorized Kind = "401"
	// Garbage answers 200 with random bytes that are not JSON.
	Garbage Kind = "garbage"
	// Oversized answers 200 with a body of 1 GiB that looks like the beginning of a JSON list up to its end.
	Oversized Kind = "oversized"
	// TokenDown answers requests for a token with Fault.Status, 500 unless given. For a token endpoint that hangs or
	// resets, use Hang or Reset with the Path /latest/api/token.
	TokenDown Kind = "token-down"
	// Refuse closes the port, so that connections are refused, and opens it again when lifted. It affects all paths, and
	// needs a Server: a bare Simulator resets connections instead.
	Refuse Kind = "refuse"
)

// Kinds lists all kinds of faults.
func Kinds() []Kind {
	return []Kind{Reset, Hang, Slow, Status, Unauthorized, Garbage, Oversized, TokenDown, Refuse}
}

// Fault is a fault of the service. Several can be set; a request meets the last one that matches it.
type Fault struct {
	Kind Kind
	// Path limits the fault to documents below it: "/latest/meta-data/spot" or "meta-data/spot". Empty means all, requests
	// for tokens included.
	Path string
	// Status is the status that Status and TokenDown answer with; 500 unless given.
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
	case Status, TokenDown:
		text += fmt.Sprintf(" %d", f.Status)
	case Slow:
		text += fmt.Sprintf(" over %v", f.Over)
	}
	if f.Path != "" && f.Kind != TokenDown {
		text += " on " + f.Path
	}
	if f.For > 0 {
		text += fmt.Sprintf(" for %v", f.For)
	}
	return text
}

// complete fills in defaults.
func (f Fault) complete() Fault {
	switch {
	case (f.Kind == Status || f.Kind == TokenDown) && f.Status == 0:
		f.Status = http.StatusInternalServerError
	case f.Kind == Slow && f.Over <= 0:
		f.Over = 30 * time.Second
	}
	if f.Kind == TokenDown {
		f.Path = "/latest/api/token"
	}
	return f
}

func (f Fault) meets(r *http.Request) bool {
	_, path := standin.SplitVersion(r.URL.Path)
	token := path == "api/token"
	if f.Kind == Unauthorized && token {
		return false
	}
	prefix := standin.DocumentPath(f.Path)
	return prefix == "" || path == prefix || strings.HasPrefix(path, prefix+"/")
}

// Fault breaks the service until Lift, or for as long as the fault says. It returns the fault in a few words.
func (s *Simulator) Fault(f Fault) string {
	f = f.complete()
	s.faults.add(f, s.lift)
	s.faultsChanged()
	s.reportChange("fault: %s", f)
	return f.String()
}

// Lift repairs the service: no fault is left, and requests that hang are answered.
func (s *Simulator) Lift() {
	for _, f := range s.faults.all() {
		s.lift(f)
	}
}

// Faults lists the faults that are set.
func (s *Simulator) Faults() []Fault {
	set := s.faults.all()
	list := make([]Fault, len(set))
	for i, f := range set {
		list[i] = f.Fault
	}
	return list
}

func (s *Simulator) lift(f *setFault) {
	if s.faults.remove(f) {
		s.faultsChanged()
		s.reportChange("fault lifted: %s", f)
	}
}

func (s *Simulator) faultsChanged() {
	s.watching.Lock()
	reconcile := s.onFaults
	s.watching.Unlock()
	if reconcile != nil {
		reconcile()
	}
}

func (s *Simulator) refusing() bool {
	return slices.ContainsFunc(s.faults.all(), func(f *setFault) bool { return f.Kind == Refuse })
}

// faults are the active faults, in the order in which they were set.
type faults struct {
	mu  sync.Mutex
	set []*setFault
}

type setFault struct {
	Fault
	lifted chan struct{} // closed when it is lifted
	timer  *time.Timer
}

// add activates a fault. lift is called when its time is over.
func (f *faults) add(fault Fault, lift func(*setFault)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	set := &setFault{Fault: fault, lifted: make(chan struct{})}
	if fault.For > 0 {
		set.timer = time.AfterFunc(fault.For, func() { lift(set) })
	}
	f.set = append(f.set, set)
}

// match returns the newest fault that a request meets.
func (f *faults) match(r *http.Request) (*setFault, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, fault := range slices.Backward(f.set) {
		if fault.meets(r) {
			return fault, true
		}
	}
	return nil, false
}

func (f *faults) all() []*setFault {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.set)
}

// remove deactivates a fault and releases the requests that it holds. It returns false if the fault was not active.
func (f *faults) remove(fault *setFault) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	i := slices.Index(f.set, fault)
	if i < 0 {
		return false
	}
	f.set = slices.Delete(f.set, i, i+1)
	if fault.timer != nil {
		fault.timer.Stop()
	}
	close(fault.lifted)
	return true
}

// inject answers a request as a fault has it. It returns the HTTP status, 0 if there was none.
func (s *Simulator) inject(f *setFault, w http.ResponseWriter, r *http.Request) int {
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
		return s.send(w, standin.Answer{Status: http.StatusNotImplemented})
	}
}

// reset sends the beginning of an answer and then an RST.
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

// flood sends a JSON list of nothing but white space, so that neither an unbounded reader nor a decoder stops by itself.
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
