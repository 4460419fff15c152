package daemon

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"
)

// Entry is one message of the daemon.
type Entry struct {
	Time    time.Time
	Level   string
	Message string
	// Fields holds everything else: NTH_EVENT_ID, MESSAGE_ID, error, ...
	Fields map[string]string
}

// journal collects what the daemon writes. It is the process's standard error.
type journal struct {
	mu      sync.Mutex
	partial []byte
	entries []Entry
	other   []string // lines that are not JSON
	changed chan struct{}
}

func newJournal() *journal { return &journal{changed: make(chan struct{})} }

// Write takes in a piece of the process's output.
func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.partial = append(j.partial, p...)
	for {
		line, rest, whole := bytes.Cut(j.partial, []byte("\n"))
		if !whole {
			break
		}
		j.line(line)
		j.partial = rest
	}
	close(j.changed)
	j.changed = make(chan struct{})
	return len(p), nil
}

func (j *journal) line(line []byte) {
	var fields map[string]any
	if json.Unmarshal(line, &fields) != nil {
		j.other = append(j.other, string(line))
		return
	}
	e := Entry{Fields: map[string]string{}}
	for name, value := range fields {
		text := fmt.Sprint(value)
		switch name {
		case "time":
			e.Time, _ = time.Parse(time.RFC3339Nano, text)
		case "level":
			e.Level = text
		case "msg":
			e.Message = text
		default:
			e.Fields[name] = text
		}
	}
	j.entries = append(j.entries, e)
}

// A matcher tells whether a message is one of those that are asked for.
type matcher func(Entry) bool

// withID matches the messages with the ID; with "" all.
func withID(messageID string) matcher {
	return func(e Entry) bool { return messageID == "" || e.Fields["MESSAGE_ID"] == messageID }
}

// saying matches the messages that contain the text.
func saying(text string) matcher {
	return func(e Entry) bool { return strings.Contains(e.Message, text) }
}

func (j *journal) of(wanted matcher) []Entry {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.matching(wanted)
}

func (j *journal) matching(wanted matcher) []Entry {
	var found []Entry
	for _, e := range j.entries {
		if wanted(e) {
			found = append(found, e)
		}
	}
	return found
}

// has returns a channel that is closed once such a message is there.
func (j *journal) has(wanted matcher) <-chan struct{} {
	seen := make(chan struct{})
	go func() {
		for {
			j.mu.Lock()
			found, changed := len(j.matching(wanted)) > 0, j.changed
			j.mu.Unlock()
			if found {
				close(seen)
				return
			}
			<-changed
		}
	}()
	return seen
}

// String is the whole output, for people.
func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	var b strings.Builder
	for _, e := range j.entries {
		fmt.Fprintf(&b, "%s %-7s %s", e.Time.Format("15:04:05.000"), e.Level, e.Message)
		if reason := e.Fields["error"]; reason != "" {
			fmt.Fprintf(&b, ": %s", reason)
		}
		b.WriteByte('\n')
	}
	for _, line := range j.other {
		fmt.Fprintln(&b, line)
	}
	return b.String()
}
