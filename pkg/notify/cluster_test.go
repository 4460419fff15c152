package notify_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

const nodeName = "node-1"

// cluster is an API server in memory, so that it can be used where time is not real: one node's conditions, and Events.
// What it does not know fails the test.
type cluster struct {
	t *testing.T

	mu         sync.Mutex
	conditions []corev1.NodeCondition
	events     []corev1.Event
	requests   []string
	// answer is the status that requests get instead; 0 is the cluster's own answer, and -1 none at all.
	answer func(what string) int
}

func newCluster(t *testing.T, conditions ...corev1.NodeCondition) *cluster {
	return &cluster{t: t, conditions: conditions, answer: func(string) int { return 0 }}
}

func (c *cluster) client() kubernetes.Interface {
	config := &rest.Config{Host: "http://cluster", QPS: -1, ContentConfig: rest.ContentConfig{ContentType: "application/json"}}
	set, err := kubernetes.NewForConfigAndClient(config, &http.Client{Transport: c})
	if err != nil {
		c.t.Fatal(err)
	}
	return set
}

// answers makes requests whose name begins with what be answered with a status.
func (c *cluster) answers(what string, status int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answer = func(asked string) int {
		if strings.HasPrefix(asked, what) {
			return status
		}
		return 0
	}
}

// asked returns the requests since it was called last.
func (c *cluster) asked() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	asked := c.requests
	c.requests = nil
	return asked
}

func (c *cluster) wantAsked(what ...string) {
	c.t.Helper()
	if asked := c.asked(); !slices.Equal(asked, what) {
		c.t.Errorf("asked for %q, want %q", asked, what)
	}
}

// condition returns ours, or nil.
func (c *cluster) condition() *corev1.NodeCondition {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, condition := range c.conditions {
		if condition.Type == "InterruptionPending" {
			return &condition
		}
	}
	return nil
}

// written returns the Events that are there.
func (c *cluster) written() []corev1.Event {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.events)
}

// RoundTrip implements http.RoundTripper.
func (c *cluster) RoundTrip(r *http.Request) (*http.Response, error) {
	var body []byte
	if r.Body != nil {
		body, _ = io.ReadAll(r.Body) // it is in memory
	}
	what, do := c.route(r, body)
	c.mu.Lock()
	c.requests = append(c.requests, what)
	status := c.answer(what)
	c.mu.Unlock()
	switch {
	case status < 0:
		<-r.Context().Done()
		return nil, r.Context().Err()
	case status > 0:
		return reply(status, metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
			Status: metav1.StatusFailure, Code: int32(status), Reason: reasons[status], Message: "as the test wants it"}), nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return reply(http.StatusOK, do()), nil
}

var reasons = map[int]metav1.StatusReason{
	403: metav1.StatusReasonForbidden, 404: metav1.StatusReasonNotFound, 409: metav1.StatusReasonAlreadyExists,
}

// route names a request and returns what it does.
func (c *cluster) route(r *http.Request, body []byte) (string, func() any) {
	path := strings.Split(strings.Trim(r.URL.Path, "/"), "/")[2:] // without api/v1
	switch {
	case r.Method == http.MethodGet && slices.Equal(path, []string{"nodes", nodeName}):
		return "get node", func() any {
			return corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
				ObjectMeta: metav1.ObjectMeta{Name: nodeName}, Status: corev1.NodeStatus{Conditions: c.conditions}}
		}
	case r.Method == http.MethodPatch && slices.Equal(path, []string{"nodes", nodeName, "status"}):
		what := "patch condition"
		if !bytes.Contains(body, []byte("InterruptionPending")) {
			what = "patch lifecycle"
		}
		return what, func() any { return c.patchConditions(r, body) }
	case r.Method == http.MethodPost && path[2] == "events":
		var ev corev1.Event
		c.decode(body, &ev)
		return "create event " + ev.Reason, func() any {
			c.events = append(c.events, ev)
			return ev
		}
	case r.Method == http.MethodPatch && path[2] == "events":
		return "patch event", func() any { return c.patchEvent(path[3], body) }
	}
	c.t.Errorf("unexpected request %s %s", r.Method, r.URL)
	return "", func() any { return nil }
}

// patchConditions merges by type, as the API server does with a strategic merge patch.
func (c *cluster) patchConditions(r *http.Request, body []byte) any {
	if kind := r.Header.Get("Content-Type"); kind != "application/strategic-merge-patch+json" {
		c.t.Errorf("a patch of the kind %q replaces all conditions", kind)
	}
	var patch corev1.Node
	c.decode(body, &patch)
	for _, sent := range patch.Status.Conditions {
		i := slices.IndexFunc(c.conditions, func(there corev1.NodeCondition) bool { return there.Type == sent.Type })
		if i < 0 {
			c.conditions = append(c.conditions, sent)
		} else {
			c.conditions[i] = sent
		}
	}
	return patch
}

func (c *cluster) patchEvent(name string, body []byte) any {
	for i := range c.events {
		if c.events[i].Name == name {
			c.decode(body, &c.events[i])
			return c.events[i]
		}
	}
	c.t.Errorf("there is no Event %s", name)
	return nil
}

func (c *cluster) decode(body []byte, into any) {
	if err := json.Unmarshal(body, into); err != nil {
		c.t.Errorf("reading %s: %v", body, err)
	}
}

func reply(status int, object any) *http.Response {
	text, err := json.Marshal(object)
	if err != nil {
		panic(err) // a mistake in this file
	}
	return &http.Response{StatusCode: status, Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(bytes.NewReader(text))}
}
