package systemd

import (
	"sync"
	"time"
)

const (
	// sendTimeout is how long the sender of a datagram waits until it is sent, which usually takes microseconds.
	sendTimeout = 100 * time.Millisecond
	// maxQueued is how many datagrams are queued: more than the drain of a full node logs.
	maxQueued = 1024
)

// datagram is an entry for the journal, or a state for the service manager, which has a message only.
type datagram struct {
	message  string
	priority int
	fields   map[string]string

	// lost is how many datagrams this one stands for, which did not fit into the queue; 0 for an ordinary one.
	lost int
	sent chan struct{} // closed once it is sent
}

// sender sends datagrams one at a time and in order, and keeps its callers from being blocked by a receiver that hangs:
// the socket buffer takes some datagrams more, and then blocks every writer.
//
// Usually a datagram is sent when send returns, so that a crash loses nothing. When one is late, nobody waits until the queue is
// empty again. The zero value is ready for use.
type sender struct {
	mu    sync.Mutex
	queue []datagram
	busy  bool // work is running
	late  bool // a datagram was late, so that nobody waits
	lost  int  // datagrams that did not fit into the queue, after those in it
}

// send queues a datagram for transmit, which must always be the same function, and waits a moment until it is sent.
func (s *sender) send(d datagram, transmit func(datagram)) {
	d.sent = make(chan struct{})
	if !s.enqueue(d, transmit) {
		return
	}
	timeout := time.NewTimer(sendTimeout)
	defer timeout.Stop()
	select {
	case <-d.sent:
	case <-timeout.C:
		s.mu.Lock()
		s.late = s.busy
		s.mu.Unlock()
	}
}

// enqueue queues a datagram, and reports whether to wait until it is sent.
func (s *sender) enqueue(d datagram, transmit func(datagram)) (wait bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.queue) >= maxQueued {
		s.lost++
		return false
	}
	if s.lost > 0 {
		s.queue = append(s.queue, s.gap())
	}
	s.queue = append(s.queue, d)
	if !s.busy {
		s.busy = true
		go s.work(transmit)
	}
	return !s.late
}

// work sends what is queued, and ends when the queue is empty.
func (s *sender) work(transmit func(datagram)) {
	for {
		d, more := s.next()
		if !more {
			return
		}
		transmit(d)
		close(d.sent)
	}
}

// next returns the datagram to send next; false if there is none, and the goroutine ends.
func (s *sender) next() (datagram, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.queue) == 0 && s.lost > 0 {
		return s.gap(), true
	}
	if len(s.queue) == 0 {
		s.queue, s.busy, s.late = nil, false, false
		return datagram{}, false
	}
	d := s.queue[0]
	s.queue = s.queue[1:]
	return d, true
}

// gap returns a datagram that stands for those that were lost. s.mu is held.
func (s *sender) gap() datagram {
	d := datagram{lost: s.lost, sent: make(chan struct{})}
	s.lost = 0
	return d
}
