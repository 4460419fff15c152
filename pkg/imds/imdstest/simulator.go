package imdstest

import (
	"fmt"
	"io"
	"net/http"
	"sync"

	"github.com/nth-project/nth/pkg/imds/standin"
)

// Simulator is the metadata service of one instance. It is an http.Handler; Server puts it on a port.
type Simulator struct {
	service *standin.Service
	faults  faults
	traffic traffic
	delayed delayed

	// announcing serializes the changes that touch more than one document.
	announcing sync.Mutex
	scheduled  []MaintenanceEvent
	history    []MaintenanceEvent

	watching  sync.Mutex
	onChange  func(change string)
	onRequest func(Exchange)
	// onFaults is told after each change of the set of faults, so that a Server can close or open its port.
	onFaults func()
}

// New returns the metadata service of a healthy spot instance for which nothing is announced.
func New() *Simulator {
	s := &Simulator{service: standin.New()}
	s.SetMaintenance()
	s.SetHistory()
	return s
}

// ServeHTTP answers as EC2 would, unless a fault says otherwise.
func (s *Simulator) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// net/http notices that a client has left only once the request's body is read. No request to EC2 has a long one.
	_, _ = io.Copy(io.Discard, io.LimitReader(r.Body, 64<<10))
	_, document := standin.SplitVersion(r.URL.Path)
	s.traffic.begin(r.URL.Path, r.Method == http.MethodPut && document == "api/token")
	defer s.traffic.end()

	exchange := Exchange{Method: r.Method, Path: r.URL.Path}
	if fault, broken := s.faults.match(r); broken {
		exchange.Fault = fault.String()
		exchange.Status = s.play(fault, w, r)
	} else {
		exchange.Status = s.send(w, s.service.Answer(r))
	}
	s.tellRequest(exchange)
}

// send writes an answer and returns its status.
func (s *Simulator) send(w http.ResponseWriter, a standin.Answer) int {
	s.traffic.answered(a.Status)
	body := a.Header(w)
	w.WriteHeader(a.Status)
	// The client may have left; nothing is to be done about that.
	_, _ = w.Write(body)
	return a.Status
}

// Exchange is one request and what became of it.
type Exchange struct {
	Method, Path string
	// Status is the HTTP status that was sent, 0 if none was.
	Status int
	// Fault describes the fault that met the request; empty if none did.
	Fault string
}

// OnChange has f called with one sentence for each change of what is served. It replaces an earlier f.
// f must not call the Simulator.
func (s *Simulator) OnChange(f func(change string)) {
	s.watching.Lock()
	defer s.watching.Unlock()
	s.onChange = f
}

// OnRequest has f called after each request. It replaces an earlier f. f must not call the Simulator.
func (s *Simulator) OnRequest(f func(Exchange)) {
	s.watching.Lock()
	defer s.watching.Unlock()
	s.onRequest = f
}

func (s *Simulator) tellChange(format string, args ...any) {
	s.watching.Lock()
	defer s.watching.Unlock()
	if s.onChange != nil {
		s.onChange(fmt.Sprintf(format, args...))
	}
}

func (s *Simulator) tellRequest(e Exchange) {
	s.watching.Lock()
	defer s.watching.Unlock()
	if s.onRequest != nil {
		s.onRequest(e)
	}
}
