package metrics_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nth-project/nth/pkg/metrics"
	"github.com/nth-project/nth/pkg/record"
)

func TestHealthIsLostWithTheLoopAndComesBackWithIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := metrics.New(metrics.Options{})
		for range 6 {
			time.Sleep(10 * time.Second)
			wantHealth(t, m, "")
			m.Show(record.Status{})
		}
		time.Sleep(31 * time.Second)
		wantHealth(t, m, "the loop that decides has given no sign of life for 31s")
		m.Show(record.Status{})
		wantHealth(t, m, "")
	})
}

func TestHealthIsLostWithASource(t *testing.T) {
	t.Parallel()
	var stuck error
	m := metrics.New(metrics.Options{Stuck: func() error { return stuck }})
	wantHealth(t, m, "")
	stuck = errors.New("looking for spot-interruption: neither an answer nor an error for 1m1s")
	wantHealth(t, m, stuck.Error())
	stuck = nil
	wantHealth(t, m, "")
}

// wantHealth checks what is said about nth's health, in the two ways. trouble "" is none.
func wantHealth(t *testing.T, m *metrics.Metrics, trouble string) {
	t.Helper()
	status, text, healthy := http.StatusOK, "ok\n", 1.0
	if trouble != "" {
		status, text, healthy = http.StatusServiceUnavailable, trouble+"\n", 0
	}
	answer := ask(t, m, "/healthz")
	if answer.Code != status || answer.Body.String() != text {
		t.Errorf("got %d %q, want %d %q", answer.Code, answer.Body, status, text)
	}
	want(t, m, map[string]float64{"nth_healthy": healthy})
}

func TestNothingElseIsServed(t *testing.T) {
	t.Parallel()
	m := metrics.New(metrics.Options{})
	for _, path := range []string{"/", "/debug/pprof/", "/metrics/x", "/readyz"} {
		if answer := ask(t, m, path); answer.Code != http.StatusNotFound {
			t.Errorf("%s: got %d, want 404", path, answer.Code)
		}
	}
	if kind := ask(t, m, "/metrics").Header().Get("Content-Type"); !strings.HasPrefix(kind, "text/plain; version=0.0.4") {
		t.Errorf("the content type is %q", kind)
	}
}
