package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// secretPath is in the endpoint's URL, and nowhere else.
const secretPath = "/services/T0/B0/hunter2"

// noticeHeader is by what a receiver knows a notice that it gets twice.
const noticeHeader = "X-Nth-Notice"

// hookSettings are those of tests with a webhook: every notice is "kind outcome".
const hookSettings = "[webhook]\ntemplate = \"{{ .EventKind }} {{ .Outcome }}\"\nheaders = { Content-Type = \"text/plain\" }\n"

// An endpoint is what people run to be told by a webhook.
type endpoint struct {
	server *httptest.Server

	mu      sync.Mutex
	taken   []delivery
	changed chan struct{}
}

// delivery is one notice that the endpoint has taken.
type delivery struct {
	id, text string
	header   http.Header
}

func newEndpoint(t *testing.T) *endpoint {
	t.Helper()
	e := &endpoint{changed: make(chan struct{})}
	e.server = httptest.NewServer(e)
	t.Cleanup(func() {
		e.server.CloseClientConnections()
		e.server.Close()
	})
	return e
}

// url is the endpoint's address.
func (e *endpoint) url() string { return e.server.URL + secretPath }

// settings are those of a webhook that posts here.
func (e *endpoint) settings() string { return hookSettings + fmt.Sprintf("url = %q\n", e.url()) }

// ServeHTTP implements http.Handler.
func (e *endpoint) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.taken = append(e.taken, delivery{r.Header.Get(noticeHeader), string(text), r.Header})
	close(e.changed)
	e.changed = make(chan struct{})
}

// await waits until the endpoint is as asked.
func (e *endpoint) await(t *testing.T, what string, isSo func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 150*time.Second)
	defer cancel()
	for {
		e.mu.Lock()
		so, changed := isSo(), e.changed
		e.mu.Unlock()
		if so {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			t.Fatalf("waiting for %s: %v; taken were %q", what, ctx.Err(), e.texts())
		}
	}
}

// waitFor waits until the endpoint has taken exactly these notices, in their order, each once or more.
func (e *endpoint) waitFor(t *testing.T, texts ...string) {
	t.Helper()
	e.await(t, fmt.Sprintf("the notices %q", texts), func() bool { return len(distinct(e.taken)) >= len(texts) })
	if got := e.texts(); !slices.Equal(got, texts) {
		t.Errorf("taken were %q, want %q", got, texts)
	}
}

// texts are those of the notices that were taken, each once.
func (e *endpoint) texts() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	var texts []string
	for _, d := range distinct(e.taken) {
		texts = append(texts, d.text)
	}
	return texts
}

// distinct leaves out what came again under the same ID.
func distinct(all []delivery) []delivery {
	var first []delivery
	for _, d := range all {
		if !slices.ContainsFunc(first, func(f delivery) bool { return f.id == d.id }) {
			first = append(first, d)
		}
	}
	return first
}

// parse reads a notice that is JSON.
func (d delivery) parse(t *testing.T) map[string]any {
	t.Helper()
	var fields map[string]any
	if err := json.NewDecoder(strings.NewReader(d.text)).Decode(&fields); err != nil {
		t.Fatalf("reading the notice %q: %v", d.text, err)
	}
	return fields
}
