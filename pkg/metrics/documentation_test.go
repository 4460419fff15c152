package metrics_test

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/metrics"
	"github.com/nth-project/nth/pkg/record"
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

// everything is a Metrics to which everything has happened.
func everything() *metrics.Metrics {
	m := metrics.New(metrics.Options{Version: "v1", Commit: "c", Compatible: true, LinkLocalExceeded: func() map[string]uint64 { return map[string]uint64{"ens5": 7} }})
	for _, what := range []record.What{record.Announced, record.Begun, record.NodeCordoned, record.PodEvicted, record.PodDeleted, record.Done} {
		m.Hear(spot(what, 0, time.Minute))
	}
	m.Hear(record.Happening{What: record.SourceLost, Entry: record.Entry{Event: event.Event{Kind: event.SpotInterruption}}})
	m.Show(record.Status{
		Events:    []record.EventStatus{{Kind: event.SpotInterruption, Deadline: time.Unix(1, 0)}},
		Documents: []record.DocumentStatus{{Kind: event.SpotInterruption, LastGood: time.Unix(1, 0)}},
	})
	m.Polled("spot/instance-action", "ok", 0)
	m.Renewed(nil)
	m.Requested("GET", 200)
	return m
}

// everythingOfQueue is a Metrics of nth-queue to which everything has happened.
func everythingOfQueue() *metrics.Metrics {
	m := metrics.New(metrics.Options{Version: "v1", Commit: "c", Queue: true})
	m.Hear(spot(record.Done, 0, time.Minute))
	m.Show(record.Status{Events: []record.EventStatus{{Kind: event.StateChange, Deadline: time.Unix(1, 0)}}})
	m.ShowQueue(metrics.QueueStanding{})
	m.Message("received")
	return m
}
