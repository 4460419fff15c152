package main

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/identity"
)

// clusterOf is an API server with the node a, cordoned by nth, that counts what is asked of its Nodes. It refuses all but its own token.
func clusterOf(t *testing.T, token string) (server *httptest.Server, asked *atomic.Int64, lifted func() bool, ready *atomic.Bool) {
	t.Helper()
	var mu sync.Mutex
	asked, ready = &atomic.Int64{}, &atomic.Bool{}
	open := false
	server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		if r.Header.Get("Authorization") != "Bearer "+token {
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","code":401,"reason":"Unauthorized","message":"Unauthorized"}`)
			return
		}
		status := "False"
		if ready.Load() {
			status = "True"
		}
		node := map[string]any{
			"kind": "Node", "apiVersion": "v1",
			"metadata": map[string]any{
				"name": "a", "uid": "u", "resourceVersion": "1",
				"annotations": map[string]any{drain.CordonAnnotation: `{"writer":"nth","event":"e","kind":"scheduled-maintenance","boot_id":"b0"}`},
			},
			"spec":   map[string]any{"unschedulable": true},
			"status": map[string]any{"conditions": []any{map[string]any{"type": "Ready", "status": status}}, "nodeInfo": map[string]any{"bootID": "b1"}},
		}
		switch {
		case strings.HasSuffix(r.URL.Path, "/selfsubjectreviews"):
			w.WriteHeader(http.StatusCreated)
			_, _ = io.WriteString(w, `{"kind":"SelfSubjectReview","apiVersion":"authentication.k8s.io/v1","status":{"userInfo":{"username":"system:node:a","groups":["system:nodes"]}}}`)
		case r.Method == http.MethodPatch:
			open = true
			node["spec"] = map[string]any{}
			_ = json.NewEncoder(w).Encode(node)
		default:
			asked.Add(1)
			_ = json.NewEncoder(w).Encode(node)
		}
	}))
	t.Cleanup(server.Close)
	return server, asked, func() bool { mu.Lock(); defer mu.Unlock(); return open }, ready
}

func kubeconfigOf(server, token string) []byte {
	return []byte(`{"apiVersion":"v1","kind":"Config","current-context":"c","clusters":[{"name":"c","cluster":{"server":"` + server +
		`","insecure-skip-tls-verify":true}}],"contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],"users":[{"name":"u","user":{"token":"` + token + `"}}]}`)
}

// After a reboot the cordon is to be lifted once the node is Ready. Meanwhile the kubeconfig is replaced.
func TestUncordon_FollowsAReplacedKubeconfig(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct{ moves bool }{"a token that was rotated": {false}, "an endpoint that has moved": {true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			first, askedBefore, _, _ := clusterOf(t, "one")
			second, asked, lifted, ready := clusterOf(t, "two")
			var mu sync.Mutex
			text := kubeconfigOf(first.URL, "one")
			k := identity.New(identity.Options{Read: func(context.Context) (string, []byte, error) {
				mu.Lock()
				defer mu.Unlock()
				return "here", text, nil
			}})
			if _, err := k.Identity(t.Context()); err != nil {
				t.Fatal(err)
			}
			s := newLocalNode(k, config.Default(), nil, nil)
			ctx, stop := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() {
				_, err := s.Uncordon(ctx, func(id string, _ time.Time) bool { return id == "b1" })
				ended <- err
			}()
			defer func() {
				stop()
				t.Logf("the uncordon ended with: %v", <-ended)
			}()
			for askedBefore.Load() == 0 {
				time.Sleep(10 * time.Millisecond)
			}
			if row.moves {
				first.CloseClientConnections()
				first.Listener.Close()
			}
			mu.Lock()
			text = kubeconfigOf(second.URL, "two")
			mu.Unlock()
			ready.Store(true) // in the cluster as it is now
			limit := time.Now().Add(40 * time.Second)
			go func() { // as KeepWarm does
				for ctx.Err() == nil {
					_, _ = k.Identity(ctx)
					time.Sleep(time.Second)
				}
			}()
			for !lifted() {
				if time.Now().After(limit) {
					id, err := k.Identity(t.Context())
					t.Fatalf("40 s after the kubeconfig was replaced the cordon is not lifted; the new server was asked for its Node %d times; the identity is at %s (new: %s), %v",
						asked.Load(), id.Server, second.URL, err)
				}
				time.Sleep(50 * time.Millisecond)
			}
		})
	}
}
