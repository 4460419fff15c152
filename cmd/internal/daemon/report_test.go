package daemon_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/nth-project/nth/cmd/internal/daemon"
	"github.com/nth-project/nth/cmd/internal/settings"
	"github.com/nth-project/nth/pkg/asg"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/metrics"
	"github.com/nth-project/nth/pkg/notify"
	"github.com/nth-project/nth/pkg/state"
)

func TestMetrics_CountWhatBothProgramsDo(t *testing.T) {
	logger := logrus.New()
	logger.SetOutput(io.Discard)
	log, cfg := logrus.NewEntry(logger), &config.Common{}
	m := daemon.NewMetrics("nth", cfg, log, metrics.Options{})
	m.Requested(http.MethodGet, http.StatusOK)
	daemon.CountHooks(m)(asg.Heartbeat, asg.NotAllowed)
	for _, status := range []int{http.StatusOK, http.StatusBadRequest} {
		endpoint := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }))
		t.Cleanup(endpoint.Close)
		address := filepath.Join(t.TempDir(), "url")
		if err := os.WriteFile(address, []byte(endpoint.URL), 0o600); err != nil {
			t.Fatal(err)
		}
		to, _ := settings.Webhook(config.Webhook{URLFile: address, At: []string{"announced"}}, "nth")
		w := daemon.NewWebhook(to, false, log, m)
		w.Node(notify.Subject{
			Machine: func(context.Context) notify.Machine { return notify.Machine{} },
			Node:    func(context.Context) (string, map[string]string) { return "", nil },
		}).OnTransition(state.Transition{Kind: state.Announced, At: time.Now()})
		ended, end := context.WithCancel(t.Context())
		end()
		w.Run(ended) // A notice that is left is tried once more.
	}
	answer := httptest.NewRecorder()
	m.Handler().ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for _, want := range []string{
		`nth_notices_total{outcome="delivered"} 1`, `nth_notices_total{outcome="lost"} 1`,
		`nth_api_requests_total{code="200",method="GET"} 1`, `nth_hook_requests_total{action="heartbeat",result="refused"} 1`,
		`nth_hook_requests_total{action="abandon",result="ok"} 0`, // An increase is seen from there.
	} {
		if !strings.Contains(answer.Body.String(), want+"\n") {
			t.Errorf("%s is missing", want)
		}
	}
}
