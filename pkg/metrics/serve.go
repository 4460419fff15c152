package metrics

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"

	"github.com/nth-project/nth/pkg/loop"
)

// The limits of the listener. Clients must not use up the memory or the file descriptors of a drain, and not keep others from the probes.
const (
	maxConnections = 128     // beyond that, a new connection closes one of the address that has most
	headerLimit    = 8 << 10 // bytes
	readTimeout    = 5 * time.Second
	writeTimeout   = 10 * time.Second
	idleTimeout    = 2 * time.Minute // longer than between two scrapes
)

// listenRetry is the pause before an address that could not be listened on is tried again.
const listenRetry = 5 * time.Second

// listen serves HTTP until ctx ends. If the address is in use, or the machine does not have it yet, listen reports that and tries again: nth
// must be able to drain without it.
func (m *Metrics) listen(ctx context.Context) {
	for ctx.Err() == nil {
		err := m.serve(ctx)
		if ctx.Err() != nil {
			return // serve has failed because ctx has ended.
		}
		m.setFault(listener, fmt.Errorf("serving metrics at %s: %w", m.opts.Listen, err))
		loop.Await(ctx, nil, listenRetry)
	}
}

// serve serves HTTP until ctx ends or the listener fails. The error is never nil.
func (m *Metrics) serve(ctx context.Context) error {
	var config net.ListenConfig
	socket, err := config.Listen(ctx, "tcp", m.opts.Listen)
	if err != nil {
		return err
	}
	m.setFault(listener, nil)
	server := &http.Server{
		Handler:           m.Handler(),
		ReadHeaderTimeout: readTimeout, ReadTimeout: readTimeout, WriteTimeout: writeTimeout, IdleTimeout: idleTimeout,
		MaxHeaderBytes: headerLimit, ConnState: (&connections{}).track,
	}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })() // This cuts off answers that are under way: nth must not wait for clients.
	return server.Serve(socket)
}

// Handler returns a handler for /metrics and /healthz. /healthz answers 200 if nth is alive, and 503 with a sentence if it is not. With
// Options.Ready, the handler also has /readyz, which answers 200 if nth can do its work now, and otherwise 503 with a sentence.
func (m *Metrics) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", m.answerMetrics)
	mux.HandleFunc("GET /healthz", m.probe(m.healthy))
	if m.opts.Ready != nil {
		mux.HandleFunc("GET /readyz", m.probe(m.ready))
	}
	return mux
}

// answerMetrics writes the metrics in Prometheus's text format. It encodes the whole answer before it writes, so that a slow reader does not
// hold up the next client's answer.
func (m *Metrics) answerMetrics(w http.ResponseWriter, r *http.Request) {
	text, err := m.encode(r.Context())
	if err != nil {
		http.Error(w, fmt.Sprintf("gathering metrics: %v", err), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", string(expfmt.NewFormat(expfmt.TypeTextPlain)))
	_, _ = w.Write(text) // An error means that the client has left.
}

// encode returns the metrics as text. One call gathers at a time, the others wait. A call that has waited uses the last answer if that was
// gathered after the call began. ctx is that of the HTTP request: it ends when the client hangs up, or when a newer connection takes its place.
func (m *Metrics) encode(ctx context.Context) ([]byte, error) {
	asked := time.Now()
	select {
	case m.encoding <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-m.encoding }()
	if m.gathered.After(asked) {
		return m.answer, nil
	}
	began := time.Now()
	families, err := prometheus.Gatherers{m.own, m.process}.Gather()
	if err != nil {
		return nil, err
	}
	var text bytes.Buffer
	for _, family := range families {
		if _, err := expfmt.MetricFamilyToText(&text, family); err != nil {
			return nil, err
		}
	}
	m.gathered, m.answer = began, text.Bytes()
	return m.answer, nil
}

// connections keeps maxConnections open at most: beyond that, a new connection closes the oldest of the address that has most. A probe opens
// one connection and is answered at once. So probes are served however many connections others open, and however slow these are.
type connections struct {
	mu   sync.Mutex
	open []net.Conn // the oldest first
}

// track is http.Server.ConnState: the server calls it for each connection that is new or has been closed.
func (c *connections) track(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch state {
	case http.StateNew:
		if len(c.open) >= maxConnections {
			surplus := c.oldestOfMost()
			_ = surplus.Close() // An error would mean that it is closed already.
			c.remove(surplus)
		}
		c.open = append(c.open, conn)
	case http.StateClosed:
		c.remove(conn)
	}
}

// remove forgets a connection. The mutex is held.
func (c *connections) remove(conn net.Conn) {
	c.open = slices.DeleteFunc(c.open, func(other net.Conn) bool { return other == conn })
}

// oldestOfMost returns the oldest connection of the client's address that has the most. The mutex is held.
func (c *connections) oldestOfMost() net.Conn {
	client := func(conn net.Conn) string {
		address, _, _ := net.SplitHostPort(conn.RemoteAddr().String()) // A TCP address has a port, so there is no error.
		return address
	}
	counts := map[string]int{}
	for _, conn := range c.open {
		counts[client(conn)]++
	}
	// open has the oldest first, and MaxFunc returns the first of equals.
	return slices.MaxFunc(c.open, func(a, b net.Conn) int { return counts[client(a)] - counts[client(b)] })
}

// probe returns a handler for /healthz or /readyz: it answers 503 with the error of check, or 200 with "ok" and what Options.Leader says.
func (m *Metrics) probe(check func() error) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		if err := check(); err != nil {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = fmt.Fprintln(w, err)
			return
		}
		_, _ = fmt.Fprintln(w, "ok")
		if m.opts.Leader != nil {
			_, _ = fmt.Fprintln(w, m.opts.Leader())
		}
	}
}

// writeFiles writes the file when a metric has changed, at most once per minInterval. If none has, it writes every maxInterval: the file's
// age shows whether nth is alive.
const (
	minInterval = time.Second
	maxInterval = 15 * time.Second
)

// writeFiles keeps the file for node_exporter up to date until ctx ends, and writes it a last time then.
func (m *Metrics) writeFiles(ctx context.Context) {
	write := func() { m.setFault(textfile, m.writeFile()) }
	defer write()
	ticks := time.NewTicker(maxInterval)
	defer ticks.Stop()
	for {
		write()
		if !loop.Await(ctx, nil, minInterval) { // until the file may be written again
			return
		}
		select { // until it has to be written again
		case <-ctx.Done():
			return
		case <-m.changed:
		case <-ticks.C:
		}
	}
}

// writeFile replaces the file atomically. It leaves out the metrics of the Go process: node_exporter has series of the same names, and serves
// nothing at all if a file has them, too.
func (m *Metrics) writeFile() error {
	err := prometheus.WriteToTextfile(m.opts.Textfile, m.own)
	if err == nil {
		return nil
	}
	if plain, ok := errors.AsType[syscall.Errno](err); ok {
		err = plain // err names a temporary file, another each time: setFault would report every attempt.
	}
	return fmt.Errorf("writing metrics to %s: %w", m.opts.Textfile, err)
}

// Troubles returns the current errors of the listener and the file, sorted.
func (m *Metrics) Troubles() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(maps.Values(m.faults))
}

// part is one of the two ways to export metrics, which can fail.
type part string

const (
	listener part = "listener"
	textfile part = "file"
)

// setFault keeps the current error of a part, for Troubles; nil if the part works. It calls Options.Trouble if the error differs from the
// last one.
func (m *Metrics) setFault(of part, err error) {
	m.mu.Lock()
	before := m.faults[of]
	delete(m.faults, of)
	if err != nil {
		m.faults[of] = err.Error()
	}
	changed := err != nil && err.Error() != before
	m.mu.Unlock()
	if changed && m.opts.Trouble != nil {
		m.opts.Trouble(err)
	}
}
