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
	queue []datagram // the first is being sent
	late  bool       // a datagram was late, so that nobody waits
	lost  int        // datagrams that did not fit into the queue, after those in it
}

// send queues a datagram for transmit, which must always be the same function, and waits a moment until it is sent.
func (s *sender) send(d datagram, transmit func(datagram)) {
	d.sent = make(chan struct{})
	if !s.enqueue(d, transmit) {
		return
	}
	select {
	case <-d.sent:
	case <-time.After(sendTimeout):
		s.mu.Lock()
		s.late = len(s.queue) > 0
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
		s.queue, s.lost = append(s.queue, datagram{lost: s.lost, sent: make(chan struct{})}), 0
	}
	s.queue = append(s.queue, d)
	if len(s.queue) == 1 {
		go s.work(d, transmit)
	}
	return !s.late
}

// work sends what is queued, and ends when the queue is empty.
func (s *sender) work(d datagram, transmit func(datagram)) {
	for more := true; more; {
		transmit(d)
		close(d.sent)
		d, more = s.next()
	}
}

// next drops the datagram that was sent, and returns the next; false if there is none. The last one stands for those that were lost.
func (s *sender) next() (d datagram, more bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue = s.queue[1:]
	if len(s.queue) == 0 && s.lost > 0 {
		s.queue, s.lost = append(s.queue, datagram{lost: s.lost, sent: make(chan struct{})}), 0
	}
	if len(s.queue) == 0 {
		s.queue, s.late = nil, false
		return datagram{}, false
	}
	return s.queue[0], true
}
