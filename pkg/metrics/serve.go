package metrics

import (
	"bytes"
	"context"
	"errors"
	"fmt"
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
		m.listenFault.set(fmt.Errorf("serving metrics at %s: %w", m.opts.Listen, err))
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
	m.listenFault.set(nil)
	server := &http.Server{
		Handler:           m.Handler(),
		ReadHeaderTimeout: readTimeout, ReadTimeout: readTimeout, WriteTimeout: writeTimeout, IdleTimeout: idleTimeout,
		MaxHeaderBytes: headerLimit,
	}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })() // A client that reads its answer then does not get all of it.
	return server.Serve(&boundedListener{Listener: listener})
}

// Handler serves /metrics, in the formats that Prometheus accepts, and /healthz: 200 if nth is alive, and 503 with a
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

// answerMetrics encodes one answer at a time, and writes it when it is whole: a slow reader holds up nobody.
func (m *Metrics) answerMetrics(w http.ResponseWriter, r *http.Request) {
	format := expfmt.Negotiate(r.Header)
	text, err := m.encode(r.Context(), format)
	if err != nil {
		http.Error(w, fmt.Sprintf("gathering metrics: %v", err), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", string(format))
	_, _ = w.Write(text) // The reader may be gone.
}

// encode returns an answer, once it is its turn. The context is the request's: it ends when the client hangs up, or when a newer one gets its
// place.
func (m *Metrics) encode(ctx context.Context, format expfmt.Format) ([]byte, error) {
	select {
	case m.encoding <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-m.encoding }()
	families, err := prometheus.Gatherers{m.own, m.process}.Gather()
	if err != nil {
		return nil, err
	}
	var text bytes.Buffer
	encoder := expfmt.NewEncoder(&text, format)
	for _, family := range families {
		if err := encoder.Encode(family); err != nil {
			return nil, err
		}
	}
	if closer, ok := encoder.(expfmt.Closer); ok {
		err = closer.Close()
	}
	return text.Bytes(), err
}

// boundedListener keeps maxConnections open: a new connection closes the oldest of the address that has most. So a probe, which opens one
// and is answered at once, is served however many connections are idle or slow, and however fast another machine opens them.
type boundedListener struct {
	net.Listener

	mu   sync.Mutex
	open []*boundedConn // the oldest first
}

// boundedConn leaves its listener's list when it is closed.
type boundedConn struct {
	net.Conn
	listener *boundedListener
	from     string // the client's address, without the port
}

// Accept implements net.Listener. One connection too many closes another: see oldestOfMost.
func (l *boundedListener) Accept() (net.Conn, error) {
	accepted, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	from, _, _ := net.SplitHostPort(accepted.RemoteAddr().String()) // It has a port.
	c := &boundedConn{accepted, l, from}
	var tooMany *boundedConn
	l.mu.Lock()
	if len(l.open) >= maxConnections {
		tooMany = l.oldestOfMost()
	}
	l.open = append(l.open, c)
	l.mu.Unlock()
	if tooMany != nil {
		_ = tooMany.Close()
	}
	return c, nil
}

// oldestOfMost returns the oldest connection of the address that has the most. open has the oldest first, and MaxFunc returns the first of
// equals. The mutex is held.
func (l *boundedListener) oldestOfMost() *boundedConn {
	counts := map[string]int{}
	for _, c := range l.open {
		counts[c.from]++
	}
	return slices.MaxFunc(l.open, func(a, b *boundedConn) int { return counts[a.from] - counts[b.from] })
}

// Close implements net.Conn.
func (c *boundedConn) Close() error {
	c.listener.mu.Lock()
	c.listener.open = slices.DeleteFunc(c.listener.open, func(other *boundedConn) bool { return other == c })
	c.listener.mu.Unlock()
	return c.Conn.Close()
}

// probe answers "ok" or the error.
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
	write := func() { m.fileFault.set(m.writeFile()) }
	defer write()
	ticks := time.NewTicker(maxInterval)
	defer ticks.Stop()
	for {
		write()
		select {
		case <-ctx.Done():
			return
		case <-time.After(minInterval):
		}
		select {
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
	var texts []string
	for _, t := range []*faultReporter{&m.listenFault, &m.fileFault} {
		if text := t.current(); text != "" {
			texts = append(texts, text)
		}
	}
	return texts
}

// faultReporter reports an error once for as long as it stays the same.
type faultReporter struct {
	report func(error)

	mu   sync.Mutex
	last string
}

func (t *faultReporter) set(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	t.mu.Lock()
	news := text != t.last
	t.last = text
	t.mu.Unlock()
	if news && err != nil && t.report != nil {
		t.report(err)
	}
}

func (t *faultReporter) current() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.last
}
