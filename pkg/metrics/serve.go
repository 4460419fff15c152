package metrics

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/net/netutil"

	"github.com/nth-project/nth/pkg/loop"
)

// The limits of the listener. Clients must not use up the memory or the file descriptors of a drain.
const (
	maxConnections = 128     // at a time; others wait
	headerLimit    = 8 << 10 // bytes
	readTimeout    = 5 * time.Second
	writeTimeout   = 10 * time.Second
	idleTimeout    = 10 * time.Second
)

// listenRetry is the pause before an address that could not be listened on is tried again.
const listenRetry = 5 * time.Second

// listen serves HTTP until ctx ends. If that fails, listen reports the error and tries again: the address may be in use, or not on the machine yet.
// nth drains without metrics meanwhile.
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
		MaxHeaderBytes: headerLimit,
	}
	stopWatching := context.AfterFunc(ctx, func() { _ = server.Close() }) // Close cuts off answers that are under way: nth waits for no client.
	defer stopWatching()
	return server.Serve(netutil.LimitListener(socket, maxConnections))
}

// Handler returns a handler for /metrics and /healthz. /healthz answers 200 if nth is alive, and 503 with a sentence if it is not. With
// Options.Ready, the handler also has /readyz, which answers 200 if nth can do its work now, and otherwise 503 with a sentence.
func (m *Metrics) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(prometheus.Gatherers{m.own, m.process}, promhttp.HandlerOpts{DisableCompression: true}))
	mux.HandleFunc("GET /healthz", m.probe(m.Healthy))
	if m.opts.Ready != nil {
		mux.HandleFunc("GET /readyz", m.probe(m.ready))
	}
	return mux
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

// writeInterval is how often the file is written. Its age shows whether nth is alive.
const writeInterval = time.Second

// writeFiles keeps the file for node_exporter up to date until ctx ends, and then writes it a last time. Errors go to setFault.
func (m *Metrics) writeFiles(ctx context.Context) {
	for more := true; more; {
		m.setFault(textfile, m.writeFile())
		more = loop.Await(ctx, nil, writeInterval)
	}
	m.setFault(textfile, m.writeFile())
}

// writeFile replaces the file for node_exporter atomically. It leaves out the metrics of the Go process: node_exporter has series of the same
// names. If a file had them, too, node_exporter would serve nothing.
func (m *Metrics) writeFile() error {
	err := prometheus.WriteToTextfile(m.opts.Textfile, m.own)
	if err == nil {
		return nil
	}
	if plain, ok := errors.AsType[syscall.Errno](err); ok {
		err = plain // The whole error names a temporary file, another one each time: setFault would report every attempt.
	}
	return fmt.Errorf("writing metrics to %s: %w", m.opts.Textfile, err)
}

// Troubles returns the current errors of the listener and the file, sorted.
func (m *Metrics) Troubles() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(maps.Values(m.faults))
}

// The two ways to export metrics, which can fail.
const listener, textfile = "listener", "file"

// setFault remembers, for Troubles, the error of one way to export: listener or textfile. err is nil if that way works now. setFault calls
// Options.Trouble with an error that differs from the last one.
func (m *Metrics) setFault(way string, err error) {
	m.mu.Lock()
	before := m.faults[way]
	delete(m.faults, way)
	if err != nil {
		m.faults[way] = err.Error()
	}
	isNew := err != nil && err.Error() != before
	m.mu.Unlock()
	if isNew && m.opts.Trouble != nil {
		m.opts.Trouble(err)
	}
}
