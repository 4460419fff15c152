package main

import (
	"sync"
	"time"

	"github.com/nth-project/nth/pkg/agent"
	"github.com/nth-project/nth/pkg/record"
)

// longestSilence is how old the last status may be of a daemon that is alive. The loop shows one every ten seconds at least.
const longestSilence = 30 * time.Second

// watching knows by the status that is shown whether the daemon does its work, which the heartbeat on the Node proves to others.
type watching struct {
	shower

	mu     sync.Mutex
	shown  time.Time // with its monotonic reading; zero if nothing was shown
	good   bool
	source agent.Pulse
}

// Show implements shower.
func (w *watching) Show(s record.Status) {
	w.mu.Lock()
	w.shown, w.good = time.Now(), isWatching(s)
	w.mu.Unlock()
	w.shower.Show(s)
}

// isWatching tells whether nth could act for its node, and whether each kind that the metadata service is asked for can be told of.
func isWatching(s record.Status) bool {
	if s.Node == "" || s.Identity.Trouble != "" || !s.Stopped.IsZero() {
		return false
	}
	for _, d := range s.Documents {
		if d.Trouble != "" || d.LastGood.IsZero() {
			return false
		}
	}
	return true
}

// follow has the heartbeat end also if this source comes to a stop.
func (w *watching) follow(source agent.Pulse) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.source = source
}

// alive reports whether the daemon has done its work just now.
func (w *watching) alive() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.good && time.Since(w.shown) < longestSilence && w.source != nil && w.source.Stuck() == nil
}
