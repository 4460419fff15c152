package imds_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/imds"
	"github.com/nth-project/nth/pkg/text"
)

func FuzzSpot(f *testing.F) {
	fuzz(f, "spot", imds.ParseSpot, func(t *testing.T, events []event.Event) {
		if len(events) != 1 {
			t.Fatalf("a notice that could be read is one event, got %d", len(events))
		}
		known := slices.Contains([]string{"terminate", "stop", "hibernate"}, events[0].Code)
		if !known && events[0].Deadline.IsZero() {
			t.Fatalf("neither action nor time are known: %+v", events[0])
		}
	})
}

func FuzzRebalance(f *testing.F) {
	fuzz(f, "rebalance", imds.ParseRebalance, func(t *testing.T, events []event.Event) {
		if len(events) != 1 || events[0].Kind != event.RebalanceRecommendation {
			t.Fatalf("a recommendation that could be read is one event, got %+v", events)
		}
	})
}

func FuzzTargetState(f *testing.F) {
	fuzz(f, "target-state", imds.ParseTargetState, func(t *testing.T, events []event.Event) {
		for _, e := range events {
			if e.Code == "InService" || e.Code == "Standby" || e.Code == "Detached" {
				t.Fatalf("by %q, nothing leaves", e.Code)
			}
		}
	})
}

func FuzzMaintenance(f *testing.F) {
	fuzz(f, "maintenance", imds.ParseMaintenance, func(t *testing.T, events []event.Event) {
		seen := map[string]bool{}
		for _, e := range events {
			if seen[e.ID] {
				t.Fatalf("event %q stands in the list twice", e.ID)
			}
			seen[e.ID] = true
		}
	})
}

// fuzz feeds a parser with the documents of a folder and what the fuzzer makes of them. Whatever the bytes: no panic, the
// same bytes give the same events, each has an identity and a state, and all can be written to the record.
func fuzz(f *testing.F, folder string, parse func([]byte) ([]event.Event, error), check func(*testing.T, []event.Event)) {
	for _, path := range documents(f, folder) {
		body, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(body)
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		events, err := parse(body)
		if err != nil {
			if len(events) > 0 {
				t.Fatalf("an error and %d events", len(events))
			}
			return
		}
		for _, e := range events {
			if e.ID == "" || e.Kind == "" || e.State == "" {
				t.Fatalf("incomplete event %+v", e)
			}
			if !code.MatchString(e.ID) || e.Code != "" && !code.MatchString(e.Code) || text.Visible(e.Description, 256) != e.Description {
				t.Fatalf("more than a code: %+v", e)
			}
			if _, err := json.Marshal(e); err != nil {
				t.Fatalf("event cannot be recorded: %v", err)
			}
		}
		if again, _ := parse(body); !slices.Equal(events, again) {
			t.Fatalf("read twice:\n%+v\n%+v", events, again)
		}
		check(t, events)
	})
}

// code is what IDs and codes of events are made of; a target lifecycle state has colons.
var code = regexp.MustCompile(`^[A-Za-z0-9_:-]{1,64}$`)

// documents lists the files of a folder below testdata: what EC2 serves, by its documentation.
func documents(tb testing.TB, folder string) []string {
	tb.Helper()
	paths, err := filepath.Glob(filepath.Join("testdata", folder, "*"))
	if err != nil || len(paths) == 0 {
		tb.Fatalf("listing %q: %d files, %v", folder, len(paths), err)
	}
	return paths
}
