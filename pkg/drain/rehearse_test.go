package drain_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/drain/apitest"
	"github.com/nth-project/nth/pkg/evict"
)

// accepted answers a rehearsal as the API server does, without the eviction that the stand-in would begin.
func accepted(w http.ResponseWriter, _ *http.Request) bool {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Success"}`))
	return true
}

func rehearse(t *testing.T, s *apitest.Server) (evict.Rehearsal, error) {
	t.Helper()
	return drain.New(s.Client(), apitest.Node, drain.Options{}).Rehearse(t.Context())
}

func TestARehearsalIsADryRunOfAPodThatWouldHaveToGo(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.AddPod(pod("agent", ownedBy("DaemonSet", "apps/v1")), apitest.Never)
		s.AddPod(pod("static", mirror), apitest.Never)
		if got, err := rehearse(t, s); err != nil || got != (evict.Rehearsal{}) {
			t.Errorf("without such a pod: %+v, %v", got, err)
		}
		s.AddPod(pod("web"), apitest.Never)
		s.Always("evict", accepted)
		got, err := rehearse(t, s)
		if err != nil || !strings.HasSuffix(got.Pod, "/web") || got.HeldBy != "" {
			t.Errorf("got %+v, %v", got, err)
		}
		asked := s.Requests("evict")
		if len(asked) != 1 || len(asked[0].Query["dryRun"]) != 1 || asked[0].Query["dryRun"][0] != "All" ||
			len(asked[0].Options.DryRun) != 1 || asked[0].Options.DryRun[0] != "All" {
			t.Errorf("asked: %+v", asked)
		}
	})
}

func TestARehearsalTellsWhatWouldHoldThePod(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.AddPod(pod("web"), apitest.Never)
		s.Always("evict", apitest.HeldBy("web", 0))
		if got, err := rehearse(t, s); err != nil || got.HeldBy != "web" {
			t.Errorf("held by a budget: %+v, %v", got, err)
		}
		s.Always("evict", apitest.Forbidden("not you"))
		if _, err := rehearse(t, s); err == nil || !strings.Contains(err.Error(), "rehearsing the eviction of") || !strings.Contains(err.Error(), "not you") {
			t.Errorf("refused: %v", err)
		}
		if asked := s.Requests("evict"); len(asked) != 2 {
			t.Errorf("asked %d times, want once each", len(asked))
		}
	})
}
