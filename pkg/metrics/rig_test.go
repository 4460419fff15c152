package metrics_test

import (
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/metrics"
	"github.com/nth-project/nth/pkg/record"
)

// ask asks the handler for a page.
func ask(t *testing.T, m *metrics.Metrics, path string) *httptest.ResponseRecorder {
	t.Helper()
	answer := httptest.NewRecorder()
	m.Handler().ServeHTTP(answer, httptest.NewRequest(http.MethodGet, path, nil))
	return answer
}

// scrape returns all series of nth, as Prometheus would read them.
func scrape(t *testing.T, m *metrics.Metrics) map[string]*dto.MetricFamily {
	t.Helper()
	answer := ask(t, m, "/metrics")
	if answer.Code != http.StatusOK {
		t.Fatalf("got %d: %s", answer.Code, answer.Body)
	}
	return parse(t, answer.Body.String())
}

func parse(t *testing.T, text string) map[string]*dto.MetricFamily {
	t.Helper()
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		t.Fatalf("reading metrics: %v\n%s", err, text)
	}
	return families
}

// values flattens series to "name{label="value",...}"; of a histogram, there are its count and its sum.
func values(t *testing.T, m *metrics.Metrics) map[string]float64 {
	t.Helper()
	all := map[string]float64{}
	for name, family := range scrape(t, m) {
		for _, metric := range family.GetMetric() {
			var pairs []string
			for _, label := range metric.GetLabel() {
				pairs = append(pairs, fmt.Sprintf("%s=%q", label.GetName(), label.GetValue()))
			}
			labels := ""
			if len(pairs) > 0 {
				labels = "{" + strings.Join(pairs, ",") + "}"
			}
			if h := metric.GetHistogram(); h != nil {
				all[name+"_count"+labels], all[name+"_sum"+labels] = float64(h.GetSampleCount()), h.GetSampleSum()
				continue
			}
			all[name+labels] = metric.GetGauge().GetValue() + metric.GetCounter().GetValue()
		}
	}
	return all
}

// want checks some of the series.
func want(t *testing.T, m *metrics.Metrics, series map[string]float64) {
	t.Helper()
	got := values(t, m)
	for _, name := range slices.Sorted(maps.Keys(series)) {
		if value, there := got[name]; !there || value != series[name] {
			t.Errorf("%s is %v (there: %t), want %v", name, value, there, series[name])
		}
	}
}

// wantNone checks that there are no such series.
func wantNone(t *testing.T, m *metrics.Metrics, names ...string) {
	t.Helper()
	got := values(t, m)
	for _, name := range names {
		if value, there := got[name]; there {
			t.Errorf("%s is %v, want it not to be there", name, value)
		}
	}
}

// spot is a happening of a drain for a spot interruption that was met so long ago and leaves so much time.
func spot(what record.What, met, left time.Duration) record.Happening {
	now := time.Now()
	e := record.Entry{FirstSeen: now.Add(-met).Round(0), Event: event.Event{ID: "a", Kind: event.SpotInterruption}}
	return record.Happening{What: what, At: now, Entry: e, Action: "drain", Took: met, Deadline: now.Add(left).Round(0)}
}
