package apitest

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Lists and watches. What their versions mean: ShouldDelegateList in
// staging/src/k8s.io/apiserver/pkg/storage/cacher/delegator, and waitUntilFreshAndBlock in cacher/watch_cache.go.

const (
	blockTimeout = 3 * time.Second // cacher/watch_cache.go
	// watchTimeout is the least that a watch without timeoutSeconds lasts: --min-request-timeout.
	watchTimeout = 30 * time.Minute
)

// getNode answers the Node authorizer's way (authorizeNode in plugin/pkg/auth/authorizer/node/node_authorizer.go).
func (s *Server) getNode(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if name := r.PathValue("name"); name != Node {
		refuse(w, http.StatusForbidden, metav1.StatusReasonForbidden, fmt.Sprintf(`nodes %q is forbidden: User "system:node:%s" cannot get `+
			`resource "nodes" in API group "" at the cluster scope: node '%s' cannot read '%s', only its own Node object`, name, Node, Node, name))
		return
	}
	node := s.node
	if node == nil {
		notFound(w, "nodes", Node)
		return
	}
	writeText(w, http.StatusOK, node.json())
}

// listPods handles lists and watches of pods, as the Node authorizer allows them.
func (s *Server) listPods(w http.ResponseWriter, r *http.Request) {
	if r.URL.Query().Get("fieldSelector") != "spec.nodeName="+Node {
		refuse(w, http.StatusForbidden, metav1.StatusReasonForbidden, `pods is forbidden: User "system:node:`+Node+`" cannot list resource "pods" `+
			`in API group "" at the cluster scope: can only list/watch pods with spec.nodeName field selector`)
		return
	}
	version, err := strconv.ParseInt("0"+r.URL.Query().Get("resourceVersion"), 10, 64)
	switch {
	case err != nil:
		refuse(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, "Invalid value: "+r.URL.Query().Get("resourceVersion"))
	case r.URL.Query().Get("watch") != "":
		s.watch(w, r, version)
	default:
		s.list(w, r, version)
	}
}

// list answers from the storage, or from the cache if the version allows that. A list without a version also comes from the cache, once the cache
// has reached the newest version; after three seconds it comes from the storage.
func (s *Server) list(w http.ResponseWriter, r *http.Request, version int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := s.version
	if r.URL.Query().Get("resourceVersion") == "" {
		_ = s.fresh(r.Context(), at) // If it is false, the list comes from the storage.
	} else {
		if !s.fresh(r.Context(), version) {
			tooLarge(w, version, s.visible())
			return
		}
		at = s.visible()
	}
	var text bytes.Buffer
	fmt.Fprintf(&text, `{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"%d"},"items":[`, at)
	for i, o := range s.at(at) {
		if i > 0 {
			text.WriteByte(',')
		}
		text.Write(o.json())
	}
	text.WriteString("]}")
	writeText(w, http.StatusOK, text.Bytes())
}

// at returns the pods that the node may see, as they were at a version.
func (s *Server) at(version int64) []*object {
	var found []*object
	for _, o := range sorted(s.podsAt(version)) {
		if o.pod.Spec.NodeName == Node || s.unselective {
			found = append(found, o)
		}
	}
	return found
}

// fresh waits until the cache has reached a version. It returns false if that takes longer than blockTimeout. The caller holds the lock; fresh
// releases it while it waits.
func (s *Server) fresh(ctx context.Context, version int64) bool {
	for end := time.Now().Add(blockTimeout); s.visible() < version; {
		left := time.Until(end)
		if left <= 0 || ctx.Err() != nil {
			return false
		}
		if in, ever := s.surfaces(); ever {
			left = min(left, in)
		}
		changed := s.changed
		s.mu.Unlock()
		wait(ctx, left, changed)
		s.mu.Lock()
	}
	return true
}

// wait waits for a change, for the duration d at most.
func wait(ctx context.Context, d time.Duration, changed <-chan struct{}) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-changed:
	case <-ctx.Done():
	}
}

// tooLarge is NewTooLargeResourceVersionError in staging/src/k8s.io/apiserver/pkg/storage/errors.go.
func tooLarge(w http.ResponseWriter, version, current int64) {
	status(metav1.Status{
		Code: http.StatusGatewayTimeout, Reason: metav1.StatusReasonTimeout,
		Message: fmt.Sprintf("Timeout: Too large resource version: %d, current: %d", version, current),
		Details: &metav1.StatusDetails{RetryAfterSeconds: 1, Causes: []metav1.StatusCause{{
			Type: metav1.CauseTypeResourceVersionTooLarge, Message: "Too large resource version",
		}}},
	})(w, nil)
}

// watch sends the history after the version from, and then each change. If from is 0, it begins with the pods that exist.
func (s *Server) watch(w http.ResponseWriter, r *http.Request, from int64) {
	if r.URL.Query().Get("sendInitialEvents") != "" {
		refuse(w, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, "sendInitialEvents is forbidden")
		return
	}
	stream := newStream(w, r.URL.Query())
	s.mu.Lock()
	if from == 0 {
		from = s.visible()
		for _, o := range s.at(from) {
			stream.event(added, o.json())
		}
	}
	if from < s.oldest {
		// An error of a watch is an event (Watch in staging/src/k8s.io/apiserver/pkg/storage/cacher/cacher.go).
		stream.expired(from, s.oldest)
		s.mu.Unlock()
		return
	}
	s.mu.Unlock()
	for {
		s.mu.Lock()
		upTo := s.visible()
		for _, c := range s.history[s.after(from):] {
			if c.version > upTo {
				break
			}
			if s.unselective && c.kind == elsewhere {
				c.kind = added
			}
			if from = c.version; c.kind != elsewhere && c.kind != deletedElsewhere && c.object.pod != nil {
				stream.event(c.kind, c.object.json())
			}
		}
		from = max(from, upTo)
		changed, dropped := s.changed, s.dropped
		in, ever := s.surfaces()
		s.mu.Unlock()
		if !ever {
			in = watchTimeout
		}
		if !stream.rest(r.Context(), in, changed, dropped) {
			return
		}
	}
}

// stream is a watch's answer.
type stream struct {
	w        http.ResponseWriter
	deadline time.Time
	text     bytes.Buffer
}

func newStream(w http.ResponseWriter, query url.Values) *stream {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	st := &stream{w: w, deadline: time.Now().Add(watchTimeout)}
	if seconds, err := strconv.Atoi(query.Get("timeoutSeconds")); err == nil && seconds > 0 {
		st.deadline = time.Now().Add(time.Duration(seconds) * time.Second)
	}
	return st
}

func (st *stream) event(kind string, text []byte) {
	fmt.Fprintf(&st.text, `{"type":%q,"object":`, kind)
	st.text.Write(text)
	st.text.WriteString("}\n")
}

func (st *stream) expired(from, oldest int64) {
	st.event("ERROR", fmt.Appendf(nil, `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure",`+
		`"message":"too old resource version: %d (%d)","reason":"Expired","code":410}`, from, oldest-1))
	_, _ = st.w.Write(st.text.Bytes()) // a client that has left needs no answer
}

// rest sends the events so far, and waits for the next change, for the duration most at most. It returns false at the end of the watch.
func (st *stream) rest(ctx context.Context, most time.Duration, changed, dropped <-chan struct{}) bool {
	if _, err := st.text.WriteTo(st.w); err != nil || http.NewResponseController(st.w).Flush() != nil {
		return false
	}
	t := time.NewTimer(min(most, time.Until(st.deadline)))
	defer t.Stop()
	select {
	case <-changed:
	case <-t.C:
	case <-dropped:
		return false
	case <-ctx.Done():
		return false
	}
	return time.Now().Before(st.deadline)
}

func notFound(w http.ResponseWriter, resource, name string) {
	status(metav1.Status{
		Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound, Message: fmt.Sprintf("%s %q not found", resource, name),
		Details: &metav1.StatusDetails{Name: name, Kind: resource},
	})(w, nil)
}

func writeText(w http.ResponseWriter, code int, text []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(text) // a client that has left needs no answer
}
