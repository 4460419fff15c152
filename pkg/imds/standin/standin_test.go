package standin_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/imds/standin"
)

// ask sends one request with a header, and returns the status and the document.
func ask(s *standin.Service, method, path, header, value string) (int, string) {
	r := httptest.NewRequest(method, path, http.NoBody)
	r.Header.Set(header, value)
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

func TestService_ANoticeStandsUntilItIsWithdrawn(t *testing.T) {
	s := standin.New()
	const path = "/latest/meta-data/spot/instance-action"
	if status, _ := ask(s, http.MethodGet, path, "X-Nothing", ""); status != http.StatusUnauthorized {
		t.Errorf("without a token: status %d", status)
	}
	_, token := ask(s, http.MethodPut, "/latest/api/token", "X-Aws-Ec2-Metadata-Token-Ttl-Seconds", "60")
	read := func() (int, string) { return ask(s, http.MethodGet, path, "X-Aws-Ec2-Metadata-Token", token) }
	if status, _ := read(); status != http.StatusNotFound {
		t.Errorf("before the notice: status %d", status)
	}
	s.SetSpot("terminate", time.Date(2026, 1, 31, 12, 2, 0, 0, time.UTC))
	if status, body := read(); status != http.StatusOK || !strings.Contains(body, "2026-01-31T12:02:00Z") {
		t.Errorf("with the notice: status %d, %s", status, body)
	}
	if !s.ClearSpot() || s.ClearSpot() {
		t.Error("a notice is withdrawn once")
	}
	if status, _ := read(); status != http.StatusNotFound {
		t.Errorf("after it was withdrawn: status %d", status)
	}
}
