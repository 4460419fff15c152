package systemd

import (
	"sync"
	"time"
)

const (
	// sendTimeout is how long send waits for its datagram, which usually takes microseconds.
	sendTimeout = 100 * time.Millisecond
	// maxQueued is how many datagrams are queued: more than the drain of a full node logs.
	maxQueued = 1024
)

// sender sends datagrams to one receiver, one at a time and in sequence. A receiver that hangs does not block the callers of sender. Without sender, the
// socket would take a few datagrams, and then block every writer. The zero value is ready for use.
//
// Usually a datagram is sent when send returns, so that a crash loses nothing. Only the first caller waits for a receiver that hangs. While its
// datagram is under way, other callers only queue theirs.
type sender struct {
	mu     sync.Mutex
	queued int           // datagrams that are not sent yet
	last   chan struct{} // closed once the datagram that was queued last is sent; nil before the first
}

// send queues a datagram, which transmit sends in a goroutine of its own once all earlier datagrams are sent. If no other datagram is queued,
// send waits up to sendTimeout for transmit to return. If maxQueued are queued already, the datagram is lost, and queued is false.
func (s *sender) send(transmit func()) (queued bool) {
	s.mu.Lock()
	if s.queued >= maxQueued {
		s.mu.Unlock()
		return false
	}
	before, sent := s.last, make(chan struct{})
	s.last = sent
	s.queued++
	alone := s.queued == 1
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
	if alone {
		select {
		case <-sent:
		case <-time.After(sendTimeout):
		}
	}
	return true
}
