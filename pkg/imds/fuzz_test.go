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

// parsers are those of the documents in each folder below testdata: what EC2 serves, by its documentation.
var parsers = []struct {
	folder string
	parse  func([]byte) ([]event.Event, error)
	single bool // What could be read is one event.
}{
	{"spot", imds.ParseSpot, true}, {"rebalance", imds.ParseRebalance, true}, {"target-state", imds.ParseTargetState, false},
	{"maintenance", imds.ParseMaintenance, false},
}

// FuzzDocument feeds the parsers with documents and what the fuzzer makes of them. Whatever the bytes: no panic, the same
// bytes give the same events, each has an identity of its own and a state, and all can be written to the record.
func FuzzDocument(f *testing.F) {
	for i, p := range parsers {
		paths, err := filepath.Glob(filepath.Join("testdata", p.folder, "*"))
		if err != nil || len(paths) == 0 {
			f.Fatalf("listing %q: %d files, %v", p.folder, len(paths), err)
		}
		for _, path := range paths {
			body, err := os.ReadFile(path)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(uint8(i), body)
		}
	}
	f.Fuzz(func(t *testing.T, i uint8, body []byte) {
		p := parsers[int(i)%len(parsers)]
		events, err := p.parse(body)
		if (err != nil || p.single) && (len(events) == 1) != (err == nil) {
			t.Fatalf("%d events, and %v", len(events), err)
		}
		seen := map[string]bool{}
		for _, e := range events {
			if e.Kind == "" || e.State == "" || seen[e.ID] || !code.MatchString(e.ID) || e.Code != "" && !code.MatchString(e.Code) {
				t.Fatalf("incomplete, or more than a code: %+v", e)
			}
			seen[e.ID] = true
			stays := e.Kind == event.ASGTermination && slices.Contains([]string{"InService", "Standby", "Detached"}, e.Code)
			if text.Visible(e.Description, 256) != e.Description || stays {
				t.Fatalf("an event that is none: %+v", e)
			}
			if _, err := json.Marshal(e); err != nil {
				t.Fatalf("event cannot be recorded: %v", err)
			}
		}
		if again, _ := p.parse(body); !slices.Equal(events, again) {
			t.Fatalf("read twice:\n%+v\n%+v", events, again)
		}
	})
}

// code is what IDs and codes of events are made of; a target lifecycle state has colons.
var code = regexp.MustCompile(`^[A-Za-z0-9_:-]{1,64}$`)
