package kube_test

import (
	"encoding/pem"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// host is an API server that counts its connections, and answers no request before so many are there.
type host struct {
	net.Listener
	opened atomic.Int64
	// deaf is how many connections, the first ones, nobody answers. They are kept in unanswered.
	deaf       int64
	unanswered []net.Conn
}

// Accept implements net.Listener.
func (h *host) Accept() (net.Conn, error) {
	for {
		conn, err := h.Listener.Accept()
		if err != nil || h.opened.Add(1) > h.deaf {
			return conn, err
		}
		h.unanswered = append(h.unanswered, conn)
	}
}

// hostOf begins an API server, and returns it with a client of it.
func hostOf(t *testing.T, together int, http2 bool, deaf int64) (*host, kubernetes.Interface) {
	t.Helper()
	var arrived atomic.Int64
	complete := make(chan struct{})
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if arrived.Add(1) == int64(together) {
			close(complete)
		}
		select {
		case <-complete:
			_, _ = w.Write([]byte("{}")) // who does not read it fails
		case <-r.Context().Done():
		}
	}))
	h := &host{Listener: server.Listener, deaf: deaf}
	server.Listener, server.EnableHTTP2 = h, http2
	server.Config.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: 100} // as API servers have it
	server.StartTLS()
	t.Cleanup(server.Close)
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	return h, clientOf(t, &rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{CAData: authority}})
}

func TestTransport_RequestsAtOnceShareConnections(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		requests int
		http2    bool
		deaf     int64
		most     int64 // connections
	}{
		// Ten have room for all.
		"a thousand over HTTP/2": {requests: 1000, http2: true, most: 100},
		"while dials hang":       {requests: 50, http2: true, deaf: 4, most: 32},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, client := hostOf(t, row.requests, row.http2, row.deaf)
			var all sync.WaitGroup
			for range row.requests {
				all.Go(func() {
					if _, err := client.CoreV1().RESTClient().Get().AbsPath("/livez").MaxRetries(0).DoRaw(t.Context()); err != nil {
						t.Error(err)
					}
				})
			}
			all.Wait()
			if opened := h.opened.Load(); opened > row.most {
				t.Errorf("%d requests have opened %d connections, want %d at most", row.requests, opened, row.most)
			}
		})
	}
}
