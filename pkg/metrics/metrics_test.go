package metrics_test

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/metrics"
	"github.com/nth-project/nth/pkg/state"
)

func TestADrainIsCountedFromItsNoticeToItsEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := metrics.New(metrics.Options{})
		want(t, m, map[string]float64{
			`nth_events_total{kind="spot-interruption"}`:                    0,
			`nth_actions_total{action="drain",outcome="done"}`:              0,
			`nth_actions_total{action="drain",outcome="deadline-exceeded"}`: 0,
			"nth_draining": 0,
		})
		wantNone(t, m, `nth_drain_deadline_remaining_seconds{kind="spot-interruption"}`)

		time.Sleep(time.Minute)
		announced := spot(state.Announced, 0, 2*time.Minute)
		announced.Action = ""
		m.OnTransition(announced)
		m.OnTransition(spot(state.Begun, 0, 2*time.Minute))
		want(t, m, map[string]float64{`nth_events_total{kind="spot-interruption"}`: 1, "nth_draining": 1})

		m.OnTransition(spot(state.NodeCordoned, 200*time.Millisecond, 119*time.Second))
		for left := range 3 {
			evicted := spot(state.PodEvicted, time.Second, 119*time.Second)
			evicted.Total, evicted.Left = 4, 4-left
			m.OnTransition(evicted)
		}
		deleted := spot(state.PodDeleted, time.Second, 119*time.Second)
		deleted.Total, deleted.Left = 4, 2
		m.OnTransition(deleted)
		want(t, m, map[string]float64{
			"nth_pods_evicted_total": 3, "nth_pods_deleted_total": 1, "nth_drain_pods": 4, "nth_drain_pods_left": 2,
			"nth_notice_to_cordon_seconds_count": 1, "nth_notice_to_cordon_seconds_sum": 0.2, "nth_draining": 1,
		})

		done := spot(state.Done, 3*time.Second, 117*time.Second)
		done.Total = 4
		m.OnTransition(done)
		want(t, m, map[string]float64{
			"nth_draining": 0, "nth_drain_pods": 4, "nth_drain_pods_left": 0,
			`nth_actions_total{action="drain",outcome="done"}`:               1,
			"nth_drain_duration_seconds_count":                               1,
			"nth_drain_duration_seconds_sum":                                 3,
			`nth_drain_deadline_remaining_seconds{kind="spot-interruption"}`: 117,
		})
	})
}

func TestADrainThatDoesNotEndWellIsCountedByItsEnd(t *testing.T) {
	t.Parallel()
	for outcome, took := range map[state.TransitionKind]float64{state.RanOut: 1, state.Failed: 0, state.CalledBack: 0} {
		m := metrics.New(metrics.Options{})
		h := spot(outcome, time.Second, -time.Second)
		h.Left, h.Total = 1, 2
		m.OnTransition(h)
		want(t, m, map[string]float64{
			`nth_actions_total{action="drain",outcome="` + string(outcome) + `"}`: 1,
			"nth_drain_duration_seconds_count":                                    took, "nth_drain_pods_left": 1, "nth_draining": 0,
		})
		if took > 0 {
			want(t, m, map[string]float64{`nth_drain_deadline_remaining_seconds{kind="spot-interruption"}`: -1})
		}
	}
}

// One drain is for all events of a node, and its guard goes on when it has ended for all of them.
func TestADrainIsUnderWayUntilItHasEndedForTheLastOfItsEvents(t *testing.T) {
	t.Parallel()
	m := metrics.New(metrics.Options{})
	hear := func(what state.TransitionKind, id string, total, left int, under float64) {
		t.Helper()
		h := spot(what, 0, time.Minute)
		h.Entry.Event.ID, h.Node, h.Total, h.Left = id, "node-a", total, left
		if id == "" {
			h.Entry.Event.ID, h.Node = "a", ""
		}
		m.OnTransition(h)
		want(t, m, map[string]float64{"nth_draining": under, "nth_drain_pods": float64(total), "nth_drain_pods_left": float64(left)})
	}
	hear(state.Begun, "", 0, 0, 1) // before the node has a name
	hear(state.PodEvicted, "a", 2, 2, 1)
	hear(state.Failed, "a", 2, 2, 1)
	hear(state.Begun, "b", 2, 2, 1)
	hear(state.RanOut, "a", 2, 1, 1)
	hear(state.PodGone, "a", 2, 0, 1)
	hear(state.Done, "b", 2, 0, 0)
	hear(state.Done, "a", 2, 0, 0)
	hear(state.PodEvicted, "a", 3, 1, 0)
	hear(state.PodHeld, "a", 3, 1, 0)
	hear(state.PodGone, "a", 3, 0, 0)
}

func TestACordonOrAnUncordonIsNoDrain(t *testing.T) {
	t.Parallel()
	m := metrics.New(metrics.Options{})
	for _, action := range []string{"cordon", "uncordon"} {
		for _, what := range []state.TransitionKind{state.Begun, state.Done} {
			h := spot(what, time.Second, 0)
			h.Action = action
			m.OnTransition(h)
			want(t, m, map[string]float64{"nth_draining": 0, "nth_drain_duration_seconds_count": 0})
		}
		want(t, m, map[string]float64{`nth_actions_total{action="` + action + `",outcome="done"}`: 1})
	}
}

// A cordon that is a repetition, or that belongs to a notice which an earlier process met, tells nothing about the
// speed of this one.
func TestTheTimeToTheCordonIsMeasuredWhereItMeansSomething(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(h *state.Transition)
		count  float64
		sum    float64
	}{
		"met by this process": {func(*state.Transition) {}, 1, 5},
		"met before the start": {func(h *state.Transition) {
			h.Entry.FirstSeen = h.At.Add(-2 * time.Hour)
		}, 0, 0},
		"cordoned in an earlier step": {func(h *state.Transition) {
			h.Entry.CordonedAt = h.At.Add(-4 * time.Second)
			h.Took = time.Second
		}, 0, 0},
		"cordoned in this step": {func(h *state.Transition) { h.Entry.CordonedAt = h.At }, 1, 5},
		"maintenance that was waited for": {func(h *state.Transition) {
			h.Entry.Event.Kind = event.ScheduledMaintenance
			h.Entry.FirstSeen, h.Took = h.At.Add(-time.Minute), time.Second
		}, 1, 1},
		"a clock that was set back": {func(h *state.Transition) { h.Entry.FirstSeen = h.At.Add(time.Hour) }, 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := metrics.New(metrics.Options{})
				time.Sleep(time.Hour)
				h := spot(state.NodeCordoned, 5*time.Second, time.Minute)
				test.change(&h)
				m.OnTransition(h)
				want(t, m, map[string]float64{"nth_notice_to_cordon_seconds_count": test.count, "nth_notice_to_cordon_seconds_sum": test.sum})
			})
		})
	}
}

func TestWhatIsPendingFollowsTheStatus(t *testing.T) {
	t.Parallel()
	m := metrics.New(metrics.Options{})
	near, far := time.Unix(1000, 0), time.Unix(2000, 500e6)
	m.Show(state.Status{Events: []state.EventStatus{
		{Kind: event.SpotInterruption, Phase: state.Draining, Deadline: near},
		{Kind: event.ScheduledMaintenance, Phase: state.Seen, Deadline: far},
		{Kind: event.ScheduledMaintenance, Phase: state.Drained, Deadline: far.Add(time.Hour)},
		{Kind: event.ASGTermination, Phase: state.Seen},
		{Kind: event.RebalanceRecommendation, Phase: state.Undoing},
		{Kind: event.Shutdown, Phase: state.Seen, Missing: near},
	}})
	want(t, m, map[string]float64{
		`nth_events_pending{kind="spot-interruption"}`:                       1,
		`nth_events_pending{kind="scheduled-maintenance"}`:                   2,
		`nth_events_pending{kind="asg-termination"}`:                         1,
		`nth_events_pending{kind="rebalance-recommendation"}`:                0,
		`nth_events_pending{kind="shutdown"}`:                                0,
		`nth_event_deadline_timestamp_seconds{kind="spot-interruption"}`:     1000,
		`nth_event_deadline_timestamp_seconds{kind="scheduled-maintenance"}`: 2000.5,
	})
	wantNone(t, m, `nth_event_deadline_timestamp_seconds{kind="asg-termination"}`)

	m.Show(state.Status{})
	want(t, m, map[string]float64{`nth_events_pending{kind="spot-interruption"}`: 0})
	wantNone(t, m, `nth_event_deadline_timestamp_seconds{kind="spot-interruption"}`)
}

func TestSourcesAreUpDownOrNotThere(t *testing.T) {
	t.Parallel()
	m := metrics.New(metrics.Options{})
	m.Show(state.Status{Node: "a", Documents: []state.DocumentStatus{
		{Kind: event.SpotInterruption, LastGood: time.Unix(1000, 0)},
		{Kind: event.ASGTermination, LastGood: time.Unix(900, 0), Trouble: "no answer"},
		{Kind: event.ScheduledMaintenance, Trouble: "no answer"},
	}})
	want(t, m, map[string]float64{
		`nth_source_up{kind="spot-interruption"}`: 1, `nth_source_last_success_timestamp_seconds{kind="spot-interruption"}`: 1000,
		`nth_source_up{kind="asg-termination"}`: 0, `nth_source_last_success_timestamp_seconds{kind="asg-termination"}`: 900,
		`nth_source_up{kind="scheduled-maintenance"}`: 0,
		"nth_credential_up":                           1,
	})
	wantNone(t, m, `nth_source_up{kind="rebalance-recommendation"}`, `nth_source_last_success_timestamp_seconds{kind="scheduled-maintenance"}`)

	m.Show(state.Status{Node: "a", Identity: state.IdentityStatus{Trouble: "expired"}, Step: &state.StepStatus{HeldBy: map[string]string{"a/b": "PDB a/c"}}})
	want(t, m, map[string]float64{"nth_credential_up": 0, "nth_drain_pods_held": 1})
	wantNone(t, m, `nth_source_up{kind="spot-interruption"}`)
	m.Show(state.Status{})
	want(t, m, map[string]float64{"nth_credential_up": 0, "nth_drain_pods_held": 0})
}

func TestAForecastIsAbsentUntilThereIsOne(t *testing.T) {
	t.Parallel()
	m := metrics.New(metrics.Options{})
	wantNone(t, m, "nth_drain_forecast_seconds", "nth_drain_forecast_pods_cut")
	m.Forecast(94*time.Second, 3)
	want(t, m, map[string]float64{"nth_drain_forecast_seconds": 94, "nth_drain_forecast_pods_cut": 3})
	m.Forecast(0, 0)
	want(t, m, map[string]float64{"nth_drain_forecast_seconds": 0, "nth_drain_forecast_pods_cut": 0})
}

func TestRequestsAreCountedByHowTheyEnded(t *testing.T) {
	t.Parallel()
	m := metrics.New(metrics.Options{})
	m.Polled("spot/instance-action", "absent", 2*time.Millisecond)
	m.Polled("spot/instance-action", "error", time.Second)
	m.Renewed(nil)
	m.Renewed(errors.New("no answer"))
	m.Requested("PATCH", 200)
	m.Requested("GET", 0)
	want(t, m, map[string]float64{
		`nth_imds_requests_total{document="spot/instance-action",result="absent"}`: 1,
		`nth_imds_requests_total{document="spot/instance-action",result="error"}`:  1,
		"nth_imds_request_duration_seconds_count":                                  2,
		`nth_imds_token_requests_total{result="ok"}`:                               1,
		`nth_imds_token_requests_total{result="error"}`:                            1,
		`nth_api_requests_total{code="200",method="PATCH"}`:                        1,
		`nth_api_requests_total{code="none",method="GET"}`:                         1,
	})
}

func TestTheNamesOfTheContainerBasedHandlerAreThereWhenTheyAreWanted(t *testing.T) {
	t.Parallel()
	tell := func(m *metrics.Metrics) {
		for _, action := range []string{"cordon", "drain", "uncordon"} {
			for _, what := range []state.TransitionKind{state.Begun, state.Done, state.Failed, state.CalledBack} {
				h := spot(what, 0, 0)
				h.Action = action
				m.OnTransition(h)
			}
		}
		for _, kind := range event.Kinds() {
			m.OnTransition(state.Transition{Kind: state.SourceLost, Entry: state.Entry{Event: event.Event{Kind: kind}}})
		}
	}
	m := metrics.New(metrics.Options{Compatible: true})
	tell(m)
	want(t, m, map[string]float64{
		`actions_total{node_action="pre-drain",node_status="success"}`:             2,
		`actions_total{node_action="cordon",node_status="success"}`:                1,
		`actions_total{node_action="cordon-and-drain",node_status="success"}`:      1,
		`actions_total{node_action="cordon-and-drain",node_status="error"}`:        1,
		`actions_total{node_action="uncordon",node_status="success"}`:              1,
		`events_error_total{event_error_where="SPOT_ITN_MONITOR"}`:                 1,
		`events_error_total{event_error_where="SCHEDULED_EVENT_MONITOR"}`:          1,
		`events_error_total{event_error_where="REBALANCE_RECOMMENDATION_MONITOR"}`: 1,
		`events_error_total{event_error_where="ASG_LIFECYCLE_MONITOR"}`:            1,
	})
	m = metrics.New(metrics.Options{})
	tell(m)
	for name := range scrape(t, m) {
		if name == "actions_total" || name == "events_error_total" {
			t.Errorf("there is %s, which nobody has asked for", name)
		}
	}
}

// at is a happening of a drain at a node.
func at(node string, what state.TransitionKind, total, left int) state.Transition {
	h := spot(what, 0, time.Minute)
	h.Node, h.Total, h.Left, h.Pod = node, total, left, "shop/"+node
	return h
}

func TestDrainsOfManyNodesAreAddedUp(t *testing.T) {
	t.Parallel()
	m := metrics.New(metrics.Options{Queue: true})
	m.OnTransition(at("a", state.Begun, 0, 0))
	m.OnTransition(at("b", state.Begun, 0, 0))
	m.OnTransition(at("a", state.PodEvicted, 4, 3))
	m.OnTransition(at("b", state.PodHeld, 2, 2))
	want(t, m, map[string]float64{"nth_draining": 2, "nth_drain_pods": 6, "nth_drain_pods_left": 5, "nth_drain_pods_held": 1})
	m.OnTransition(at("b", state.PodSpared, 2, 2))
	want(t, m, map[string]float64{"nth_drain_pods_held": 0})
	m.OnTransition(at("b", state.PodHeld, 2, 2))
	want(t, m, map[string]float64{"nth_drain_pods_held": 1})

	m.OnTransition(at("b", state.PodEvicted, 2, 2))
	m.OnTransition(at("a", state.Done, 4, 0))
	want(t, m, map[string]float64{"nth_draining": 1, "nth_drain_pods": 2, "nth_drain_pods_left": 2, "nth_drain_pods_held": 0})

	m.OnTransition(at("b", state.RanOut, 2, 1))
	want(t, m, map[string]float64{
		"nth_draining": 0, "nth_drain_pods": 2, "nth_drain_pods_left": 1, `nth_actions_total{action="drain",outcome="deadline-exceeded"}`: 1,
	})
}

func TestTheQueueTellsHowItStands(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := metrics.New(metrics.Options{Queue: true})
		m.Messages("received", "deleted")
		m.Message("received")
		m.Received(300 * time.Millisecond)
		m.ShowQueue(metrics.QueueStatus{
			InFlight: 3, Oldest: time.Now().Add(-20 * time.Second), Up: true, Heard: time.Now(), Leads: true, Known: 9, Draining: 2, Waiting: 1,
		})
		m.Show(state.Status{Events: []state.EventStatus{{Kind: event.StateChange}}})
		want(t, m, map[string]float64{
			`nth_queue_messages_total{outcome="received"}`: 1, `nth_queue_messages_total{outcome="deleted"}`: 0,
			"nth_queue_messages_in_flight": 3, "nth_queue_oldest_message_age_seconds": 20, "nth_queue_up": 1, "nth_queue_leads": 1,
			"nth_queue_receive_delay_seconds_count": 1, "nth_queue_receive_delay_seconds_sum": 0.3,
			`nth_queue_nodes{state="known"}`: 9, `nth_queue_nodes{state="draining"}`: 2, `nth_queue_nodes{state="waiting"}`: 1,
			`nth_events_pending{kind="state-change"}`: 1,
		})
		wantNone(t, m, "nth_credential_up")

		m.ShowQueue(metrics.QueueStatus{})
		want(t, m, map[string]float64{"nth_queue_up": 0, "nth_queue_leads": 0, "nth_queue_oldest_message_age_seconds": 0})
	})
}

func TestWhoIsAliveNeedNotBeReady(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var away error
		m := metrics.New(metrics.Options{Queue: true, Ready: func() error { return away }})
		wantAnswer := func(path string, code int, text string) {
			t.Helper()
			if answer := ask(t, m, path); answer.Code != code || answer.Body.String() != text+"\n" {
				t.Errorf("%s says %d %q, want %d %q", path, answer.Code, answer.Body, code, text)
			}
		}
		wantAnswer("/readyz", http.StatusOK, "ok")

		away = errors.New("nothing was received from the queue yet")
		wantAnswer("/readyz", http.StatusServiceUnavailable, "nothing was received from the queue yet")
		wantAnswer("/healthz", http.StatusOK, "ok")

		away = nil
		time.Sleep(31 * time.Second)
		wantAnswer("/readyz", http.StatusServiceUnavailable, "the loop that decides has given no sign of life for 31s")
	})
}

func TestAReceiverThatHasStoppedIsNoHealth(t *testing.T) {
	t.Parallel()
	var stuck error
	m := metrics.New(metrics.Options{Queue: true, Stuck: func() error { return stuck }})
	if code := ask(t, m, "/healthz").Code; code != http.StatusOK {
		t.Errorf("a receiver that goes on is answered with %d", code)
	}
	stuck = errors.New("receiving from the queue: neither an answer nor an error for 91s")
	if code := ask(t, m, "/healthz").Code; code != http.StatusServiceUnavailable {
		t.Errorf("a receiver that has stopped is answered with %d", code)
	}
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
func spot(what state.TransitionKind, met, left time.Duration) state.Transition {
	now := time.Now()
	e := state.Entry{FirstSeen: now.Add(-met).Round(0), Event: event.Event{ID: "a", Kind: event.SpotInterruption}}
	return state.Transition{Kind: what, At: now, Entry: e, Action: "drain", Took: met, Deadline: now.Add(left).Round(0)}
}
