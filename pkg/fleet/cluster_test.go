package fleet_test

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordination "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/applyconfigurations"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"

	"github.com/nth-project/nth/pkg/fleet"
	"github.com/nth-project/nth/pkg/internal/pipetest"
)

// cluster is an API server of Nodes and pods on a network and a clock of its own: a minute takes no time, and a time
// measured is exact. client-go's fake keeps the objects. What goes beyond it is what a fleet and its drains live on: they
// speak HTTP, a patch of a version that is not there any more is refused, and pods are evicted.
type cluster struct {
	t       *testing.T
	store   *fake.Clientset
	objects clienttesting.ObjectTracker // of the store
	handler http.Handler
	server  *pipetest.Server // of the handler

	mu      sync.Mutex
	version int
	asked   map[string]int
	first   map[string]func(times int) error
	// lag is how long a watch of Nodes is behind.
	lag time.Duration
	// leases are those in fleet.LeaseNamespace, by name.
	leases map[string]*coordination.Lease
	// ending is how long a pod takes to end. ended are those that have: a watch of pods begins with them, as one of the fake's does not tell
	// what ended while it was being opened.
	ending time.Duration
	ended  []runtime.Object
	// lists and glances count the lists of all Nodes, and of one.
	lists, glances int
	// numbered gives lists of Nodes the cluster's version, and their watches a bookmark each minute; nameless gives those of one Node a
	// version that says nothing.
	numbered, nameless bool
	// stalled keeps what is to be told from the watch of the Nodes until it is closed; nil keeps nothing.
	stalled chan struct{}
	// busy, if set, is how slow it is.
	busy *busy
}

// busy is an API server that answers so many requests at once, each after a while. The others wait until it comes to them.
type busy struct {
	places chan struct{}
	takes  time.Duration

	mu        sync.Mutex
	now, most int // requests about Nodes that are under way
}

// wait waits until a request's turn has come and it has been worked on.
func (b *busy) wait(r *http.Request) {
	if strings.HasPrefix(r.URL.Path, "/api/v1/nodes/") {
		b.count(1)
		defer b.count(-1)
	}
	select {
	case b.places <- struct{}{}:
		time.Sleep(b.takes)
		<-b.places
	case <-r.Context().Done():
	}
}

func (b *busy) count(more int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.now += more
	b.most = max(b.most, b.now)
}

// bubble runs f with a cluster.
func bubble(t *testing.T, f func(t *testing.T, c *cluster)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := &cluster{
			t: t, version: 1, asked: map[string]int{}, first: map[string]func(int) error{}, ending: time.Second,
			leases: map[string]*coordination.Lease{},
		}
		c.store, c.objects = newStore(t)
		c.store.PrependReactor("delete", "pods", c.ends)
		routes := c.routes()
		c.handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if c.busy != nil && r.URL.Query().Get("watch") == "" {
				c.busy.wait(r)
			}
			routes.ServeHTTP(w, r)
		})
		c.server = pipetest.Serve(c.handler)
		t.Cleanup(c.server.Close)
		f(t, c)
	})
}

// newStore is fake.NewClientset of no more than Nodes and pods. That one goes through all kinds of objects that Kubernetes has each time that
// one of them is written.
func newStore(t *testing.T) (*fake.Clientset, clienttesting.ObjectTracker) {
	t.Helper()
	kinds := runtime.NewScheme()
	if err := corev1.AddToScheme(kinds); err != nil {
		t.Fatal(err)
	}
	objects := clienttesting.NewFieldManagedObjectTracker(kinds, serializer.NewCodecFactory(kinds).UniversalDecoder(),
		applyconfigurations.NewTypeConverter(kinds))
	store := &fake.Clientset{}
	store.AddReactor("*", "*", clienttesting.ObjectReaction(objects))
	store.AddWatchReactor("*", func(a clienttesting.Action) (bool, watch.Interface, error) {
		options := metav1.ListOptions{}
		if of, is := a.(clienttesting.WatchActionImpl); is {
			options = of.ListOptions
		}
		events, err := objects.Watch(a.GetResource(), a.GetNamespace(), options)
		return err == nil, events, err
	})
	return store, objects
}

// add makes Nodes, and pods on the nodes that they name.
func (c *cluster) add(objects ...runtime.Object) {
	c.t.Helper()
	for _, o := range objects {
		if n, is := o.(*corev1.Node); is {
			n.ResourceVersion = "1" // 0 is none.
		}
		if err := c.objects.Add(o); err != nil {
			c.t.Fatal(err)
		}
	}
}

// run begins a fleet in the cluster, and returns when it watches: the fake tells no watch what happened before it was opened.
func (c *cluster) run(change func(*fleet.Options)) *rig { c.t.Helper(); return c.runBy(&way{}, change) }

// runBy is run, by a way of its own to the cluster.
func (c *cluster) runBy(by *way, change func(*fleet.Options)) *rig {
	c.t.Helper()
	r := begin(c.t, c.client(by), change)
	synctest.Wait()
	return r
}

// client goes by a way to the cluster.
func (c *cluster) client(by *way) kubernetes.Interface {
	c.t.Helper()
	client, err := kubernetes.NewForConfig(&rest.Config{
		Host: "http://cluster.test", QPS: -1, Dial: c.server.Dial, ContentConfig: rest.ContentConfig{ContentType: runtime.ContentTypeJSON},
		WrapTransport: func(next http.RoundTripper) http.RoundTripper { by.next, by.handler = next, c.handler; return by },
	})
	if err != nil {
		c.t.Fatal(err)
	}
	return client
}

// way leads one process to the cluster, until it is broken: watches through its network and, as that costs more than all the rest where a
// process lives for hours, everything else straight to its handler.
type way struct {
	next    http.RoundTripper
	handler http.Handler
	broken  atomic.Bool
}

// RoundTrip implements http.RoundTripper.
func (w *way) RoundTrip(r *http.Request) (*http.Response, error) {
	if w.broken.Load() {
		return nil, errors.New("no route to host")
	}
	if r.URL.Query().Get("watch") != "" {
		return w.next.RoundTrip(r)
	}
	asked := r.Clone(r.Context())
	if asked.Body == nil {
		asked.Body = http.NoBody
	}
	answered := make(chan *http.Response, 1)
	go func() {
		answer := httptest.NewRecorder()
		w.handler.ServeHTTP(answer, asked)
		answered <- answer.Result()
	}()
	select {
	case answer := <-answered:
		return answer, nil
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
}

// before calls do before each request of a kind is answered: "list" or watch Nodes, "get", "claim", "taint", "change" or "remove"
// one, "evict" or "delete" a pod, list "peers"; "list leases", "make", "renew" or "end" Leases, and "place" in fleet.SlotsAnnotation. What
// it returns is answered instead, if it is not nil.
func (c *cluster) before(what string, do func(times int) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.first[what] = do
}

// times counts the requests of a kind.
func (c *cluster) times(what string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.asked[what]
}

// begins takes in a request, and tells whether it was answered by that.
func (c *cluster) begins(w http.ResponseWriter, what string) (answered bool) {
	c.mu.Lock()
	c.asked[what]++
	times, first := c.asked[what], c.first[what]
	c.mu.Unlock()
	if first == nil {
		return false
	}
	err := first(times)
	if err != nil {
		answer(w, nil, err)
	}
	return err != nil
}

func (c *cluster) node(name string) *corev1.Node {
	c.t.Helper()
	n, err := c.store.CoreV1().Nodes().Get(c.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	return n
}

// change changes a Node as others would.
func (c *cluster) change(name string, how func(*corev1.Node)) {
	n := c.node(name)
	how(n)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.keep(n)
}

// keep makes a Node the next version. c.mu is held.
func (c *cluster) keep(n *corev1.Node) {
	c.version++
	n.ResourceVersion = strconv.Itoa(c.version)
	if _, err := c.store.CoreV1().Nodes().Update(c.t.Context(), n, metav1.UpdateOptions{}); err != nil {
		c.t.Error(err)
	}
}

// remove deletes a Node as others would.
func (c *cluster) remove(name string) {
	if err := c.store.CoreV1().Nodes().Delete(c.t.Context(), name, metav1.DeleteOptions{}); err != nil {
		c.t.Error(err)
	}
}

func (c *cluster) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/v1/nodes", c.nodes)
	mux.HandleFunc("GET /api/v1/nodes/{name}", func(w http.ResponseWriter, r *http.Request) {
		if !c.begins(w, "get") {
			n, err := c.store.CoreV1().Nodes().Get(r.Context(), r.PathValue("name"), metav1.GetOptions{})
			answer(w, n, err)
		}
	})
	mux.HandleFunc("PATCH /api/v1/nodes/{name}", c.patch)
	mux.HandleFunc("DELETE /api/v1/nodes/{name}", c.removed)
	mux.HandleFunc("GET /api/v1/pods", c.pods)
	mux.HandleFunc("GET /api/v1/namespaces/{namespace}/pods", func(w http.ResponseWriter, r *http.Request) {
		if !c.begins(w, "peers") {
			list, err := c.store.CoreV1().Pods(r.PathValue("namespace")).List(r.Context(), metav1.ListOptions{LabelSelector: r.URL.Query().Get("labelSelector")})
			answer(w, list, err)
		}
	})
	c.serveLeases(mux)
	mux.HandleFunc("POST /api/v1/namespaces/{namespace}/pods/{name}/eviction", c.evict)
	mux.HandleFunc("DELETE /api/v1/namespaces/{namespace}/pods/{name}", func(w http.ResponseWriter, r *http.Request) {
		if !c.begins(w, "delete") {
			err := c.store.CoreV1().Pods(r.PathValue("namespace")).Delete(r.Context(), r.PathValue("name"), metav1.DeleteOptions{})
			answer(w, &metav1.Status{Status: metav1.StatusSuccess}, err)
		}
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		c.t.Errorf("unexpected request %s %s", r.Method, r.URL)
		w.WriteHeader(http.StatusForbidden)
	})
	return mux
}

// patch applies a patch unless it is of another version than the Node's, or a test in it fails.
func (c *cluster) patch(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil || c.begins(w, patchOf(string(body))) {
		return
	}
	n, err := c.apply(r, r.PathValue("name"), body)
	answer(w, n, err)
}

func (c *cluster) apply(r *http.Request, name string, body []byte) (*corev1.Node, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	nodes := c.store.CoreV1().Nodes()
	n, err := nodes.Get(r.Context(), name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	var of struct{ Metadata metav1.ObjectMeta }
	if json.Unmarshal(body, &of) == nil && of.Metadata.ResourceVersion != "" && of.Metadata.ResourceVersion != n.ResourceVersion {
		return nil, apierrors.NewConflict(corev1.Resource("nodes"), name, errors.New("the object has been modified"))
	}
	n, err = nodes.Patch(r.Context(), name, types.PatchType(r.Header.Get("Content-Type")), body,
		metav1.PatchOptions{FieldManager: r.URL.Query().Get("fieldManager")})
	if err != nil {
		return nil, apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("Node").GroupKind(), name, nil)
	}
	c.keep(n)
	return n, nil
}

// patchOf says what a patch is for.
func patchOf(body string) string {
	switch {
	case strings.Contains(body, "nth-project.github.io/queue"), strings.Contains(body, "nth-project.github.io~1queue"):
		return "claim"
	case strings.Contains(body, `"taints"`):
		return "taint"
	}
	return "change"
}
