package apitest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"syscall"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// Client is a clientset for the server, without a limit of its own on requests. Its transport calls the server's handlers: that is much faster
// than HTTP, fails as a connection does, with the same errors in the same places, and can be used in a bubble of testing/synctest.
func (s *Server) Client() kubernetes.Interface {
	s.t.Helper()
	config := &rest.Config{Host: "http://apiserver.test", QPS: -1, Transport: s.RoundTripper()}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		s.t.Fatalf("making an HTTP client: %v", err)
	}
	set, err := kubernetes.NewForConfigAndClient(config, client)
	if err != nil {
		s.t.Fatalf("making a clientset: %v", err)
	}
	return set
}

// refused returns the error of a connection that the server refuses.
func refused(network string) error {
	return &net.OpError{Op: "dial", Net: network, Err: syscall.ECONNREFUSED}
}

// reset returns the error of a connection that breaks.
func reset() error { return &net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET} }

// GoAway breaks all connections and refuses new ones until ComeBack.
func (s *Server) GoAway() {
	s.mu.Lock()
	s.away = true
	s.mu.Unlock()
	s.disconnect()
}

// ComeBack accepts connections again.
func (s *Server) ComeBack() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away = false
}

// disconnect breaks all connections.
func (s *Server) disconnect() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.calls {
		c.leave(reset())
	}
}

// Close ends the server and its connections, and waits for its handlers. The test's end does so too.
func (s *Server) Close() {
	s.GoAway()
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.handlers.Wait()
}

// RoundTripper calls the server's handlers.
func (s *Server) RoundTripper() http.RoundTripper { return road{s} }

type road struct{ server *Server }

// RoundTrip answers as a server behind a connection would. The handler's context ends with the request's, with the
// response's body, or when the connections break.
func (r road) RoundTrip(req *http.Request) (*http.Response, error) {
	var body []byte
	if req.Body != nil {
		var err error
		body, err = io.ReadAll(req.Body)
		_ = req.Body.Close() // it has been read
		if err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithCancel(req.Context())
	c := &call{header: http.Header{}, status: http.StatusOK, ctx: req.Context(), cancel: cancel, answered: make(chan struct{})}
	if !r.server.enter(c) {
		cancel()
		return nil, refused("tcp")
	}
	asked := req.WithContext(ctx)
	asked.Body, asked.Host, asked.RequestURI = io.NopCloser(bytes.NewReader(body)), req.URL.Host, req.URL.RequestURI()
	go r.server.handle(c, asked)
	select {
	case <-c.answered:
		return c.response(req)
	case <-req.Context().Done():
		c.leave(req.Context().Err())
		return nil, req.Context().Err()
	}
}

// enter registers a call. It returns false if the server is away.
func (s *Server) enter(c *call) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.away {
		return false
	}
	s.handlers.Add(1)
	s.calls[c] = true
	return true
}

// handle has a call answered. A handler that panics with http.ErrAbortHandler breaks the connection, as in net/http.
func (s *Server) handle(c *call, r *http.Request) {
	defer s.handlers.Done()
	defer func() {
		s.mu.Lock()
		delete(s.calls, c)
		s.mu.Unlock()
		err := error(nil)
		switch why := recover(); why {
		case nil:
		case http.ErrAbortHandler:
			err = reset()
		default:
			panic(why)
		}
		c.end(err)
	}()
	s.mux.ServeHTTP(c, r)
}

// call is one request, and its http.ResponseWriter.
type call struct {
	ctx      context.Context // the client's
	cancel   context.CancelFunc
	answered chan struct{} // closed when there is a response, or none will come

	mu      sync.Mutex
	header  http.Header
	status  int
	buffer  bytes.Buffer   // what was written and not yet flushed
	stream  *io.PipeWriter // after the first flush
	body    io.ReadCloser
	detach  func() bool // stops watching whether the client leaves a stream
	settled bool        // answered is closed
	err     error
}

// Header implements http.ResponseWriter.
func (c *call) Header() http.Header { return c.header }

// WriteHeader implements http.ResponseWriter.
func (c *call) WriteHeader(status int) { c.status = status }

// Write implements http.ResponseWriter.
func (c *call) Write(text []byte) (int, error) { return c.buffer.Write(text) }

// FlushError sends what was written. It waits until the client has read it, or left.
func (c *call) FlushError() error {
	c.mu.Lock()
	if c.stream == nil && c.err == nil {
		var body *io.PipeReader
		body, c.stream = io.Pipe()
		c.body = leaving{body, c}
		c.detach = context.AfterFunc(c.ctx, func() { c.leave(c.ctx.Err()) }) // nobody reads any more
	}
	c.settle()
	stream, err := c.stream, c.err
	c.mu.Unlock()
	if err != nil {
		return err
	}
	if c.buffer.Len() == 0 {
		return nil
	}
	_, err = c.buffer.WriteTo(stream)
	return err
}

// settle lets RoundTrip return. The caller holds the lock.
func (c *call) settle() {
	if !c.settled {
		c.settled = true
		close(c.answered)
	}
}

// leave ends a call from the client's side, or from the network's.
func (c *call) leave(err error) {
	c.cancel()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = err
	}
	if c.stream != nil {
		_ = c.stream.CloseWithError(err) // never fails
	}
	c.settle()
}

// end ends a call when its handler has returned.
func (c *call) end(err error) {
	if err != nil {
		c.leave(err)
		return
	}
	if c.streams() {
		err = c.FlushError()
	}
	c.cancel()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stream != nil {
		c.detach()
		_ = c.stream.CloseWithError(err) // never fails; nil is the end
	} else {
		c.body = io.NopCloser(&c.buffer)
	}
	c.settle()
}

// streams reports whether the handler has flushed, so that the client reads a stream.
func (c *call) streams() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stream != nil
}

// response returns what RoundTrip returns once the call is answered.
func (c *call) response(req *http.Request) (*http.Response, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil && c.stream == nil {
		return nil, c.err
	}
	return &http.Response{
		Status: http.StatusText(c.status), StatusCode: c.status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: c.header.Clone(), Body: c.body, ContentLength: -1, Request: req,
	}, nil
}

// leaving is the body of a response that streams. When the client closes it, the handler's context ends.
type leaving struct {
	*io.PipeReader
	call *call
}

var errLeft = errors.New("the client has left")

// Close implements io.Closer.
func (l leaving) Close() error {
	l.call.cancel()
	return l.PipeReader.CloseWithError(errLeft)
}
