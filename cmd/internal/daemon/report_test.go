package daemon_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/nth-project/nth/cmd/internal/daemon"
	"github.com/nth-project/nth/pkg/asg"
	"github.com/nth-project/nth/pkg/metrics"
	"github.com/nth-project/nth/pkg/notify"
)

// happen has counted what there is to count.
func happen(c daemon.Counts) {
	c.Notice(notify.DeliveryResult{})
	c.Notice(notify.DeliveryResult{Err: errors.New("no answer")}) // It is tried again.
	c.Notice(notify.DeliveryResult{Err: errors.New("too many are waiting"), Lost: true})
	c.Requested(http.MethodGet, http.StatusOK)
	c.HookRequested(asg.Heartbeat, asg.NotAllowed)
}

func TestWhatBothProgramsDoIsCounted(t *testing.T) {
	m := metrics.New(metrics.Options{})
	happen(daemon.CountIn(m))
	answer := httptest.NewRecorder()
	m.Handler().ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for _, want := range []string{
		`nth_notices_total{outcome="delivered"} 1`, `nth_notices_total{outcome="lost"} 1`,
		`nth_api_requests_total{code="200",method="GET"} 1`, `nth_hook_requests_total{action="heartbeat",result="refused"} 1`,
		`nth_hook_requests_total{action="abandon",result="ok"} 0`, // An increase is seen from there.
	} {
		if !strings.Contains(answer.Body.String(), want+"\n") {
			t.Errorf("there is no %s", want)
		}
	}
}

func TestWhereNobodyAsksForMetricsNothingIsCounted(*testing.T) {
	happen(daemon.Counts{})
}
