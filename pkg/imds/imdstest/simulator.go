// Package imdstest simulates EC2's instance metadata service, version 2, for tests and for nth-imds.
//
// A test starts a Server on a free port, as it would with net/http/httptest, lets EC2 announce something, and breaks
// the service where it likes:
//
//	srv := imdstest.NewServer()
//	defer srv.Close()
//	srv.SetSpot("terminate", time.Now().Add(2*time.Minute))
//	srv.Fault(imdstest.Fault{Kind: imdstest.Hang, For: time.Second})
//
// The documents, the tokens and the protocol are those of pkg/imds/standin. This package adds announcements (announce.go),
// faults (fault.go) and counts of the requests.
//
// Everything is safe for concurrent use. A change is visible to every request that begins after the call returned.
package imdstest

import (
	"context"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"time"

	"github.com/nth-project/nth/pkg/imds/standin"
)

// The instance, of which Set changes any document.
const (
	InstanceID       = standin.InstanceID
	InstanceType     = standin.InstanceType
	AvailabilityZone = standin.AvailabilityZone
	Region           = standin.Region
	// Role is the instance's IAM role. Its credentials are made up and open nothing.
	Role = standin.Role
)

// Server is the metadata service of one instance, on a port of its own.
type Server struct {
	*standin.Service
	// URL is "http://127.0.0.1:PORT", without a slash at its end.
	URL string

	http *httptest.Server
	mux  *http.ServeMux

	mu        sync.Mutex
	faults    []*setFault // in the order in which they were set
	scheduled []MaintenanceEvent
	history   []MaintenanceEvent
	counts    Counts
	counted   chan struct{} // closed when counts change
}

// NewServer starts a Server on a free port of 127.0.0.1. Like httptest.NewServer it panics if there is none.
func NewServer() *Server {
	s, err := Listen("127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	return s
}

// Listen starts a Server on a TCP address such as "127.0.0.1:1338". It serves a healthy spot instance for which nothing is announced.
func Listen(address string) (*Server, error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("opening the metadata service's port: %w", err)
	}
	s := &Server{
		Service: standin.New(), mux: http.NewServeMux(),
		counts: Counts{ByPath: map[string]int{}, ByStatus: map[int]int{}}, counted: make(chan struct{}),
	}
	s.mux.HandleFunc("/", s.serve)
	s.http = &httptest.Server{Listener: listener, Config: &http.Server{
		Handler: s.mux, ReadHeaderTimeout: time.Minute, ErrorLog: log.New(io.Discard, "", 0), // net/http need not report clients that reset or leave.
	}}
	s.http.Start()
	s.URL = s.http.URL
	return s, nil
}

// Handle serves handler at a path that EC2's service does not have. Faults do not affect it.
func (s *Server) Handle(path string, handler http.Handler) { s.mux.Handle(path, handler) }

// Close cuts all connections and waits for their handlers.
func (s *Server) Close() {
	s.http.CloseClientConnections()
	s.http.Close()
}

// serve answers as EC2 would, unless a fault says otherwise.
func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	// net/http notices that a client has left only once the request's body is read.
	_, _ = io.Copy(io.Discard, io.LimitReader(r.Body, 64<<10))
	_, document := standin.SplitVersion(r.URL.Path)
	s.count(func(c *Counts) {
		c.Total++
		c.ByPath[r.URL.Path]++
		if r.Method == http.MethodPut && document == "api/token" {
			c.Tokens++
		}
	})
	if fault := s.newestFault(); fault != nil {
		s.inject(fault, w, r)
		return
	}
	s.send(w, s.Answer(r))
}

// send counts an answer and writes it. It counts first, so that a client that has read the answer finds it counted.
func (s *Server) send(w http.ResponseWriter, a standin.Answer) {
	body := a.Header(w)
	s.count(func(c *Counts) { c.ByStatus[a.Status]++ })
	w.WriteHeader(a.Status)
	_, _ = w.Write(body) // The client may have left.
}

// Counts counts the requests to a Server since it was started.
type Counts struct {
	// Total counts all requests when they begin, those for tokens included.
	Total int
	// Tokens counts the requests for a token.
	Tokens int
	// ByPath counts the requests by their path, such as /latest/meta-data/spot/instance-action.
	ByPath map[string]int
	// ByStatus counts the answers by HTTP status. Requests that a fault left without an answer are not in it.
	ByStatus map[int]int
}

// count changes the counts, and wakes Await.
func (s *Server) count(change func(*Counts)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.counts)
	close(s.counted)
	s.counted = make(chan struct{})
}

// Requests returns the current counts.
func (s *Server) Requests() Counts {
	counts, _ := s.read()
	return counts
}

// read returns the counts and a channel that is closed when they change.
func (s *Server) read() (Counts, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	counts := s.counts
	counts.ByPath, counts.ByStatus = maps.Clone(counts.ByPath), maps.Clone(counts.ByStatus)
	return counts, s.counted
}

// Await waits until reached returns true for the counts. It returns an error if ctx ends first.
func (s *Server) Await(ctx context.Context, reached func(Counts) bool) error {
	for {
		counts, changed := s.read()
		if reached(counts) {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("awaiting requests, %d so far: %w", counts.Total, ctx.Err())
		}
	}
}
