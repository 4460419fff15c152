package daemon

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
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

// words are what a daemon has said: its journal, which is the process's standard error, and what it has notified the service manager of.
type words struct {
	mu sync.Mutex

	partial []byte // the last line of standard error, until it is whole
	entries []Entry
	other   []string // lines that are not JSON
	heard   func(Entry)

	ready  bool
	status string

	socket *net.UnixConn // plays systemd's side of sd_notify
}

// listen returns the words of a daemon that finds the socket of its service manager at path.
func listen(path string) (*words, error) {
	_ = os.Remove(path) // left by the run before
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return nil, fmt.Errorf("listening for notifications: %w", err)
	}
	w := &words{socket: socket}
	go func() {
		buffer := make([]byte, 64<<10)
		for {
			n, err := socket.Read(buffer)
			if err != nil {
				return
			}
			for line := range strings.Lines(string(buffer[:n])) {
				w.notified(strings.TrimSuffix(line, "\n"))
			}
		}
	}()
	return w, nil
}

// notified takes in one assignment of a notification.
func (w *words) notified(assignment string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	name, value, _ := strings.Cut(assignment, "=")
	switch name {
	case "READY":
		w.ready = true
	case "STATUS":
		w.status = value
	}
}

// Write takes in a piece of the process's standard error.
func (w *words) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.partial = append(w.partial, p...)
	for {
		line, rest, whole := bytes.Cut(w.partial, []byte("\n"))
		if !whole {
			return len(p), nil
		}
		w.line(line)
		w.partial = rest
	}
}

func (w *words) line(line []byte) {
	var fields map[string]any
	if json.Unmarshal(line, &fields) != nil {
		w.other = append(w.other, string(line))
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
	w.entries = append(w.entries, e)
	if w.heard != nil {
		w.heard(e)
	}
}

// of are the messages so far that are wanted.
func (w *words) of(wanted func(Entry) bool) []Entry {
	w.mu.Lock()
	defer w.mu.Unlock()
	var found []Entry
	for _, e := range w.entries {
		if wanted(e) {
			found = append(found, e)
		}
	}
	return found
}

// String is the whole output, to be read when a test has failed.
func (w *words) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var b strings.Builder
	for _, e := range w.entries {
		fmt.Fprintf(&b, "%s %-7s %s", e.Time.Format("15:04:05.000"), e.Level, e.Message)
		if reason := e.Fields["error"]; reason != "" {
			fmt.Fprintf(&b, ": %s", reason)
		}
		b.WriteByte('\n')
	}
	for _, line := range w.other {
		fmt.Fprintln(&b, line)
	}
	return b.String()
}

// Follow calls heard with every message of the daemon, also with those that it has written already, in sequence and one at a time. It
// must not ask for the daemon's words.
func (d *Daemon) Follow(heard func(Entry)) {
	d.words.mu.Lock()
	defer d.words.mu.Unlock()
	for _, e := range d.words.entries {
		heard(e)
	}
	d.words.heard = heard
}
