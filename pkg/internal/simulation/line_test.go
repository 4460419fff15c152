package simulation_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/nth-project/nth/pkg/drain/apitest"
)

// line is an http.RoundTripper between one incarnation and the API server. Once the incarnation was killed, no request gets through.
type line struct {
	world *world
	nth   *incarnation
}

// client returns a clientset whose requests go through the line.
func (l line) client() kubernetes.Interface {
	config := &rest.Config{Host: "http://apiserver.test", QPS: -1, Transport: l}
	set, err := kubernetes.NewForConfigAndClient(config, &http.Client{Transport: l})
	if err != nil {
		panic(err) // The configuration is always the same.
	}
	return set
}

// request is one request of nth's.
type request struct {
	verb string // get, patch, list, watch, evict, delete or other
	pod  string // namespace/name
	body []byte
}

// requestOf reads what a request asks for, and its body.
func requestOf(r *http.Request) (request, error) {
	q := request{verb: "other"}
	path := strings.Split(strings.TrimPrefix(r.URL.Path, "/api/v1/"), "/")
	switch {
	case path[0] == "nodes" && r.Method == http.MethodGet:
		q.verb = "get"
	case path[0] == "nodes" && r.Method == http.MethodPatch:
		q.verb = "patch"
	case path[0] == "pods" && r.URL.Query().Get("watch") != "":
		q.verb = "watch"
	case path[0] == "pods":
		q.verb = "list"
	case len(path) >= 4 && path[2] == "pods":
		q.pod = path[1] + "/" + path[3]
		q.verb = map[string]string{http.MethodPost: "evict", http.MethodDelete: "delete"}[r.Method]
	}
	if r.Body == nil {
		return q, nil
	}
	var err error
	q.body, err = io.ReadAll(r.Body)
	_ = r.Body.Close() // It has been read.
	return q, err
}

// RoundTrip implements http.RoundTripper.
func (l line) RoundTrip(r *http.Request) (*http.Response, error) {
	w := l.world
	q, err := requestOf(r)
	if err != nil {
		return nil, err
	}
	ctx := r.Context()
	if !w.pause(ctx, w.latency()) {
		return nil, ctx.Err()
	}
	if w.dead(l.nth) {
		<-ctx.Done() // The process is gone, but in the test its goroutines still run until their context ends.
		return nil, ctx.Err()
	}
	w.judged(asksWhatItMay)
	f := w.faultFor(l.nth, q.verb)
	if f != nil {
		if answer, done, err := f.before(ctx, w, r); done {
			l.nth.noteAnswer(q, err == nil && answer.StatusCode < http.StatusInternalServerError)
			return answer, err
		}
		if w.dead(l.nth) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
	}
	if q.verb == "watch" {
		answer, err := w.server.RoundTripper().RoundTrip(r)
		if err == nil {
			answer.Body = &wire{ReadCloser: answer.Body, ctx: ctx, world: w, closed: make(chan struct{})}
		}
		return answer, err
	}
	l.nth.noteAnswer(q, true)
	w.judgeBefore(q)
	if f != nil && f.kind == "void" {
		return respond(apitest.Accepted, r), nil
	}
	answer, err := w.carryOut(r, q)
	if err != nil {
		return nil, err
	}
	w.judgeAfter(q, answer)
	if f != nil && f.kind == "lost" {
		return nil, reset()
	}
	if !w.pause(ctx, w.latency()) || w.dead(l.nth) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return answer, nil
}

// wire is the body of a watch. Once it is muted, it delivers nothing any more, not even its end.
type wire struct {
	io.ReadCloser
	ctx    context.Context // the request's
	world  *world
	once   sync.Once
	closed chan struct{}
}

// Read implements io.Reader.
func (r *wire) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	r.world.mu.Lock()
	mute := time.Now().Before(r.world.muted)
	r.world.mu.Unlock()
	if !mute {
		return n, err
	}
	select {
	case <-r.closed:
		return 0, reset()
	case <-r.ctx.Done():
		return 0, r.ctx.Err()
	}
}

// Close implements io.Closer.
func (r *wire) Close() error {
	r.once.Do(func() { close(r.closed) })
	return r.ReadCloser.Close()
}

// carryOut has the server carry out a request, even if nth gives it up meanwhile: it was sent.
func (w *world) carryOut(r *http.Request, q request) (*http.Response, error) {
	asked := r.Clone(context.WithoutCancel(r.Context()))
	asked.Body = io.NopCloser(bytes.NewReader(q.body))
	if q.verb == "list" || q.verb == "evict" {
		asked = asked.WithContext(r.Context()) // The server may let these wait, and nth must be able to give them up.
	}
	return w.server.RoundTripper().RoundTrip(asked)
}

// latency returns how long a request or an answer takes, at random.
func (w *world) latency() time.Duration {
	switch w.dice(12) {
	case 0:
		return 20 * time.Millisecond
	case 1:
		return time.Duration(w.dice(300)) * time.Millisecond
	}
	return 0
}

// pause waits, and reports whether the time passed before the context ended.
func (w *world) pause(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// noteAnswer counts failed requests. After three reads or three writes in a row, nth takes another connection, as pkg/kube does.
func (i *incarnation) noteAnswer(q request, well bool) {
	i.world.mu.Lock()
	defer i.world.mu.Unlock()
	failed := &i.failedWrites
	if reads(q.verb) {
		failed = &i.failedReads
	}
	if *failed++; well {
		*failed = 0
	}
	if *failed == 3 {
		i.connection++
		i.failedReads, i.failedWrites = 0, 0
	}
}

// reads reports whether a verb is a read.
func reads(verb string) bool { return verb == "get" || verb == "list" || verb == "watch" }

// fault lets requests fail for a time.
type fault struct {
	verb  string // the verb of the requests that fail; "" is all, "read" is get, list and watch
	kind  string // in which way they fail; see faultKinds
	until time.Time
	// on is the only connection whose requests fail; nil if those of all do.
	on *connection
	// met: a request has met the fault. nth leaves a connection for requests that fail, and makes none while nothing is due.
	met bool
}

// connection is one of the successive connections of an incarnation.
type connection struct {
	nth    *incarnation
	number int
}

// faultKinds are the ways in which requests fail, for generated plans. There is also "void": an eviction is accepted and changes nothing.
var faultKinds = []string{"refuse", "503", "500", "429", "retry", "401", "403", "hang", "lost", "slow", "late", "html", "webhook"}

// faultFor returns the fault that a request meets now; nil if none.
func (w *world) faultFor(i *incarnation, verb string) *fault {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, f := range w.faults {
		concerns := f.verb == "" || f.verb == verb || f.verb == "read" && reads(verb)
		if concerns && time.Now().Before(f.until) && (f.on == nil || *f.on == connection{i, i.connection}) {
			if f.on != nil && !f.met { // Within a minute, three requests fail in a row, even if each hangs.
				f.met = true
				w.hinderLocked(min(time.Until(f.until), time.Minute))
			}
			return f
		}
	}
	return nil
}

// before lets a request fail before it reaches the server. done is false if the request reaches the server all the same.
func (f *fault) before(ctx context.Context, w *world, r *http.Request) (answer *http.Response, done bool, err error) {
	if answer, known := refusals[f.kind]; known {
		return respond(answer, r), true, nil
	}
	switch f.kind {
	case "refuse":
		return nil, true, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	case "hang":
		<-ctx.Done()
		w.disturb(0) // nth has waited for the answer until now, maybe for longer than the fault lasted.
		return nil, true, ctx.Err()
	case "late": // It takes longer than nth waits for a first read.
		if !w.pause(ctx, 9*time.Second) {
			return nil, true, ctx.Err()
		}
	case "slow":
		if !w.pause(ctx, time.Duration(1+w.dice(7))*time.Second) {
			return nil, true, ctx.Err()
		}
	}
	return nil, false, nil
}

// reset is the error of a connection that broke.
func reset() error { return &net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET} }

// refusals are the answers to requests that fail in these ways. "html" is that of a proxy.
var refusals = map[string]apitest.Answer{
	"503": apitest.Unavailable(), "429": apitest.Throttled(0), "retry": apitest.Throttled(3), "html": apitest.Page(http.StatusOK),
	"500":     apitest.Refused(http.StatusInternalServerError, metav1.StatusReasonInternalError, "etcdserver: request timed out"),
	"401":     apitest.Refused(http.StatusUnauthorized, metav1.StatusReasonUnauthorized, "Unauthorized"),
	"403":     apitest.Forbidden("an admission policy denied the request"),
	"webhook": apitest.Refused(http.StatusInternalServerError, metav1.StatusReasonInternalError, "failed calling webhook: context deadline exceeded"),
}

// respond makes the response that an answer is.
func respond(answer apitest.Answer, r *http.Request) *http.Response {
	w := httptest.NewRecorder()
	answer(w, r)
	return w.Result()
}
