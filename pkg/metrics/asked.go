package metrics

import (
	"strconv"
	"time"
)

// Polled counts a request for a document of the metadata service, named by its path, that ended with the result after
// that time.
func (m *Metrics) Polled(document, result string, took time.Duration) {
	m.series.imdsRequests.WithLabelValues(document, result).Inc()
	m.series.imdsTook.Observe(took.Seconds())
}

// Renewed counts a request for a session token of the metadata service; err says why there is none.
func (m *Metrics) Renewed(err error) {
	result := "ok"
	if err != nil {
		result = "error"
	}
	m.series.imdsTokens.WithLabelValues(result).Inc()
}

// HookRequests counts nothing yet for these requests about lifecycle hooks, so that an increase is seen from the first one on.
func (m *Metrics) HookRequests(actions, results []string) {
	for _, action := range actions {
		for _, result := range results {
			m.series.hookRequests.WithLabelValues(action, result)
		}
	}
}

// HookRequested counts a request about a lifecycle hook that waits, by what it asked for and what came of it.
func (m *Metrics) HookRequested(action, result string) {
	m.series.hookRequests.WithLabelValues(action, result).Inc()
	m.touch()
}

// Requested counts a request to the API server. code is the answer's status; 0 if there was none.
func (m *Metrics) Requested(method string, code int) {
	answer := "none"
	if code != 0 {
		answer = strconv.Itoa(code)
	}
	m.series.apiRequests.WithLabelValues(method, answer).Inc()
}
