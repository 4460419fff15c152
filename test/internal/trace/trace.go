// Package trace reads recorded traces of spot capacity, and finds the preemptions in them.
//
// A trace is a JSON file in the format of the traces of NSDI'24: how many instances ran in a zone at each of successive moments,
//
//	{"metadata": {"gap_seconds": 300}, "data": [4, 4, 3, 0, 4]}
//
// It names no instance. Where a number is less than the one before, so many instances were preempted.
package trace

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// What a directory of traces may have. A public one of a week has 200 KB.
const (
	mostFiles = 100
	mostBytes = 8 << 20
)

// Trace is how many instances ran in one zone.
type Trace struct {
	Name   string // of the file, without its end
	Gap    time.Duration
	Counts []uint16
}

// Read reads the traces of a directory.
func Read(dir string) ([]Trace, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return nil, fmt.Errorf("looking for traces: %w", err)
	}
	if len(files) == 0 || len(files) > mostFiles {
		return nil, fmt.Errorf("%s: it has %d files *.json, and should have 1 to %d", dir, len(files), mostFiles)
	}
	var all []Trace
	for _, file := range files {
		t, err := readFile(file)
		if err != nil {
			return nil, err
		}
		all = append(all, t)
	}
	return all, nil
}

func readFile(path string) (Trace, error) {
	if info, err := os.Stat(path); err == nil && info.Size() > mostBytes {
		return Trace{}, fmt.Errorf("%s: it is too large: a trace has %d bytes at most", path, mostBytes)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return Trace{}, fmt.Errorf("reading a trace: %w", err)
	}
	var file struct {
		Metadata struct {
			Gap uint16 `json:"gap_seconds"`
		} `json:"metadata"`
		Data []uint16 `json:"data"`
	}
	err = json.Unmarshal(text, &file)
	if err != nil || file.Metadata.Gap == 0 || len(file.Data) == 0 {
		return Trace{}, fmt.Errorf("%s:%w", path, explained(err, text))
	}
	return Trace{strings.TrimSuffix(filepath.Base(path), ".json"), time.Duration(file.Metadata.Gap) * time.Second, file.Data}, nil
}

// explained says in which line of a text the mistake is, and what would be right.
func explained(err error, text []byte) error {
	line := func(offset int64) int { return 1 + bytes.Count(text[:offset], []byte("\n")) }
	if e, ok := errors.AsType[*json.SyntaxError](err); ok {
		return fmt.Errorf("%d: %w; a trace is an object of JSON", line(e.Offset), err)
	}
	if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return fmt.Errorf("%d: a %s: gap_seconds is a whole number from 1 to 65535, and data a list of whole numbers from 0 to 65535", line(e.Offset), e.Value)
	}
	return fmt.Errorf(`1: metadata.gap_seconds or data is missing, as in {"metadata": {"gap_seconds": 300}, "data": [4, 3]}`)
}

// Busiest cuts traces to the day, counted from their beginning, in which most instances were preempted. What is in one directory began
// together.
func Busiest(traces []Trace) []Trace {
	busiest := traces
	for number, most := 0, -1; ; number++ {
		var cut []Trace
		for _, t := range traces {
			perDay := int(24 * time.Hour / t.Gap)
			if first := number * perDay; first < len(t.Counts) {
				t.Counts = t.Counts[first:min(first+perDay, len(t.Counts))]
				cut = append(cut, t)
			}
		}
		if len(cut) == 0 {
			return busiest
		}
		if losses := len(Preemptions(cut)); losses > most {
			busiest, most = cut, losses
		}
	}
}

// Preemptions are the times at which instances were found preempted, from the beginning of the trace, one for each instance.
func (t Trace) Preemptions() []time.Duration {
	var all []time.Duration
	for i := 1; i < len(t.Counts); i++ {
		for range int(t.Counts[i-1]) - int(t.Counts[i]) {
			all = append(all, time.Duration(i)*t.Gap)
		}
	}
	return all
}

// Preemptions are those of all traces, sorted.
func Preemptions(traces []Trace) []time.Duration {
	var all []time.Duration
	for _, t := range traces {
		all = append(all, t.Preemptions()...)
	}
	slices.Sort(all)
	return all
}

// Notice is how long before an instance is taken EC2 says so.
const Notice = 2 * time.Minute

// boot is how long a machine that replaces another needs, at least, to be a Node.
const boot = time.Minute

// History is the trace as a plan for pkg/internal/simulation: one node, of the instance that is preempted first each time and comes back last.
// Each time it comes back it has another boot, no record, and a Node of its own.
func (t Trace) History() string {
	var b strings.Builder
	line := func(at time.Duration, format string, args ...any) {
		fmt.Fprintf(&b, "%s %s\n", at, fmt.Sprintf(format, args...))
	}
	line(0, "pod name=pod-0 kind=plain for=30s n=25")
	var up time.Duration // when the node is back
	full := slices.Max(t.Counts)
	for i, n := 1, 0; i < len(t.Counts); i++ {
		at := time.Duration(i) * t.Gap
		if t.Counts[i-1] < full || t.Counts[i] == full || at < up+boot {
			continue
		}
		n++
		back := i
		for back < len(t.Counts) && t.Counts[back] < full {
			back++
		}
		off := at + Notice
		up = max(time.Duration(back)*t.Gap, off+boot)
		line(at, "announce name=spot-%d kind=spot-interruption/terminate for=%s", n, Notice)
		line(off, "reboot for=%s n=1", up-off)
		line(off+time.Second, "withdraw name=spot-%d", n)
		line(off+2*time.Second, "forget for=%s", up-off-2*time.Second)
		line(off+3*time.Second, "unnode")
		line(up-time.Second, "node")
		line(up+5*time.Second, "pod name=pod-%d kind=plain for=30s n=25", n)
	}
	return b.String()
}
