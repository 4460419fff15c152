package kube_test

import (
	"context"
	"io"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

// A server that is dead inside may still begin its answers, and open watches from its cache.
func TestTransport_LeavesAServerThatOnlyBegins(t *testing.T) {
	t.Parallel()
	hang := func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	half := func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, `{"kind":`)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}
	cut := func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, `{"kind":`)
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
	for name, c := range map[string]struct {
		sick    http.HandlerFunc
		watches bool
	}{
		"half a body, then nothing":    {half, false},
		"half a body, then a reset":    {cut, false},
		"it hangs, and opens watches":  {hang, true},
		"it begins, and opens watches": {half, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var sick atomic.Bool
			ok := func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("{}")) }
			first := serve(t, true, func(w http.ResponseWriter, r *http.Request) {
				switch {
				case !sick.Load() || r.URL.Query().Get("watch") != "":
					ok(w, r)
				default:
					c.sick(w, r)
				}
			})
			second := serve(t, true, ok)
			b := balance(t, first)
			client := clientOf(t, &rest.Config{Host: "https://" + b.Addr().String(), TLSClientConfig: rest.TLSClientConfig{Insecure: true}})
			if err := get(t.Context(), client, time.Minute); err != nil {
				t.Fatal(err)
			}
			sick.Store(true)
			b.lead(second)
			failed := 0
			for get(t.Context(), client, 300*time.Millisecond) != nil {
				if failed++; failed > 10 {
					t.Fatal("the sick server is not left")
				}
				if c.watches {
					ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
					_, _ = client.CoreV1().RESTClient().Get().AbsPath("/api/v1/pods").Param("watch", "true").MaxRetries(0).DoRaw(ctx)
					cancel()
				}
			}
		})
	}
}
