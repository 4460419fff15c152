package metrics_test

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/asg"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/metrics"
	"github.com/nth-project/nth/pkg/sqs"
	"github.com/nth-project/nth/pkg/state"
)

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
