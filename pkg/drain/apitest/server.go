// Package apitest is an API server for tests: one node and its pods, over real HTTP, as a kubelet's credential sees them.
//
// It speaks only what a drain may ask: read and patch the node, list and watch its pods, evict and delete them. Anything
// else fails the test. What it answers by itself follows kube-apiserver with the Node authorizer; what it is told to
// answer (see Answer) replaces that for single requests. client-go's fake clientset is not used, because it has neither
// the authorizer's refusals nor a connection that can break.
package apitest

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// Node is the name of the only node.
const Node = "node-1"

// Request is one request that reached the server.
type Request struct {
	// What is "get node", "patch node", "list pods", "watch pods", "evict namespace/name", "delete namespace/name",
	// "get claim namespace/name" or "get volume".
	What string
	// Query and Body are as they came.
	Query map[string][]string
	Body  string
	// Options are what an eviction or a deletion asked for.
	Options metav1.DeleteOptions
}

// Server is the stand-in.
type Server struct {
	t    testing.TB
	http *httptest.Server

	mu       sync.Mutex
	away     bool
	conns    map[net.Conn]bool
	requests []Request
	once     map[string][]Answer
	always   map[string]Answer

	version int64
	node    *corev1.Node
	pods    map[string]*corev1.Pod
	volumes map[string]*corev1.PersistentVolume // by claim
	endings map[string]Ending
	history []change
	changed chan struct{} // closed and replaced at every change
	dropped chan struct{} // closed and replaced when watches are dropped
}

// New starts a server with a node that is Ready and has no pods. It ends with the test.
func New(t testing.TB) *Server {
	t.Helper()
	s := &Server{
		t: t, node: readyNode(), version: 1,
		conns: map[net.Conn]bool{}, once: map[string][]Answer{}, always: map[string]Answer{},
		pods: map[string]*corev1.Pod{}, endings: map[string]Ending{}, volumes: map[string]*corev1.PersistentVolume{},
		changed: make(chan struct{}), dropped: make(chan struct{}),
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/v1/nodes/{name}", s.serve("get node", s.getNode))
	mux.HandleFunc("PATCH /api/v1/nodes/{name}", s.serve("patch node", s.patchNode))
	mux.HandleFunc("GET /api/v1/pods", s.serve("list pods", s.listPods))
	mux.HandleFunc("POST /api/v1/namespaces/{namespace}/pods/{name}/eviction", s.serve("evict", s.evict))
	mux.HandleFunc("DELETE /api/v1/namespaces/{namespace}/pods/{name}", s.serve("delete", s.deletePod))
	mux.HandleFunc("GET /api/v1/namespaces/{namespace}/persistentvolumeclaims/{name}", s.serve("get claim", s.getClaim))
	mux.HandleFunc("GET /api/v1/persistentvolumes/{name}", s.serve("get volume", s.getVolume))
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		t.Errorf("unexpected request %s %s", r.Method, r.URL)
		refuse(w, http.StatusForbidden, metav1.StatusReasonForbidden, "a kubelet may not ask this")
	})
	s.http = httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s
}

// Close ends the server and its connections. The test's end does so too.
func (s *Server) Close() {
	s.disconnect()
	s.http.Close()
}

// Client is a clientset for the server, without a limit of its own on requests.
func (s *Server) Client() kubernetes.Interface {
	s.t.Helper()
	config := &rest.Config{Host: s.http.URL, QPS: -1, Dial: s.dial}
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

// dial connects, or is refused while the server is away.
func (s *Server) dial(ctx context.Context, network, address string) (net.Conn, error) {
	s.mu.Lock()
	away := s.away
	s.mu.Unlock()
	if away {
		return nil, &net.OpError{Op: "dial", Net: network, Err: syscall.ECONNREFUSED}
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.conns[conn] = true
	s.mu.Unlock()
	return conn, nil
}

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

func (s *Server) disconnect() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for conn := range s.conns {
		_ = conn.Close() // a second close has nothing to say
	}
	clear(s.conns)
}

// serve records a request, and answers it as it was told to or as the server does by itself.
func (s *Server) serve(what string, handler http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return // the client has left
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		req := Request{What: what, Query: r.URL.Query(), Body: string(body)}
		if r.URL.Query().Get("watch") != "" {
			req.What = "watch pods"
		}
		if namespace := r.PathValue("namespace"); namespace != "" {
			req.What += " " + namespace + "/" + r.PathValue("name")
			if r.Method != http.MethodGet {
				req.Options = s.deleteOptions(what, body)
			}
		}
		if answer := s.record(req); answer == nil || !answer(w, r) {
			handler(w, r)
		}
	}
}

// deleteOptions reads what an eviction or a deletion asks for, and insists on the right kind of body.
func (s *Server) deleteOptions(what string, body []byte) metav1.DeleteOptions {
	var sent struct {
		metav1.TypeMeta
		metav1.DeleteOptions
		Nested *metav1.DeleteOptions `json:"deleteOptions"`
	}
	if err := json.Unmarshal(body, &sent); err != nil {
		s.t.Errorf("%s with a body that is not JSON: %v", what, err)
	}
	if what == "delete" {
		return sent.DeleteOptions
	}
	if sent.TypeMeta.APIVersion != "policy/v1" || sent.TypeMeta.Kind != "Eviction" || sent.Nested == nil {
		s.t.Errorf("not a policy/v1 Eviction with options: %s", body)
		return metav1.DeleteOptions{}
	}
	return *sent.Nested
}

// record notes a request and returns what it is to be answered with; nil for what the server answers by itself.
func (s *Server) record(req Request) Answer {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = append(s.requests, req)
	verb, _, _ := strings.Cut(req.What, " ")
	for _, key := range []string{req.What, verb} {
		if queue := s.once[key]; len(queue) > 0 {
			s.once[key] = queue[1:]
			return queue[0]
		}
		if answer := s.always[key]; answer != nil {
			return answer
		}
	}
	return nil
}

// Requests are those that came so far. With words, only those whose What is or begins with one of them.
func (s *Server) Requests(words ...string) []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []Request
	for _, r := range s.requests {
		if len(words) == 0 || slices.ContainsFunc(words, func(w string) bool { return r.What == w || strings.HasPrefix(r.What, w+" ") }) {
			found = append(found, r)
		}
	}
	return found
}
