package imds

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
)

// lineBuffer is enough for a request, and for the header of an answer as EC2 gives it, in bytes.
const lineBuffer = 1 << 10

// direct makes each request on a connection of its own, in the goroutine that asks. That is all that is left to do where
// EC2 closes the connection after each answer: a Transport has three more goroutines for each, and what they tell one
// another is a good part of what an idle nth costs.
type direct struct{ dial dialer }

// RoundTrip implements http.RoundTripper, for requests without a body. The connection ends with the answer's body, or
// with the request's context.
func (d direct) RoundTrip(r *http.Request) (*http.Response, error) {
	address := net.JoinHostPort(r.URL.Hostname(), cmp.Or(r.URL.Port(), "80"))
	conn, err := d.dial(r.Context(), "tcp", address)
	if err != nil {
		return nil, &connectError{err}
	}
	stop := context.AfterFunc(r.Context(), func() { _ = conn.Close() })
	resp, err := exchangeOn(conn, r)
	if err != nil {
		stop()
		_ = conn.Close()
		return nil, cmp.Or(r.Context().Err(), err)
	}
	resp.Body = lastBody{ReadCloser: resp.Body, conn: conn, over: r.Context().Err, stop: stop}
	return resp, nil
}

// exchangeOn sends the request and reads the answer up to its body.
func exchangeOn(conn net.Conn, r *http.Request) (*http.Response, error) {
	last := r.WithContext(r.Context()) // a copy: r is not ours to change
	last.Close = true
	out := bufio.NewWriterSize(conn, lineBuffer)
	if err := last.Write(out); err != nil {
		return nil, err
	}
	if err := out.Flush(); err != nil {
		return nil, err
	}
	header := &io.LimitedReader{R: conn, N: headerLimit}
	in := bufio.NewReaderSize(header, lineBuffer)
	for {
		resp, err := http.ReadResponse(in, r)
		switch {
		case err != nil && header.N <= 0:
			return nil, fmt.Errorf("the answer's header is longer than %d KiB", headerLimit>>10)
		case err != nil:
			return nil, err
		case resp.StatusCode >= http.StatusOK: // what is below announces another answer
			header.N = math.MaxInt64
			return resp, nil
		}
	}
}

// lastBody is the body of the only answer on a connection.
type lastBody struct {
	io.ReadCloser
	conn net.Conn
	over func() error // of the request's context
	stop func() bool  // the watch over it
}

// Read implements io.Reader. What is read from a connection that has ended with the request's context is its error.
func (b lastBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = cmp.Or(b.over(), err)
	}
	return n, err
}

// Close implements io.Closer.
func (b lastBody) Close() error {
	b.stop()
	return b.conn.Close()
}
