package main

import (
	"context"
	"encoding/json"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/identity"
	"github.com/nth-project/nth/pkg/state"
)

// A machine that is no node, an image that is being baked on a spot instance, is interrupted: the notice comes first, and the
// power button two minutes later.
func TestAMachineThatIsNoNodeLetsItsShutdownGoAlsoWhileAGuardStands(t *testing.T) {
	t.Parallel()
	nothing := identity.New(identity.Options{Read: func(context.Context) (string, []byte, error) { return "nowhere", nil, fs.ErrNotExist }})
	s := newLocalNode(nothing, config.Default(), nil, nil)
	var mu sync.Mutex
	drained := map[int]bool{}
	spot := drain.Goal{Generation: 1, Claim: drain.Claim{Event: "s", Kind: string(event.SpotInterruption)}, Close: true, Evict: true}
	g := s.Guard(spot, func(p drain.Progress) {
		mu.Lock()
		defer mu.Unlock()
		drained[p.Generation] = drained[p.Generation] || p.State.Drained
	})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); g.Run(ctx) }()
	defer func() { stop(); <-ended }()
	time.Sleep(200 * time.Millisecond)
	down := spot // The spot interruption still comes first.
	down.Generation, down.Shutdown = 2, true
	g.Adjust(down)
	time.Sleep(3 * time.Second)
	mu.Lock()
	defer mu.Unlock()
	if !drained[2] {
		t.Error("the machine never was a node, and its shutdown is held")
	}
}

// The options of a reload hold for an event that is announced after it.
func TestAReloadedOptionHoldsForAnEventThatComesAfterIt(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	node := map[string]any{
		"kind": "Node", "apiVersion": "v1", "metadata": map[string]any{"name": "a", "uid": "u", "resourceVersion": "1"}, "spec": map[string]any{},
	}
	labeled := false
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		switch {
		case strings.HasSuffix(r.URL.Path, "/selfsubjectreviews"):
			w.WriteHeader(http.StatusCreated)
			_, _ = io.WriteString(w, `{"kind":"SelfSubjectReview","apiVersion":"authentication.k8s.io/v1","status":{"userInfo":{"username":"system:node:a","groups":["system:nodes"]}}}`)
		case r.Method == http.MethodPatch:
			body, _ := io.ReadAll(r.Body)
			if strings.Contains(string(body), drain.ExcludeLabel) {
				labeled = true
				node["metadata"].(map[string]any)["labels"] = map[string]any{drain.ExcludeLabel: "nth"}
			}
			if strings.Contains(string(body), `"unschedulable":true`) {
				var patch struct {
					Metadata struct{ Annotations map[string]any }
				}
				_ = json.Unmarshal(body, &patch)
				node["metadata"].(map[string]any)["annotations"] = patch.Metadata.Annotations
				node["spec"] = map[string]any{"unschedulable": true}
			}
			_ = json.NewEncoder(w).Encode(node)
		case strings.HasSuffix(r.URL.Path, "/nodes/a"):
			_ = json.NewEncoder(w).Encode(node)
		case strings.HasSuffix(r.URL.Path, "/pods") && r.URL.Query().Get("watch") == "":
			_, _ = io.WriteString(w, `{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[]}`)
		default:
			mu.Unlock() // A watch keeps nobody else waiting.
			<-r.Context().Done()
			mu.Lock()
		}
	}))
	defer server.CloseClientConnections()
	kubeconfig := `{"apiVersion":"v1","kind":"Config","current-context":"c","clusters":[{"name":"c","cluster":{"server":"` + server.URL +
		`"}}],"contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],"users":[{"name":"u","user":{"token":"t"}}]}`
	id := identity.New(identity.Options{Read: func(context.Context) (string, []byte, error) { return "here", []byte(kubeconfig), nil }})
	s := newLocalNode(id, config.Default(), nil, nil)
	if _, err := id.Identity(t.Context()); err != nil {
		t.Fatalf("the test's API server is not good enough: %s", err)
	}
	before := *s.options.Load()
	before.ExcludeFromLoadBalancers = false
	s.use(before)
	first := drain.Goal{Generation: 1, Claim: drain.Claim{Event: "m", Kind: string(event.ScheduledMaintenance)}, Close: true, Evict: true}
	closed := make(chan struct{}, 100)
	g := s.Guard(first, func(p drain.Progress) {
		if p.Kind == state.NodeClosed {
			closed <- struct{}{}
		}
	})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); g.Run(ctx) }()
	defer func() { stop(); <-ended }()
	select {
	case <-closed:
	case <-time.After(10 * time.Second):
		t.Fatal("not cordoned")
	}
	after := before
	after.ExcludeFromLoadBalancers = true
	s.use(after) // as a SIGHUP does
	second := first
	second.Generation = 2
	second.Claim = drain.Claim{Event: "s", Kind: string(event.SpotInterruption)}
	g.Adjust(second) // A spot interruption is announced.
	known := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return labeled
	}
	for patience := time.Now().Add(time.Minute); !known(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(patience) {
			t.Fatal("drain.load_balancer_wait was set before the spot interruption was announced, and it has no effect on it")
		}
	}
}
