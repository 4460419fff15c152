package daemon

import (
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
)

// notifySocket plays systemd's side of sd_notify.
type notifySocket struct {
	path  string
	conn  *net.UnixConn
	ready chan struct{}

	mu      sync.Mutex
	isReady bool
	status  string
	// reloading is between RELOADING=1 and the READY=1 that ends it; reloads counts those ends.
	reloading bool
	reloads   int
	changed   chan struct{}
}

func newNotifySocket(path string) (*notifySocket, error) {
	_ = os.Remove(path) // left by the run before
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return nil, fmt.Errorf("listening for notifications: %w", err)
	}
	s := &notifySocket{path: path, conn: conn, ready: make(chan struct{}), changed: make(chan struct{})}
	go s.listen()
	return s, nil
}

func (s *notifySocket) listen() {
	buffer := make([]byte, 64<<10)
	for {
		n, err := s.conn.Read(buffer)
		if err != nil {
			return
		}
		for line := range strings.Lines(string(buffer[:n])) {
			s.hear(strings.TrimSuffix(line, "\n"))
		}
	}
}

func (s *notifySocket) hear(assignment string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name, value, _ := strings.Cut(assignment, "=")
	switch {
	case name == "READY" && !s.isReady:
		s.isReady = true
		close(s.ready)
	case name == "RELOADING":
		s.reloading = true
	case name == "READY" && s.reloading:
		s.reloading = false
		s.reloads++
		s.tell()
	case name == "STATUS":
		s.status = value
		s.tell()
	}
}

// tell wakes those who wait for a change. s.mu is held.
func (s *notifySocket) tell() {
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *notifySocket) statusNow() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status
}

// statusHas returns a channel that is closed once the status contains text.
func (s *notifySocket) statusHas(text string) <-chan struct{} {
	return s.once(func() bool { return strings.Contains(s.status, text) })
}

func (s *notifySocket) reloadCount() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reloads
}

// reloaded returns a channel that is closed once so many reloads have ended.
func (s *notifySocket) reloaded(count int) <-chan struct{} {
	return s.once(func() bool { return s.reloads >= count })
}

// once returns a channel that is closed when it is so.
func (s *notifySocket) once(isSo func() bool) <-chan struct{} {
	seen := make(chan struct{})
	go func() {
		for {
			s.mu.Lock()
			found, changed := isSo(), s.changed
			s.mu.Unlock()
			if found {
				close(seen)
				return
			}
			<-changed
		}
	}()
	return seen
}

func (s *notifySocket) close() { _ = s.conn.Close() }
