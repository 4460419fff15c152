package kube_test

import (
	"context"
	"encoding/pem"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/nth-project/nth/pkg/kube"
)

func clientOf(t *testing.T, config *rest.Config) kubernetes.Interface {
	t.Helper()
	through, err := kube.NewTransport(config)
	if err != nil {
		t.Fatal(err)
	}
	client, err := kube.NewClient(config.Host, through)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// balancer leads each new connection to the server that is to come next, as a balancer of TCP connections does.
type balancer struct {
	net.Listener
	to atomic.Pointer[string]
}

func balance(t *testing.T, first *httptest.Server) *balancer {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &balancer{Listener: listener}
	b.lead(first)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			in, err := listener.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", *b.to.Load())
			if err != nil {
				_ = in.Close()
				continue
			}
			pass := func(to, from net.Conn) {
				_, _ = io.Copy(to, from)
				_ = to.Close()
			}
			go pass(out, in)
			go pass(in, out)
		}
	}()
	return b
}

func (b *balancer) lead(to *httptest.Server) {
	address := to.Listener.Addr().String()
	b.to.Store(&address)
}

// serve returns a server that speaks HTTP/2, where wanted.
func serve(t *testing.T, http2 bool, handler http.HandlerFunc) *httptest.Server {
	t.Helper()
	server := httptest.NewUnstartedServer(handler)
	server.EnableHTTP2 = http2
	server.StartTLS()
	t.Cleanup(server.Close)
	return server
}

func get(ctx context.Context, client kubernetes.Interface, within time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	return client.CoreV1().RESTClient().Get().AbsPath("/api/v1/nodes/a").MaxRetries(0).Do(ctx).Error()
}

func TestTransport_LeavesAServerThatIsDeadInside(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		http2  bool
		sick   http.HandlerFunc
		within time.Duration
		token  string
	}{
		"HTTP/2, it hangs": {true, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, 300 * time.Millisecond, ""},
		// A server that is dead inside may still open watches from its cache.
		"HTTP/2, it hangs, and opens watches": {true, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Query().Get("watch") == "" {
				<-r.Context().Done()
			}
			_, _ = w.Write([]byte("{}"))
		}, 300 * time.Millisecond, ""},
		"HTTP/1.1, it hangs":          {false, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, 300 * time.Millisecond, ""},
		"HTTP/2, 500 for everything":  {true, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) }, time.Minute, ""},
		"with a token, 503":           {true, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) }, time.Minute, "t"},
		"401, with a new certificate": {true, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(401) }, time.Minute, "t"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var sick atomic.Bool
			var asked atomic.Int64
			ok := func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("{}")) }
			first := serve(t, c.http2, func(w http.ResponseWriter, r *http.Request) {
				if !sick.Load() {
					ok(w, r)
					return
				}
				if r.URL.Query().Get("watch") == "" {
					asked.Add(1)
				}
				c.sick(w, r)
			})
			second := serve(t, c.http2, ok)
			b := balance(t, first)
			client := clientOf(t, &rest.Config{Host: "https://" + b.Addr().String(), BearerToken: c.token, TLSClientConfig: rest.TLSClientConfig{Insecure: true}})
			if err := get(t.Context(), client, time.Minute); err != nil {
				t.Fatal(err)
			}
			sick.Store(true)
			b.lead(second)
			failed := 0
			for get(t.Context(), client, c.within) != nil {
				if failed++; failed > 10 {
					t.Fatalf("the sick server was asked %d times and is not left", asked.Load())
				}
				if strings.HasSuffix(name, "watches") {
					_, _ = client.CoreV1().RESTClient().Get().AbsPath("/api/v1/pods").Param("watch", "true").MaxRetries(0).DoRaw(t.Context())
				}
			}
			if asked.Load() > 3 {
				t.Errorf("it was left after %d requests, want 3", asked.Load())
			}
		})
	}
}

func TestTransport_RepeatsNothingThatAProxySays(t *testing.T) {
	t.Parallel()
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		connection, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		_, _ = io.WriteString(connection, "HTTP/1.1 407 not with me hunter2\r\nContent-Length: 7\r\n\r\nhunter2")
		_ = connection.Close()
	}))
	t.Cleanup(proxy.Close)
	through, err := url.Parse(proxy.URL)
	if err != nil {
		t.Fatal(err)
	}
	client := clientOf(t, &rest.Config{Host: "https://api.nth.test", Proxy: http.ProxyURL(through), TLSClientConfig: rest.TLSClientConfig{Insecure: true}})
	err = get(t.Context(), client, time.Minute)
	if err == nil || strings.Contains(err.Error(), "hunter2") || !strings.Contains(err.Error(), "the proxy answers 407 Proxy Authentication Required") {
		t.Errorf("it says %v", err)
	}
}

func TestTransport_StaysWhereRequestsAreOnlyCanceled(t *testing.T) {
	t.Parallel()
	arrived := make(chan struct{}, 1)
	var slow atomic.Bool
	first := serve(t, true, func(w http.ResponseWriter, r *http.Request) {
		if slow.Load() {
			arrived <- struct{}{}
			<-r.Context().Done()
		}
		_, _ = w.Write([]byte("{}"))
	})
	var others atomic.Int64
	second := serve(t, true, func(w http.ResponseWriter, _ *http.Request) {
		others.Add(1)
		_, _ = w.Write([]byte("{}"))
	})
	b := balance(t, first)
	client := clientOf(t, &rest.Config{Host: "https://" + b.Addr().String(), TLSClientConfig: rest.TLSClientConfig{Insecure: true}})
	if err := get(t.Context(), client, time.Minute); err != nil {
		t.Fatal(err)
	}
	b.lead(second)
	slow.Store(true)
	for range 5 {
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			<-arrived
			cancel()
		}()
		if err := get(ctx, client, time.Minute); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	}
	slow.Store(false)
	if err := get(t.Context(), client, time.Minute); err != nil || others.Load() != 0 {
		t.Errorf("a connection whose requests were canceled was left: %d requests at another server, %v", others.Load(), err)
	}
}

// nameserver answers queries for addresses, on a connection of its own for each.
type nameserver struct {
	silentFor atomic.Int64 // how many queries are not answered
}

// nameservers has the current test's; nil if names are not resolved.
var nameservers atomic.Pointer[nameserver]

func TestTransport_OutlivesANameserverThatIsDead(t *testing.T) {
	newNameserver(t).silentFor.Store(2) // The resolver asks for both families.
	server := serve(t, true, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("{}")) })
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	client := clientOf(t, &rest.Config{Host: "https://api.nth.test.:" + port, TLSClientConfig: rest.TLSClientConfig{Insecure: true}})
	if err := get(t.Context(), client, kube.Read); err != nil {
		t.Errorf("no request within %s: %v", kube.Read, err)
	}
}

// TestMain replaces the resolver for good: lookups outlive the tests that cause them.
func TestMain(m *testing.M) {
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
		if n := nameservers.Load(); n != nil {
			return n.dial(ctx, network, address)
		}
		return nil, errors.New("there is no nameserver")
	}}
	m.Run()
}

// newNameserver has the resolver ask a nameserver of the test's, so that no other test may run at the same time.
func newNameserver(t *testing.T) *nameserver {
	t.Helper()
	n := &nameserver{}
	nameservers.Store(n)
	t.Cleanup(func() { nameservers.Store(nil) })
	return n
}

func (n *nameserver) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	listener, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	silent := n.silentFor.Add(-1) >= 0
	go func() {
		defer func() { _ = listener.Close() }()
		buffer := make([]byte, 1500)
		_ = listener.SetDeadline(time.Now().Add(20 * time.Second))
		size, from, err := listener.ReadFrom(buffer)
		if err != nil || silent {
			return
		}
		var query dnsmessage.Message
		if query.Unpack(buffer[:size]) != nil {
			return
		}
		query.Response, query.Authoritative, query.Additionals = true, true, nil
		if query.Questions[0].Type == dnsmessage.TypeA {
			query.Answers = []dnsmessage.Resource{{
				Header: dnsmessage.ResourceHeader{Name: query.Questions[0].Name, Class: dnsmessage.ClassINET, TTL: 1},
				Body:   &dnsmessage.AResource{A: [4]byte{127, 0, 0, 1}},
			}}
		}
		if packed, err := query.Pack(); err == nil {
			_, _ = listener.WriteTo(packed, from)
		}
	}()
	return (&net.Dialer{}).DialContext(ctx, "udp", listener.LocalAddr().String())
}

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
func hostOf(t *testing.T, together int, deaf int64) (*host, kubernetes.Interface) {
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
	server.Listener, server.EnableHTTP2 = h, true
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
		deaf     int64
		most     int64 // connections
	}{
		// Ten have room for all.
		"a thousand over HTTP/2": {requests: 1000, most: 100},
		"while dials hang":       {requests: 50, deaf: 4, most: 32},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, client := hostOf(t, row.requests, row.deaf)
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
