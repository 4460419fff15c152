package fleet_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
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
	"k8s.io/client-go/kubernetes/scheme"
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
	// ending is how long a pod takes to end. ended are those that have: a watch of pods begins with them, as one of the fake's does not tell
	// what ended while it was being opened.
	ending  time.Duration
	endedMu sync.Mutex // of its own, as ended changes under a lock of the fake's
	ended   []runtime.Object
	// lag is how long after a change the watch of Nodes shows it. Set it before a process begins.
	lag time.Duration
}

// bubble runs f with a cluster.
func bubble(t *testing.T, f func(t *testing.T, c *cluster)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := &cluster{
			t: t, version: 1, asked: map[string]int{}, first: map[string]func(int) error{}, ending: time.Second,
		}
		c.store, c.objects = newStore(t)
		c.store.PrependReactor("delete", "pods", c.ends)
		c.handler = c.routes()
		c.server = pipetest.Serve(c.handler)
		t.Cleanup(c.server.Close)
		f(t, c)
	})
}

// each runs f with a cluster for each row, all at the same time.
func each[R any](t *testing.T, rows map[string]R, f func(t *testing.T, c *cluster, row R)) {
	t.Helper()
	t.Parallel()
	for name, row := range rows {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, c *cluster) { f(t, c, row) })
		})
	}
}

// newStore is fake.NewClientset of no more than Nodes, pods and Leases. That one goes through all kinds of objects that Kubernetes has each time that
// one of them is written.
func newStore(t *testing.T) (*fake.Clientset, clienttesting.ObjectTracker) {
	t.Helper()
	kinds := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(kinds), coordination.AddToScheme(kinds)); err != nil {
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
	with    *way // breaks with that one, if set

	mu     sync.Mutex
	frozen chan struct{}     // closed when it thaws; nil if it is not frozen
	wrote  func(what string) // is told of each write, if set
}

// freeze holds requests up before they are made, as of a process that does not run.
func (w *way) freeze() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.frozen = make(chan struct{})
}

func (w *way) thaw() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.frozen != nil {
		close(w.frozen)
		w.frozen = nil
	}
}

// freezer is what a process does before a request of its is made: nothing, while the process is frozen.
type freezer struct {
	next http.RoundTripper
	way  *way
}

// RoundTrip implements http.RoundTripper.
func (f freezer) RoundTrip(r *http.Request) (*http.Response, error) {
	f.way.await()
	return f.next.RoundTrip(r)
}

// freezable holds the requests of a client up while a way is frozen.
func freezable(client kubernetes.Interface, by *way) {
	if api, is := client.CoreV1().RESTClient().(*rest.RESTClient); is {
		api.Client.Transport = freezer{api.Client.Transport, by}
	}
}

// await waits until it is not frozen.
func (w *way) await() {
	w.mu.Lock()
	frozen := w.frozen
	w.mu.Unlock()
	if frozen != nil {
		<-frozen
	}
}

// RoundTrip implements http.RoundTripper.
func (w *way) RoundTrip(r *http.Request) (*http.Response, error) {
	w.mu.Lock()
	wrote := w.wrote
	w.mu.Unlock()
	if wrote != nil && r.Method != http.MethodGet {
		wrote(r.Method + " " + r.URL.Path)
	}
	if w.broken.Load() || w.with != nil && w.with.broken.Load() {
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

// before calls do before each request of a kind is answered: "list" or watch Nodes; "get", "taint" or "change" one; "evict" or "delete"
// a pod, or "evict NAME"; "make" or "renew" the Lease. What it returns is answered instead, if it is not nil.
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

// begins takes in a request, and reports whether it was answered by that.
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
	mux.HandleFunc("GET /api/v1/pods", c.pods)
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
	kind := "change"
	if bytes.Contains(body, []byte(`"taints"`)) {
		kind = "taint"
	}
	if err != nil || c.begins(w, kind) {
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
	if json.Unmarshal(body, &of) == nil && of.Metadata.UID != "" && of.Metadata.UID != n.UID {
		return nil, apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("Node").GroupKind(), name, nil)
	}
	if of.Metadata.ResourceVersion != "" && of.Metadata.ResourceVersion != n.ResourceVersion {
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

// nodes answers for the list and the watch of all Nodes.
func (c *cluster) nodes(w http.ResponseWriter, r *http.Request) {
	if c.begins(w, "list") {
		return
	}
	query := r.URL.Query()
	if query.Get("watch") != "" {
		events, err := c.store.CoreV1().Nodes().Watch(r.Context(), metav1.ListOptions{ResourceVersion: query.Get("resourceVersion")})
		stream(w, r, events, err, func(runtime.Object) bool {
			time.Sleep(c.lag)
			return true
		})
		return
	}
	list, err := c.store.CoreV1().Nodes().List(r.Context(), metav1.ListOptions{})
	answer(w, list, err)
}

// podOn is a pod on a node.
func podOn(node, name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(name)},
		Spec:       corev1.PodSpec{NodeName: node}, Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}
}

func (c *cluster) pods(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	ours := func(o runtime.Object) bool {
		pod, is := o.(*corev1.Pod)
		return is && "spec.nodeName="+pod.Spec.NodeName == query.Get("fieldSelector")
	}
	pods := c.store.CoreV1().Pods("")
	if query.Get("watch") != "" {
		events, err := pods.Watch(r.Context(), metav1.ListOptions{ResourceVersion: query.Get("resourceVersion")})
		stream(w, r, events, err, ours, c.gone()...)
		return
	}
	list, err := pods.List(r.Context(), metav1.ListOptions{})
	if err != nil {
		answer(w, nil, err)
		return
	}
	found := &corev1.PodList{ListMeta: list.ListMeta}
	for _, pod := range list.Items {
		if ours(&pod) {
			found.Items = append(found.Items, pod)
		}
	}
	answer(w, found, nil)
}

// ends keeps a pod in mind that is about to be deleted.
func (c *cluster) ends(a clienttesting.Action) (handled bool, result runtime.Object, err error) {
	deleted, is := a.(clienttesting.DeleteAction)
	if !is {
		return false, nil, nil
	}
	if pod, err := c.objects.Get(a.GetResource(), a.GetNamespace(), deleted.GetName()); err == nil {
		c.endedMu.Lock()
		c.ended = append(c.ended, pod)
		c.endedMu.Unlock()
	}
	return false, nil, nil
}

// gone are the pods that have ended and are not there again.
func (c *cluster) gone() []runtime.Object {
	c.endedMu.Lock()
	defer c.endedMu.Unlock()
	return slices.DeleteFunc(slices.Clone(c.ended), func(o runtime.Object) bool {
		pod, is := o.(*corev1.Pod)
		if !is {
			return true
		}
		_, err := c.objects.Get(corev1.SchemeGroupVersion.WithResource("pods"), pod.Namespace, pod.Name)
		return err == nil
	})
}

// evict begins the end of a pod.
func (c *cluster) evict(w http.ResponseWriter, r *http.Request) {
	if c.begins(w, "evict") || c.begins(w, "evict "+r.PathValue("name")) {
		return
	}
	pods, name := c.store.CoreV1().Pods(r.PathValue("namespace")), r.PathValue("name")
	pod, err := pods.Get(r.Context(), name, metav1.GetOptions{})
	if err == nil {
		pod.DeletionTimestamp = &metav1.Time{Time: time.Now()}
		_, err = pods.Update(r.Context(), pod, metav1.UpdateOptions{})
	}
	if err == nil {
		c.mu.Lock()
		time.AfterFunc(c.ending, func() { _ = pods.Delete(context.Background(), name, metav1.DeleteOptions{}) })
		c.mu.Unlock()
	}
	answer(w, &metav1.Status{Status: metav1.StatusSuccess}, err)
}

// answer writes an object, or what is wrong, as the API server does.
func answer(w http.ResponseWriter, o runtime.Object, err error) {
	w.Header().Set("Content-Type", "application/json")
	if err != nil {
		var known apierrors.APIStatus
		status := apierrors.NewInternalError(err).Status()
		if errors.As(err, &known) {
			status = known.Status()
		}
		w.WriteHeader(int(status.Code))
		o = &status
	}
	_, _ = w.Write(encoded(o)) // who does not read the answer has left
}

func encoded(o runtime.Object) []byte {
	o = o.DeepCopyObject() // To encode it is to write its kind into it, and the store and all watches share it.
	return []byte(runtime.EncodeOrDie(scheme.Codecs.LegacyCodec(corev1.SchemeGroupVersion, coordination.SchemeGroupVersion), o))
}

// stream writes that objects are gone, and then the events of those that are wanted until nobody reads them any more.
func stream(w http.ResponseWriter, r *http.Request, events watch.Interface, err error, of func(runtime.Object) bool, gone ...runtime.Object) {
	if err == nil {
		defer func() {
			events.Stop()
			for range events.ResultChan() { // A filter ends only when what it is about to tell has been taken.
			}
		}()
	}
	if err != nil || r.URL.Query().Get("sendInitialEvents") != "" {
		answer(w, nil, apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("ListOptions").GroupKind(), "", nil))
		return
	}
	flush := http.NewResponseController(w).Flush
	tell := func(e watch.Event) error {
		if !of(e.Object) {
			return nil
		}
		line, _ := json.Marshal(map[string]any{"type": e.Type, "object": json.RawMessage(encoded(e.Object))}) // text and JSON encode
		_, err := w.Write(append(line, '\n'))
		return err
	}
	for _, o := range gone {
		if tell(watch.Event{Type: watch.Deleted, Object: o}) != nil {
			return
		}
	}
	for {
		if flush() != nil {
			return
		}
		select {
		case e := <-events.ResultChan():
			if tell(e) != nil {
				return
			}
		case <-r.Context().Done():
			return
		}
	}
}

// serveLeases serves the Leases as an API server does, with what keeps one process from another: versions and UIDs.
func (c *cluster) serveLeases(mux *http.ServeMux) {
	const all = "/apis/coordination.k8s.io/v1/namespaces/" + fleet.LeaseNamespace + "/leases"
	leases := c.store.CoordinationV1().Leases(fleet.LeaseNamespace)
	mux.HandleFunc("GET "+all+"/{name}", func(w http.ResponseWriter, r *http.Request) {
		if !c.begins(w, "get lease") {
			l, err := leases.Get(r.Context(), r.PathValue("name"), metav1.GetOptions{})
			answer(w, l, err)
		}
	})
	write := func(pattern, kind string, do func(r *http.Request, l *coordination.Lease) (*coordination.Lease, error)) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			if err != nil || c.begins(w, kind) {
				return
			}
			c.mu.Lock()
			defer c.mu.Unlock()
			l := &coordination.Lease{}
			if err = json.Unmarshal(body, l); err == nil {
				l, err = do(r, l)
			}
			answer(w, l, err)
		})
	}
	next := func() string {
		c.version++
		return strconv.Itoa(c.version)
	}
	write("POST "+all, "make", func(r *http.Request, l *coordination.Lease) (*coordination.Lease, error) {
		l.UID, l.ResourceVersion = types.UID("uid-"+l.Name), next()
		return leases.Create(r.Context(), l, metav1.CreateOptions{})
	})
	write("PUT "+all+"/{name}", "renew", func(r *http.Request, l *coordination.Lease) (*coordination.Lease, error) {
		now, err := leases.Get(r.Context(), l.Name, metav1.GetOptions{})
		if err != nil || now.ResourceVersion != l.ResourceVersion {
			return nil, apierrors.NewConflict(coordination.Resource("leases"), l.Name, errors.New("the object has been modified"))
		}
		l.ResourceVersion = next()
		return leases.Update(r.Context(), l, metav1.UpdateOptions{})
	})
}

// leader is who leads by the Lease; "" if nobody does.
func (c *cluster) leader() string {
	l, err := c.store.CoordinationV1().Leases(fleet.LeaseNamespace).Get(c.t.Context(), "nth-queue", metav1.GetOptions{})
	if err != nil || l.Spec.HolderIdentity == nil {
		return ""
	}
	return *l.Spec.HolderIdentity
}
