// Package apitest is an API server for tests: one node and its pods, as a kubelet's credential sees them.
//
// It answers only the requests that a drain may make: read and patch the node, list and watch its pods, evict and delete them. Any other request
// fails the test. Its own answers are those of kube-apiserver with the Node authorizer and NodeRestriction. Where that may surprise, the
// source in Kubernetes is named (1.37). A test can replace the answer of single requests (Server.Answer). client-go's fake clientset is not
// used: it refuses nothing that a real server refuses, and its connection cannot break.
//
// A kubelet ends pods within their grace. Tests can add disruption budgets, and workloads with their controllers. All of them use the clock of
// the test's synctest bubble, and end with the test.
package apitest

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
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
	// At is when it came.
	At time.Time
	// Options are what an eviction or a deletion asked for.
	Options metav1.DeleteOptions
}

// Server is the API server, with the kubelet and the controllers.
type Server struct {
	t        testing.TB
	mux      *http.ServeMux
	handlers sync.WaitGroup // those that run now

	mu       sync.Mutex
	away     bool
	calls    map[*call]bool
	requests []Request
	once     map[string][]Answer
	always   map[string]Answer

	// The storage, with one version for all objects in it, and the history that watches replay.
	version    int64
	oldest     int64 // the first version that is still known
	node       *object
	pods       map[string]*object
	volumes    map[string]*corev1.PersistentVolume // by claim
	history    []change
	changed    chan struct{} // closed and replaced at every change
	dropped    chan struct{} // closed and replaced when watches are dropped
	skew       time.Duration
	lagWrites  int64
	lagTime    time.Duration
	closed     bool
	registered int // how often the Node was registered

	// The state of the kubelet and the controllers.
	bootID       string
	shutting     bool
	endings      map[types.UID]Ending
	terminations map[types.UID]*termination
	budgets      []*budget
	workloads    []*workload
	unselective  bool      // see IgnoreSelector
	looking      bool      // the controllers are at work
	again        bool      // the controllers have to look once more
	removed      time.Time // see LastRemoval
}

// New starts a server with a node that is Ready and has no pods. It ends with the test.
func New(t testing.TB) *Server {
	t.Helper()
	s := &Server{
		t: t, bootID: "boot-1",
		calls: map[*call]bool{}, once: map[string][]Answer{}, always: map[string]Answer{},
		pods: map[string]*object{}, volumes: map[string]*corev1.PersistentVolume{},
		endings: map[types.UID]Ending{}, terminations: map[types.UID]*termination{},
		changed: make(chan struct{}), dropped: make(chan struct{}),
	}
	s.register()
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
	s.mux = mux
	t.Cleanup(s.Close)
	return s
}

// serve returns a handler that records each request, and answers it as the test has asked for, or else with handler.
func (s *Server) serve(what string, handler http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return // the client has left
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		req := Request{What: what, Query: r.URL.Query(), Body: string(body), At: time.Now()}
		if r.URL.Query().Get("watch") != "" {
			req.What = strings.Replace(what, "list", "watch", 1)
		}
		if namespace := r.PathValue("namespace"); namespace != "" {
			req.What += " " + namespace + "/" + r.PathValue("name")
			if r.Method != http.MethodGet {
				req.Options = s.deleteOptions(what, body)
				r = r.WithContext(context.WithValue(r.Context(), optionsKey{}, req.Options)) // it is read once
			}
		}
		if answer := s.record(req); answer == nil || !answer(w, withHandler(r, handler)) {
			handler(w, r)
		}
	}
}

// deleteOptions reads what an eviction or a deletion asks for, and insists on the right kind of body.
func (s *Server) deleteOptions(what string, body []byte) metav1.DeleteOptions {
	if bytes.HasPrefix(body, []byte("k8s\x00")) {
		body = s.toJSON(what, body)
	}
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

// toJSON converts a body from Kubernetes' protobuf to JSON.
func (s *Server) toJSON(what string, body []byte) []byte {
	object, kind, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	if err != nil {
		s.t.Errorf("%s with a body that cannot be read: %v", what, err)
		return nil
	}
	object.GetObjectKind().SetGroupVersionKind(*kind)
	text, err := json.Marshal(object)
	if err != nil {
		s.t.Errorf("%s: %v", what, err)
	}
	return text
}

// record records a request, and returns the test's answer to it; nil if the server answers by itself.
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

// Requests returns the requests so far. With words, it returns only those whose What is one of the words, or begins with one.
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
