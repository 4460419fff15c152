package main

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/drain/apitest"
	"github.com/nth-project/nth/pkg/identity"
	"github.com/nth-project/nth/pkg/state"
)

// Other settings apply from the next event on. What was done before counts all the same.
func TestGuard_CountsOverAReload(t *testing.T) {
	t.Parallel()
	s := apitest.New(t)
	s.AddPod(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}, Spec: corev1.PodSpec{NodeName: apitest.Node},
		Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}, 0)
	proxy := &httputil.ReverseProxy{Transport: s.RoundTripper(), FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) {
		r.Out.URL.Scheme, r.Out.URL.Host = "http", "server"
	}}
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var answer string
		switch {
		case strings.HasSuffix(r.URL.Path, "/selfsubjectreviews"):
			answer = `{"kind":"SelfSubjectReview","apiVersion":"authentication.k8s.io/v1","status":{"userInfo":{"username":"system:node:` + apitest.Node + `"}}}`
		case strings.HasSuffix(r.URL.Path, "/eviction"):
			s.RemovePod("default/web")
			answer = `{"kind":"Status","apiVersion":"v1","status":"Success","code":201}`
		default:
			proxy.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, answer)
	}))
	t.Cleanup(server.Close)
	k := identity.New(identity.Options{Read: func(context.Context) (string, []byte, error) { return "here", kubeconfigOf(server.URL, "one"), nil }})
	local := newLocalNode(k, config.Default(), nil, nil)
	goal := drain.Goal{
		Generation: 1, Claim: drain.Claim{Event: "a", Kind: "spot-interruption", BootID: "b", Since: time.Now()},
		Close: true, Evict: true, Hard: time.Now().Add(10 * time.Minute),
	}
	told := make(chan drain.Progress, 1000)
	guard := local.Guard(goal, func(p drain.Progress) { told <- p })
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { guard.Run(ctx); close(done) }()
	defer func() { stop(); <-done }()
	empty := func(number int) {
		t.Helper()
		limit := time.After(time.Minute)
		for {
			select {
			case p := <-told:
				if p.Kind == state.NodeEmpty && p.Generation == number {
					return
				}
			case <-limit:
				t.Fatalf("not drained for generation %d", number)
			}
		}
	}
	empty(1)
	options := *local.options.Load()
	options.Margin += time.Second
	local.use(options)
	goal.Generation = 2
	guard.Adjust(goal)
	empty(2)
	if result := guard.Result(); result.Evicted != 1 {
		t.Errorf("one pod was evicted, and the result is %+v", result)
	}
}
