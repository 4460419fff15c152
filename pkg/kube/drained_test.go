package kube_test

import (
	"context"
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/drain/apitest"
	"github.com/nth-project/nth/pkg/state"
)

// newCluster returns an API server with a Node and one pod, and what answers for it.
func newCluster(t *testing.T) (*apitest.Server, http.Handler) {
	t.Helper()
	s := apitest.New(t)
	s.AddPod(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a"},
		Spec:       corev1.PodSpec{TerminationGracePeriodSeconds: new(int64(1))},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning},
	}, 0)
	return s, &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: "http", Host: "apiserver.test"}) },
		Transport:     s.RoundTripper(),
		FlushInterval: -1,
		ErrorLog:      log.New(io.Discard, "", 0), // of connections that the client leaves
	}
}

// mustDrain drains the Node for a notice of 90 s.
func mustDrain(t *testing.T, client kubernetes.Interface) {
	t.Helper()
	end := time.Now().Add(90 * time.Second)
	ctx, cancel := context.WithDeadline(t.Context(), end)
	defer cancel()
	claim := drain.Claim{Event: "event-1", Kind: "spot-interruption", BootID: "boot-1", Since: time.Now().UTC()}
	goal := drain.Goal{Generation: 1, Claim: claim, Cordon: true, Evict: true, Hard: end, TimeEnds: end}
	var drained atomic.Bool
	task := drain.NewTask(goal)
	drain.New(client, apitest.Node, drain.Options{}).Guard(ctx, task, func(p drain.Progress) {
		if p.Kind == state.NodeEmpty {
			drained.Store(true)
			cancel()
		}
	})
	if result := task.Result(); !drained.Load() || result.Evicted != 1 {
		t.Errorf("drained: %t, %+v", drained.Load(), result)
	}
}

// The client has a connection to one of two servers behind a balancer when that one fails, which the balancer does not notice.
func TestDrain_EndsInTimeThoughOneServerIsDeadInside(t *testing.T) {
	t.Parallel()
	for name, sick := range map[string]http.HandlerFunc{
		"it hangs":       func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		"it answers 500": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, cluster := newCluster(t)
			var failed atomic.Bool
			first := serve(t, true, func(w http.ResponseWriter, r *http.Request) {
				if failed.Load() {
					sick(w, r)
					return
				}
				cluster.ServeHTTP(w, r)
			})
			b := balance(t, first)
			client := clientOf(t, &rest.Config{Host: "https://" + b.Addr().String(), TLSClientConfig: rest.TLSClientConfig{Insecure: true}})
			if err := get(t.Context(), client, time.Minute); !apierrors.IsForbidden(err) {
				t.Fatalf("the first request, for the Node of another, ended with %v", err)
			}
			failed.Store(true)
			b.lead(serve(t, true, cluster.ServeHTTP))
			mustDrain(t, client)
		})
	}
}
