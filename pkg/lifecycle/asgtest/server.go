package asgtest

import "net/http/httptest"

// Server is a Service on a port of its own.
type Server struct {
	*Service
	// URL is "http://127.0.0.1:PORT".
	URL string

	http *httptest.Server
}

// NewServer starts a Server on a free port of 127.0.0.1.
func NewServer() *Server {
	s := &Server{Service: New()}
	s.http = httptest.NewServer(s.Service)
	s.URL = s.http.URL
	return s
}

// Close ends the service: connections are cut, requests that hang as well.
func (s *Server) Close() {
	s.http.CloseClientConnections()
	s.http.Close()
}
