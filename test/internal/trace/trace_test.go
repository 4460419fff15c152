package trace_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nth-project/nth/test/internal/trace"
)

func TestRead_SaysWhereAMistakeIs(t *testing.T) {
	for _, test := range []struct{ text, want string }{
		{"", "a.json:1: unexpected end of JSON input; a trace is an object of JSON"},
		{"{\"metadata\": {\"gap_seconds\": 300},\n\"data\": [4,\n-1]}", "a.json:3: a number -1: gap_seconds is a whole number from 1 to 65535"},
		{"{\"metadata\": {\"gap_seconds\": 300},\n\"data\": [4, 3.5]}", "a.json:2: a number 3.5: gap"},
		{"{\"metadata\":\n{\"gap_seconds\": \"300\"}, \"data\": [4]}", "a.json:2: a string: gap"},
		{"{\"data\": [4, 3]}", "a.json:1: metadata.gap_seconds or data is missing"},
		{"{\"metadata\": {\"gap_seconds\": 300},\n\"data\": [4, 3]", "a.json:2: unexpected end of JSON input"},
		{strings.Repeat(" ", 8<<20+1), "a.json: it is too large: a trace has 8388608 bytes at most"},
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "a.json"), []byte(test.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := trace.Read(dir); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("reading %.60q: %v, want %q", test.text, err, test.want)
		}
	}
	if _, err := trace.Read(t.TempDir()); err == nil {
		t.Error("a directory without a trace is taken for one")
	}
}

func TestBusiest_IsTheDayWithMostPreemptions(t *testing.T) {
	day := trace.Busiest([]trace.Trace{
		{Gap: 8 * time.Hour, Counts: []uint16{3, 2, 2, 4, 1, 3, 0, 0}}, {Gap: 6 * time.Hour, Counts: []uint16{1, 1, 1, 1, 1, 1, 0, 0}},
	})
	got := trace.Preemptions(day)
	if want := []time.Duration{8 * time.Hour, 8 * time.Hour, 8 * time.Hour, 12 * time.Hour}; !slices.Equal(got, want) {
		t.Errorf("preemptions are at %v, want %v", got, want)
	}
}

func TestHistory_IsKeptForTheSimulation(t *testing.T) {
	traces, err := trace.Read("testdata/small")
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile("../../../pkg/internal/simulation/testdata/preempted-and-relaunched.txt")
	if err != nil {
		t.Fatal(err)
	}
	if got := traces[0].History(); got != string(want) {
		t.Errorf("the history of zone-a is\n%swant\n%s", got, want)
	}
}
