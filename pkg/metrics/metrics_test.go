package metrics_test

import (
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/nth-project/nth/pkg/asg"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/metrics"
	"github.com/nth-project/nth/pkg/sqs"
	"github.com/nth-project/nth/pkg/state"
)

func TestDrain_IsCountedFromItsNoticeToItsEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := metrics.New(metrics.Options{})
		want(t, m, map[string]float64{ // An increase is seen from there.
			`nth_events_total{kind="spot-interruption"}`:                    0,
			`nth_actions_total{action="drain",outcome="done"}`:              0,
			`nth_actions_total{action="drain",outcome="deadline-exceeded"}`: 0,
			`nth_notices_total{outcome="lost"}`:                             0,
		})
		wantNone(t, m, `nth_drain_deadline_remaining_seconds{kind="spot-interruption"}`)

		time.Sleep(time.Minute)
		m.OnTransition(spot(state.Announced, func(t *state.Transition) { t.Action = "" }))
		m.OnTransition(spot(state.Begun))
		m.Show(state.Status{Step: &state.StepStatus{Action: "drain", HeldBy: map[string]string{"a/b": "PDB a/c"}}})
		m.OnTransition(spot(state.NodeCordoned, seen(200*time.Millisecond)))
		for left := range 3 {
			m.OnTransition(spot(state.PodEvicted, pods(4, 4-left)))
		}
		m.OnTransition(spot(state.PodDeleted, pods(4, 2)))
		want(t, m, map[string]float64{
			`nth_events_total{kind="spot-interruption"}`: 1,
			"nth_pods_evicted_total":                     3, "nth_pods_deleted_total": 1, "nth_drain_pods": 4, "nth_drain_pods_left": 2,
			"nth_notice_to_cordon_seconds_count": 1, "nth_notice_to_cordon_seconds_sum": 0.2, "nth_draining": 1, "nth_drain_pods_held": 1,
		})

		m.OnTransition(spot(state.Done, seen(3*time.Second), pods(4, 0)))
		m.OnTransition(spot(state.Done, func(t *state.Transition) { t.Action = "uncordon" }))
		m.Show(state.Status{})
		want(t, m, map[string]float64{
			"nth_draining": 0, "nth_drain_pods": 4, "nth_drain_pods_left": 0, "nth_drain_pods_held": 0,
			`nth_actions_total{action="drain",outcome="done"}`:               1,
			`nth_actions_total{action="uncordon",outcome="done"}`:            1,
			"nth_drain_duration_seconds_count":                               1,
			"nth_drain_duration_seconds_sum":                                 3,
			`nth_drain_deadline_remaining_seconds{kind="spot-interruption"}`: 60,
		})
	})
}

func TestDrain_IsCountedByItsEnd(t *testing.T) {
	t.Parallel()
	for outcome, took := range map[state.TransitionKind]float64{state.RanOut: 1, state.Failed: 0, state.CalledBack: 0, state.LeftAlone: 0} {
		m := metrics.New(metrics.Options{})
		m.OnTransition(spot(outcome, pods(2, 1)))
		want(t, m, map[string]float64{
			`nth_actions_total{action="drain",outcome="` + string(outcome) + `"}`: 1,
			"nth_drain_duration_seconds_count":                                    took, "nth_drain_pods_left": 1,
		})
	}
}

func TestShow_ExportsEventsSourcesAndCredential(t *testing.T) {
	t.Parallel()
	m := metrics.New(metrics.Options{})
	near, far := time.Unix(1000, 0), time.Unix(2000, 500e6)
	m.Show(state.Status{
		Node: "a",
		Events: []state.EventStatus{
			{Kind: event.SpotInterruption, Phase: state.Draining, Deadline: near},
			{Kind: event.ScheduledMaintenance, Phase: state.Seen, Deadline: far},
			{Kind: event.ScheduledMaintenance, Phase: state.Drained, Deadline: far.Add(time.Hour)},
			{Kind: event.ASGTermination, Phase: state.Seen},
			{Kind: event.RebalanceRecommendation, Phase: state.Undoing},
			{Kind: event.Shutdown, Phase: state.Seen, Missing: near},
		},
		Documents: []state.DocumentStatus{
			{Kind: event.SpotInterruption, LastGood: time.Unix(1000, 0)},
			{Kind: event.ASGTermination, LastGood: time.Unix(900, 0), Trouble: "no answer"},
			{Kind: event.ScheduledMaintenance, Trouble: "no answer"},
		},
		Degraded: []string{"webhook: no address"},
	})
	want(t, m, map[string]float64{
		`nth_events_pending{kind="spot-interruption"}`:                       1,
		`nth_events_pending{kind="scheduled-maintenance"}`:                   2,
		`nth_events_pending{kind="asg-termination"}`:                         1,
		`nth_events_pending{kind="rebalance-recommendation"}`:                0,
		`nth_events_pending{kind="shutdown"}`:                                0,
		`nth_event_deadline_timestamp_seconds{kind="spot-interruption"}`:     1000,
		`nth_event_deadline_timestamp_seconds{kind="scheduled-maintenance"}`: 2000.5,
		`nth_source_up{kind="spot-interruption"}`:                            1, `nth_source_last_success_timestamp_seconds{kind="spot-interruption"}`: 1000,
		`nth_source_up{kind="asg-termination"}`: 0, `nth_source_last_success_timestamp_seconds{kind="asg-termination"}`: 900,
		`nth_source_up{kind="scheduled-maintenance"}`: 0,
		"nth_credential_up":                           1, "nth_degraded": 1,
	})
	wantNone(t, m, `nth_event_deadline_timestamp_seconds{kind="asg-termination"}`, `nth_source_up{kind="rebalance-recommendation"}`,
		`nth_source_last_success_timestamp_seconds{kind="scheduled-maintenance"}`)

	m.Show(state.Status{Node: "a", Identity: state.IdentityStatus{Trouble: "expired"}})
	want(t, m, map[string]float64{`nth_events_pending{kind="spot-interruption"}`: 0, "nth_credential_up": 0, "nth_degraded": 0})
	wantNone(t, m, `nth_event_deadline_timestamp_seconds{kind="spot-interruption"}`)
}

func TestQueue_ExportsItsStatus(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := metrics.New(metrics.Options{Queue: true})
		m.Messages("received", "deleted")
		m.Message("received")
		m.Received(300 * time.Millisecond)
		m.ShowQueue(metrics.QueueStatus{
			InFlight: 3, Oldest: time.Now().Add(-20 * time.Second), Up: true, LastAnswer: time.Now(), Leads: true, Known: 9, Draining: 2, Waiting: 1,
		})
		m.Show(state.Status{Events: []state.EventStatus{{Kind: event.StateChange}}})
		m.OnTransition(spot(state.Done))
		want(t, m, map[string]float64{
			`nth_queue_messages_total{outcome="received"}`: 1, `nth_queue_messages_total{outcome="deleted"}`: 0,
			"nth_queue_messages_in_flight": 3, "nth_queue_oldest_message_age_seconds": 20, "nth_queue_up": 1, "nth_queue_leads": 1,
			"nth_queue_receive_delay_seconds_count": 1, "nth_queue_receive_delay_seconds_sum": 0.3,
			`nth_queue_nodes{state="known"}`: 9, `nth_queue_nodes{state="draining"}`: 2, `nth_queue_nodes{state="waiting"}`: 1,
			`nth_events_pending{kind="state-change"}`:          1,
			`nth_actions_total{action="drain",outcome="done"}`: 1,
		})
		wantNone(t, m, "nth_credential_up", "nth_draining", "nth_drain_pods_left")
		m.ShowQueue(metrics.QueueStatus{})
		want(t, m, map[string]float64{"nth_queue_up": 0, "nth_queue_leads": 0, "nth_queue_oldest_message_age_seconds": 0})
	})
}

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
	return parse(t, ask(t, m, "/metrics").Body.String())
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

// values flattens series to "name{label="value",...}"; of a histogram, its count and its sum.
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
		if value, exists := got[name]; !exists || value != series[name] {
			t.Errorf("%s is %v (it exists: %t), want %v", name, value, exists, series[name])
		}
	}
}

// wantNone checks that some series do not exist.
func wantNone(t *testing.T, m *metrics.Metrics, names ...string) {
	t.Helper()
	got := values(t, m)
	for _, name := range names {
		if value, exists := got[name]; exists {
			t.Errorf("%s is %v, want it not to exist", name, value)
		}
	}
}

// spot is a transition of a drain for a spot interruption, which was seen a second ago, and whose deadline is in a minute.
func spot(kind state.TransitionKind, changes ...func(*state.Transition)) state.Transition {
	now := time.Now()
	t := state.Transition{
		Kind: kind, At: now, Action: "drain", Took: time.Second, Deadline: now.Add(time.Minute).Round(0),
		Entry: state.Entry{FirstSeen: now.Add(-time.Second).Round(0), Event: event.Event{ID: "a", Kind: event.SpotInterruption}},
	}
	for _, change := range changes {
		change(&t)
	}
	return t
}

// seen is how long ago the event was seen, and the step began.
func seen(ago time.Duration) func(*state.Transition) {
	return func(t *state.Transition) { t.Took, t.Entry.FirstSeen = ago, t.At.Add(-ago).Round(0) }
}

func pods(total, left int) func(*state.Transition) {
	return func(t *state.Transition) { t.Total, t.Left = total, left }
}

var (
	// documented is a row of docs/metrics.md about a series: its name, type, labels and meaning.
	documented = regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\| (counter|gauge|histogram) \\| ([a-z_`, ]*)\\|(.*)$")
	quoted     = regexp.MustCompile("`([^`]+)`")
	// explained are the labels whose values the page lists.
	explained = []string{"action", "outcome", "result", "state"}
)

// Dashboards and alerts depend on names, types and labels: the page has all of them, and no other.
func TestDocumentation_HasEverySeriesLabelAndOutcome(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	onPage := map[string]string{}
	for _, row := range documented.FindAllStringSubmatch(string(page), -1) {
		onPage[row[1]] = row[2] + describe(row[3], row[4])
	}
	made := map[string]string{}
	families := scrape(t, everything())
	maps.Copy(families, scrape(t, everythingOfQueue()))
	for name, family := range families {
		if strings.HasPrefix(name, "go_") || strings.HasPrefix(name, "process_") {
			continue
		}
		var labels, outcomes strings.Builder
		for _, metric := range family.GetMetric() {
			for _, label := range metric.GetLabel() {
				labels.WriteString("`" + label.GetName() + "`")
				if slices.Contains(explained, label.GetName()) {
					outcomes.WriteString("`" + label.GetValue() + "`")
				}
			}
		}
		made[name] = strings.ToLower(family.GetType().String()) + describe(labels.String(), outcomes.String())
	}
	for name := range onPage {
		if made[name] == "" {
			made[name] = "" // The page has it, and it does not exist.
		}
	}
	for _, name := range slices.Sorted(maps.Keys(made)) {
		if onPage[name] != made[name] {
			t.Errorf("docs/metrics.md has %s as %q, it is %q", name, onPage[name], made[name])
		}
	}
}

// describe lists what is quoted in two cells: the labels, and the values of those that are explained.
func describe(labels, outcomes string) string {
	list := func(cell string) string {
		var all []string
		for _, word := range quoted.FindAllStringSubmatch(cell, -1) {
			all = append(all, word[1])
		}
		slices.Sort(all)
		return strings.Join(slices.Compact(all), ",")
	}
	if !slices.ContainsFunc(explained, func(label string) bool { return strings.Contains(labels, "`"+label+"`") }) {
		outcomes = ""
	}
	return " {" + list(labels) + "}: " + list(outcomes)
}

// everything is a Metrics to which everything has happened.
func everything() *metrics.Metrics {
	m := metrics.New(metrics.Options{Version: "v1", Commit: "c"})
	kinds := []state.TransitionKind{state.Announced, state.Begun, state.NodeCordoned, state.PodEvicted, state.PodDeleted, state.Done, state.Failed}
	for _, kind := range kinds {
		for _, action := range []string{"cordon", "drain", "uncordon"} {
			m.OnTransition(spot(kind, func(t *state.Transition) { t.Action = action }))
		}
	}
	m.Show(state.Status{
		Events:    []state.EventStatus{{Kind: event.SpotInterruption, Deadline: time.Unix(1, 0)}},
		Documents: []state.DocumentStatus{{Kind: event.SpotInterruption, LastGood: time.Unix(1, 0)}},
	})
	for _, result := range []string{"ok", "absent", "error"} {
		m.Polled("spot/instance-action", result)
	}
	m.Requested("GET", 0)
	for _, request := range asg.Requests() {
		for _, answer := range asg.Answers() {
			m.HookRequested(string(request), string(answer))
		}
	}
	return m
}

// everythingOfQueue is a Metrics of nth-queue to which everything has happened.
func everythingOfQueue() *metrics.Metrics {
	m := metrics.New(metrics.Options{Version: "v1", Commit: "c", Queue: true})
	m.OnTransition(spot(state.Done))
	m.Show(state.Status{Events: []state.EventStatus{{Kind: event.StateChange, Deadline: time.Unix(1, 0)}}})
	m.ShowQueue(metrics.QueueStatus{})
	for _, what := range sqs.Outcomes() {
		m.Message(string(what))
	}
	return m
}
