package main_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"

	nthqueue "github.com/nth-project/nth/cmd/nth-queue"
	"github.com/nth-project/nth/pkg/fleet"
	"github.com/nth-project/nth/pkg/sqs"
)

func TestProbes_SayWhoLeads(t *testing.T) {
	logger, _ := logtest.NewNullLogger()
	for name, row := range map[string]struct {
		stand   fleet.Status
		healthz int
		readyz  int
		said    string // by both
	}{
		"it leads, and has received nothing": {fleet.Status{Known: true, Leads: true}, http.StatusOK, http.StatusServiceUnavailable, ""},
		"it stands by":                       {fleet.Status{Known: true, Leader: "host-2"}, http.StatusOK, http.StatusOK, "host-2 leads"},
		"nobody leads":                       {fleet.Status{Known: true}, http.StatusOK, http.StatusOK, "nobody is known to lead"},
		"the Lease cannot be read":           {fleet.Status{Known: true, LeaseError: errors.New("forbidden")}, http.StatusOK, http.StatusServiceUnavailable, ""},
		"the Nodes are not known":            {fleet.Status{}, http.StatusOK, http.StatusServiceUnavailable, ""},
	} {
		probes := nthqueue.Probes(sqs.New(sqs.Options{}), row.stand, "host-1", logrus.NewEntry(logger))
		for path, code := range map[string]int{"/healthz": row.healthz, "/readyz": row.readyz} {
			answer := httptest.NewRecorder()
			probes.ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
			if answer.Code != code || !strings.Contains(answer.Body.String(), row.said) {
				t.Errorf("%s: the answer of %s is %d: %s", name, path, answer.Code, answer.Body)
			}
		}
	}
}
