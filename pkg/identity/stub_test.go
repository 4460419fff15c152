package identity_test

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	authorization "k8s.io/api/authorization/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/nth-project/nth/pkg/identity"
)

// apiServer is as much of an API server as an identity is proved against: it takes client certificates by their common
// name and tokens as user names, answers SelfSubjectReviews, and has nodes.
type apiServer struct {
	*httptest.Server
	mu       sync.Mutex
	requests []string // as in "GET /api/v1/nodes/a?resourceVersion=0 by system:node:a"
	agents   []string
	refusal  int             // the status that answers everything; 0 for none
	renamed  string          // the user whose every credential is now, who may read their own Node only; "" for none
	denied   map[string]bool // rights, as in "delete pods"
	reviews  map[string]string
	conns    atomic.Int32 // connections that were made
}

func startAPIServer(t *testing.T) *apiServer {
	t.Helper()
	s := &apiServer{
		denied: map[string]bool{}, reviews: map[string]string{},
	}
	s.Server = httptest.NewUnstartedServer(s)
	s.EnableHTTP2 = true
	s.TLS = &tls.Config{ClientAuth: tls.RequestClientCert}
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.Config.ConnContext = func(ctx context.Context, _ net.Conn) context.Context {
		s.conns.Add(1)
		return ctx
	}
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	user := "system:anonymous"
	if len(r.TLS.PeerCertificates) > 0 {
		user = r.TLS.PeerCertificates[0].Subject.CommonName
	}
	if token, found := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); found {
		user = token
	}
	s.mu.Lock()
	user = cmp.Or(s.renamed, user)
	s.requests = append(s.requests, r.Method+" "+r.URL.String()+" by "+user)
	s.agents = append(s.agents, r.UserAgent())
	refusal, node := s.refusal, strings.TrimPrefix(r.URL.Path, "/api/v1/nodes/")
	renamed := s.renamed != ""
	s.mu.Unlock()
	switch {
	case refusal != 0:
		answer(w, refusal, map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": refusal, "message": "not today"})
	case r.URL.Path == "/apis/authentication.k8s.io/v1/selfsubjectreviews":
		answer(w, http.StatusCreated, map[string]any{
			"kind": "SelfSubjectReview", "apiVersion": "authentication.k8s.io/v1",
			"status": map[string]any{"userInfo": map[string]any{"username": user}},
		})
	case r.URL.Path == "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews":
		s.review(w, r)
	case renamed && user != nodeUser+node:
		answer(w, http.StatusForbidden, map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 403, "reason": "Forbidden"})
	default:
		answer(w, http.StatusOK, map[string]any{"kind": "Node", "apiVersion": "v1", "metadata": map[string]any{"name": node}})
	}
}

// review answers whether a right is granted.
func (s *apiServer) review(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	review := &authorization.SelfSubjectAccessReview{}
	if err == nil {
		_, _, err = scheme.Codecs.UniversalDeserializer().Decode(body, nil, review)
	}
	if err != nil {
		answer(w, http.StatusBadRequest, err.Error())
		return
	}
	a := review.Spec.ResourceAttributes
	text, _ := json.Marshal(a) // It was decoded.
	s.mu.Lock()
	s.reviews[a.Verb+" "+a.Resource] = string(text)
	review.Status.Allowed = !s.denied[a.Verb+" "+a.Resource]
	s.mu.Unlock()
	review.Kind, review.APIVersion = "SelfSubjectAccessReview", "authorization.k8s.io/v1"
	answer(w, http.StatusCreated, review)
}

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // The client may be gone.
}

// set changes what the server says, or looks at what it was asked.
func (s *apiServer) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

func (s *apiServer) refuse(status int) { s.set(func() { s.refusal = status }) }

func (s *apiServer) authority() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
}

// kubeconfig returns the text of a kubeconfig for the server, with that user (as JSON).
func (s *apiServer) kubeconfig(user string) string {
	return fmt.Sprintf(`{
  "apiVersion": "v1", "kind": "Config", "current-context": "kubelet",
  "clusters": [{"name": "the-cluster", "cluster": {"server": %q, "certificate-authority-data": %q}}],
  "users": [{"name": "the-kubelet", "user": %s}],
  "contexts": [{"name": "kubelet", "context": {"cluster": "the-cluster", "user": "the-kubelet"}}]
}`, s.URL, base64.StdEncoding.EncodeToString(s.authority()), user)
}

// tokenUser is a kubeconfig's user with a token in it.
func tokenUser(token string) string { return fmt.Sprintf(`{"token": %q}`, token) }

// certificate makes a client certificate and its key, both in one PEM text, as the kubelet keeps them.
func certificate(t *testing.T, commonName string) []byte {
	t.Helper()
	return certificateFor(t, commonName, time.Now().Add(-time.Hour), time.Now().Add(time.Hour))
}

func certificateFor(t *testing.T, commonName string, from, to time.Time) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		t.Fatal(err)
	}
	template := x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: commonName, Organization: []string{"system:nodes"}},
		NotBefore:    from, NotAfter: to,
	}
	der, err := x509.CreateCertificate(rand.Reader, &template, &template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return slices.Concat(
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}))
}

// place puts a file at path, at once, as the kubelet does.
func place(t *testing.T, path string, content []byte) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path+".new", content, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	return path
}

// nodeUser is the prefix of a kubelet's user name.
const nodeUser = "system:node:"

// borrow returns the identity that a kubeconfig with that text gives.
func borrow(t *testing.T, text string) identity.Identity {
	t.Helper()
	path := place(t, filepath.Join(t.TempDir(), "kubeconfig"), []byte(text))
	return identityOf(t, identity.New(identity.Options{Kubeconfig: path, ClientOptions: identity.ClientOptions{UserAgent: "nth/test"}}))
}

func identityOf(t *testing.T, k *identity.Kubelet) identity.Identity {
	t.Helper()
	id, err := k.Identity(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// becomes keeps the identity warm until it is that of a node.
func becomes(t *testing.T, k *identity.Kubelet, node string) identity.Identity {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var id identity.Identity
	var last error
	k.KeepWarm(ctx, time.Millisecond, func(found identity.Identity, err error) {
		if id, last = found, err; id.Node == node {
			cancel()
		}
	})
	if id.Node != node {
		t.Fatalf("the identity is still %+v (%v), want %s", id, last, node)
	}
	return id
}

func readNode(t *testing.T, id identity.Identity) {
	t.Helper()
	node, err := id.Client.CoreV1().Nodes().Get(t.Context(), id.Node, meta.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if node.Name != id.Node {
		t.Errorf("the node is %q, want %q", node.Name, id.Node)
	}
}

// wantError checks that an error is one line with all the words.
func wantError(t *testing.T, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want one that says %q", words)
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("the error %q does not say %q", err, word)
		}
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("the error has several lines:\n%v", err)
	}
}

// keepWarm runs KeepWarm, with hardly a pause, until the test ends and returns a function that waits until a round ends
// in a way that is wanted.
func keepWarm(t *testing.T, k *identity.Kubelet) (until func(what string, wanted func(error) bool)) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	rounds, ended := make(chan error), make(chan struct{})
	go func() {
		defer close(ended)
		k.KeepWarm(ctx, time.Millisecond, func(_ identity.Identity, err error) {
			select {
			case rounds <- err:
			case <-ctx.Done():
			}
		})
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return func(what string, wanted func(error) bool) {
		t.Helper()
		var last error
		for deadline := time.After(30 * time.Second); ; {
			select {
			case last = <-rounds:
				if wanted(last) {
					return
				}
			case <-deadline:
				t.Fatalf("waiting until %s: the last round ended with: %v", what, last)
			}
		}
	}
}

func warm(err error) bool { return err == nil }
