package systemd

import (
	"sync"
	"time"
)

const (
	// sendTimeout is how long a caller of send waits until its datagram is sent, which usually takes microseconds.
	sendTimeout = 100 * time.Millisecond
	// maxQueued is how many datagrams are queued: more than the drain of a full node logs.
	maxQueued = 1024
)

// sender sends datagrams to one receiver, one at a time and in sequence. It keeps its callers from being blocked by a receiver that hangs:
// such a receiver's socket buffer takes some datagrams more, and then blocks every writer. The zero value is ready for use.
//
// Usually a datagram is sent when send returns, so that a crash loses nothing. No caller waits while another datagram is under way.
type sender struct {
	mu     sync.Mutex
	queued int           // datagrams that are not sent yet
	last   chan struct{} // closed once the last of them is sent
}

// send queues a datagram, and waits up to sendTimeout until it is sent. transmit sends it to the receiver. If maxQueued are queued, this one is
// lost: then queued is false.
func (s *sender) send(transmit func()) (queued bool) {
	s.mu.Lock()
	if s.queued >= maxQueued {
		s.mu.Unlock()
		return false
	}
	before, sent := s.last, make(chan struct{})
	s.last = sent
	s.queued++
	first := s.queued == 1
	s.mu.Unlock()
	go func() {
		if before != nil {
			<-before
		}
		transmit()
		s.mu.Lock()
		s.queued--
		s.mu.Unlock()
		close(sent)
	}()
	if first {
		select {
		case <-sent:
		case <-time.After(sendTimeout):
		}
	}
	return true
}
