package metrics

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	"golang.org/x/net/netutil"
)

// The bounds of the listener. Whoever can reach it must not be able to take memory or file descriptors from a drain.
const (
	connections   = 32
	headerLimit   = 8 << 10 // bytes
	readTimeout   = 5 * time.Second
	answerTimeout = 10 * time.Second
	idleTimeout   = 2 * time.Minute // longer than between two scrapes
	farewell      = time.Second     // for answers under way when nth stops
)

// retry is the pause before the address is tried again that could not be listened at.
const retry = 5 * time.Second

// listen serves until ctx ends. An address that is taken, or not there yet, is tried again: a drain does not die of it.
func (m *Metrics) listen(ctx context.Context) {
	for ctx.Err() == nil {
		err := m.serve(ctx)
		if ctx.Err() != nil {
			return
		}
		m.serving.of(fmt.Errorf("serving metrics at %s: %w", m.opts.Listen, err))
		select {
		case <-ctx.Done():
		case <-time.After(retry):
		}
	}
}

// serve listens and serves until ctx ends, or returns why it cannot.
func (m *Metrics) serve(ctx context.Context) error {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", m.opts.Listen)
	if err != nil {
		return err
	}
	m.serving.of(nil)
	server := &http.Server{
		Handler:           m.Handler(),
		ReadHeaderTimeout: readTimeout, ReadTimeout: readTimeout, WriteTimeout: answerTimeout, IdleTimeout: idleTimeout,
		MaxHeaderBytes: headerLimit,
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(netutil.LimitListener(listener, connections)) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), farewell)
		defer cancel()
		if server.Shutdown(last) != nil {
			_ = server.Close() // Whoever has not read the answer by now does not get it.
		}
		if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	}
}

// Handler answers for /metrics, in the formats that Prometheus asks for, and for /healthz: 200 if nth is alive, and 503
// with a sentence if it is not; with Options.Ready also for /readyz, which says likewise whether the work can be done.
func (m *Metrics) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", m.answerMetrics)
	mux.HandleFunc("GET /healthz", answering(m.healthy))
	if m.opts.Ready != nil {
		mux.HandleFunc("GET /readyz", answering(m.ready))
	}
	return mux
}

func (m *Metrics) answerMetrics(w http.ResponseWriter, r *http.Request) {
	families, err := prometheus.Gatherers{m.own, m.process}.Gather()
	if err != nil {
		http.Error(w, fmt.Sprintf("gathering metrics: %v", err), http.StatusInternalServerError)
		return
	}
	format := expfmt.Negotiate(r.Header)
	w.Header().Set("Content-Type", string(format))
	encoder := expfmt.NewEncoder(w, format)
	for _, family := range families {
		if encoder.Encode(family) != nil {
			return // The reader is gone.
		}
	}
	if closer, ok := encoder.(expfmt.Closer); ok {
		_ = closer.Close() // As above.
	}
}

// answering answers what is judged, with "ok" or the fault.
func answering(judge func() error) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		if err := judge(); err != nil {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = fmt.Fprintln(w, err)
			return
		}
		_, _ = fmt.Fprintln(w, "ok")
	}
}
