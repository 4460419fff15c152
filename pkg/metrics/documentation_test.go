package metrics_test

import (
	"errors"
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

var documented = regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\| (counter|gauge|histogram) \\| ([a-z_`, ]*)\\|")

// Names, types and labels are what people build on: the page has all of them, and nothing else.
func TestThePageListsEverySeriesAndNoOther(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	onPage := map[string]string{}
	for _, row := range documented.FindAllStringSubmatch(string(page), -1) {
		labels := strings.FieldsFunc(row[3], func(r rune) bool { return strings.ContainsRune("`, ", r) })
		slices.Sort(labels)
		onPage[row[1]] = row[2] + " " + strings.Join(labels, ",")
	}
	made := map[string]string{}
	families := scrape(t, everything())
	maps.Copy(families, scrape(t, everythingOfQueue()))
	for name, family := range families {
		if strings.HasPrefix(name, "go_") || strings.HasPrefix(name, "process_") {
			continue
		}
		var labels []string
		for _, label := range family.GetMetric()[0].GetLabel() {
			labels = append(labels, label.GetName())
		}
		slices.Sort(labels)
		made[name] = strings.ToLower(family.GetType().String()) + " " + strings.Join(labels, ",")
	}
	for _, name := range slices.Sorted(maps.Keys(made)) {
		if onPage[name] != made[name] {
			t.Errorf("docs/metrics.md has %s as %q, it is %q", name, onPage[name], made[name])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(onPage)) {
		if made[name] == "" {
			t.Errorf("docs/metrics.md has %s, which does not exist", name)
		}
	}
}

// code is what stands in a page as it is written.
var code = regexp.MustCompile("`([^`]+)`")

// By these people choose what they are told of: the page has all that can be, and nothing else.
func TestThePageListsEveryOutcomeAndNoOther(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	made := map[string]map[string]bool{}
	for _, m := range []*metrics.Metrics{everything(), everythingOfQueue()} {
		for name, family := range scrape(t, m) {
			for _, metric := range family.GetMetric() {
				for _, label := range metric.GetLabel() {
					if slices.Contains([]string{"action", "outcome", "result", "state"}, label.GetName()) {
						if made[name] == nil {
							made[name] = map[string]bool{}
						}
						made[name][label.GetValue()] = true
					}
				}
			}
		}
	}
	for line := range strings.Lines(string(page)) {
		row := documented.FindStringSubmatchIndex(line)
		if row == nil || made[line[row[2]:row[3]]] == nil {
			continue
		}
		name, told := line[row[2]:row[3]], map[string]bool{}
		for _, word := range code.FindAllStringSubmatch(line[row[1]:], -1) {
			told[word[1]] = true
		}
		if !maps.Equal(told, made[name]) {
			t.Errorf("docs/metrics.md has %s with %q, there are %q", name, slices.Sorted(maps.Keys(told)), slices.Sorted(maps.Keys(made[name])))
		}
		delete(made, name)
	}
	if len(made) > 0 {
		t.Errorf("not judged were %q", slices.Sorted(maps.Keys(made)))
	}
}

// everything is a Metrics to which everything has happened.
func everything() *metrics.Metrics {
	m := metrics.New(metrics.Options{Version: "v1", Commit: "c", Compatible: true})
	for _, what := range []state.TransitionKind{state.Announced, state.Begun, state.NodeCordoned, state.PodEvicted, state.PodDeleted, state.Done} {
		m.OnTransition(spot(what, 0, time.Minute))
	}
	m.OnTransition(state.Transition{Kind: state.SourceLost, Entry: state.Entry{Event: event.Event{Kind: event.SpotInterruption}}})
	m.Show(state.Status{
		Events:    []state.EventStatus{{Kind: event.SpotInterruption, Deadline: time.Unix(1, 0)}},
		Documents: []state.DocumentStatus{{Kind: event.SpotInterruption, LastGood: time.Unix(1, 0)}},
	})
	for _, result := range []string{"ok", "absent", "error"} {
		m.Polled("spot/instance-action", result, 0)
	}
	m.Forecast(94*time.Second, 3)
	m.Renewed(nil)
	m.Renewed(errors.New("no answer"))
	m.Requested("GET", 200)
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
	m.OnTransition(spot(state.Done, 0, time.Minute))
	m.Show(state.Status{Events: []state.EventStatus{{Kind: event.StateChange, Deadline: time.Unix(1, 0)}}})
	m.ShowQueue(metrics.QueueStatus{})
	for _, what := range sqs.Whats() {
		m.Message(string(what))
	}
	return m
}
