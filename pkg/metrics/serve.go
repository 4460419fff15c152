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
)

// The limits of the listener. Clients must not use up the memory or the file descriptors of a drain, and not keep others from the probes.
const (
	maxConnections = 128     // beyond that, one of the address that has most is closed
	headerLimit    = 8 << 10 // bytes
	readTimeout    = 5 * time.Second
	writeTimeout   = 10 * time.Second
	idleTimeout    = 2 * time.Minute // longer than between two scrapes
)

// listenRetry is the pause before an address that could not be listened on is tried again.
const listenRetry = 5 * time.Second

// listen serves until ctx ends. An address that is in use, or not there yet, is retried: a drain must not fail for it.
func (m *Metrics) listen(ctx context.Context) {
	for ctx.Err() == nil {
		err := m.serve(ctx)
		if ctx.Err() != nil {
			return
		}
		m.note("listener", fmt.Errorf("serving metrics at %s: %w", m.opts.Listen, err))
		select {
		case <-ctx.Done():
		case <-time.After(listenRetry):
		}
	}
}

// serve serves until ctx ends or it fails.
func (m *Metrics) serve(ctx context.Context) error {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", m.opts.Listen)
	if err != nil {
		return err
	}
	m.note("listener", nil)
	server := &http.Server{
		Handler:           m.Handler(),
		ReadHeaderTimeout: readTimeout, ReadTimeout: readTimeout, WriteTimeout: writeTimeout, IdleTimeout: idleTimeout,
		MaxHeaderBytes: headerLimit, ConnState: (&connections{}).track,
	}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })() // A client that reads its answer then does not get all of it.
	return server.Serve(listener)
}

// Handler serves /metrics, and /healthz: 200 if nth is alive, and 503 with a
// sentence if it is not; with Options.Ready also /readyz, which says the same of whether the work can be done.
func (m *Metrics) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", m.answerMetrics)
	mux.HandleFunc("GET /healthz", m.probe(m.healthy))
	if m.opts.Ready != nil {
		mux.HandleFunc("GET /readyz", m.probe(m.ready))
	}
	return mux
}

// answerMetrics encodes one answer at a time, in Prometheus's text format, and writes it when it is whole: a slow reader holds up nobody.
func (m *Metrics) answerMetrics(w http.ResponseWriter, r *http.Request) {
	text, err := m.encode(r.Context())
	if err != nil {
		http.Error(w, fmt.Sprintf("gathering metrics: %v", err), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", string(expfmt.NewFormat(expfmt.TypeTextPlain)))
	_, _ = w.Write(text) // The reader may be gone.
}

// encode returns an answer, once it is its turn: one that was gathered after the request came, also if that was for another request. The
// context is the request's: it ends when the client hangs up, or when a newer one gets its place.
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

// connections keeps maxConnections open: a new connection closes the oldest of the address that has most. So a probe, which opens one
// and is answered at once, is served however many connections are idle or slow, and however fast another machine opens them.
type connections struct {
	mu   sync.Mutex
	open []net.Conn // the oldest first
}

// track implements http.Server.ConnState, which is called for each connection: when it is new, and when it has ended.
func (c *connections) track(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch state {
	case http.StateNew:
		if len(c.open) >= maxConnections {
			surplus := c.oldestOfMost()
			_ = surplus.Close()
			c.remove(surplus)
		}
		c.open = append(c.open, conn)
	case http.StateClosed:
		c.remove(conn)
	}
}

func (c *connections) remove(conn net.Conn) {
	c.open = slices.DeleteFunc(c.open, func(other net.Conn) bool { return other == conn })
}

// oldestOfMost returns the oldest connection of the address that has the most. open has the oldest first, and MaxFunc returns the first of
// equals. The mutex is held.
func (c *connections) oldestOfMost() net.Conn {
	from := func(conn net.Conn) string {
		address, _, _ := net.SplitHostPort(conn.RemoteAddr().String()) // It has a port.
		return address
	}
	counts := map[string]int{}
	for _, conn := range c.open {
		counts[from(conn)]++
	}
	return slices.MaxFunc(c.open, func(a, b net.Conn) int { return counts[from(a)] - counts[from(b)] })
}

// probe returns a handler that answers 200 with "ok" and who leads, or 503 with the error of a check.
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

// The file is written when something has changed, at most once per minInterval, and every maxInterval if nothing has: its
// age shows whether nth is alive.
const (
	minInterval = time.Second
	maxInterval = 15 * time.Second
)

// writeFiles writes the file until ctx ends, and once more then.
func (m *Metrics) writeFiles(ctx context.Context) {
	write := func() { m.note("file", m.writeFile()) }
	defer write()
	ticks := time.NewTicker(maxInterval)
	defer ticks.Stop()
	for {
		write()
		select { // until the file may be written again
		case <-ctx.Done():
			return
		case <-time.After(minInterval):
		}
		select { // until it has to be
		case <-ctx.Done():
			return
		case <-m.changed:
		case <-ticks.C:
		}
	}
}

// writeFile replaces the file atomically. The process's own metrics are left out: node_exporter has series of the same names, and serves
// nothing at all if a file has them, too.
func (m *Metrics) writeFile() error {
	err := prometheus.WriteToTextfile(m.opts.Textfile, m.own)
	if err == nil {
		return nil
	}
	if plain, ok := errors.AsType[syscall.Errno](err); ok { // Around it is the name of a temporary file, which is another each time.
		err = plain
	}
	return fmt.Errorf("writing metrics to %s: %w", m.opts.Textfile, err)
}

// Troubles returns the current errors of the listener and the file.
func (m *Metrics) Troubles() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(maps.Values(m.faults))
}

// note keeps the current error of a part, nil if it works, and reports it once for as long as it stays the same.
func (m *Metrics) note(part string, err error) {
	m.mu.Lock()
	before := m.faults[part]
	delete(m.faults, part)
	if err != nil {
		m.faults[part] = err.Error()
	}
	news := err != nil && err.Error() != before
	m.mu.Unlock()
	if news && m.opts.Trouble != nil {
		m.opts.Trouble(err)
	}
}
