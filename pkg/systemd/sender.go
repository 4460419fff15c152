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

// datagram is an entry for the journal, or a state for the service manager. A state has a message only.
type datagram struct {
	message  string
	priority int
	fields   map[string]string

	// lost is 0 for an ordinary datagram. Otherwise this one has no message, and stands for that many that did not fit into the queue.
	lost int
	sent chan struct{} // closed once it is sent
}

// sender sends datagrams to one receiver, one at a time and in sequence. It keeps its callers from being blocked by a receiver that hangs:
// such a receiver's socket buffer takes some datagrams more, and then blocks every writer.
//
// Usually a datagram is sent when send returns, so that a crash loses nothing. Once a datagram was late, no caller waits until the queue
// is empty again. The zero value is ready for use.
type sender struct {
	mu    sync.Mutex
	queue []datagram // the first is being sent
	late  bool       // a datagram was late, so that no caller waits
	lost  int        // datagrams that did not fit into the queue, after those in it
}

// send queues a datagram, and waits up to sendTimeout until it is sent. transmit sends one to the receiver. It must be the same function in
// all calls.
func (s *sender) send(d datagram, transmit func(datagram)) {
	d.sent = make(chan struct{})
	if !s.enqueue(d, transmit) {
		return
	}
	select {
	case <-d.sent:
	case <-time.After(sendTimeout):
		s.mu.Lock()
		s.late = len(s.queue) > 0 // The datagram may have been sent at this moment.
		s.mu.Unlock()
	}
}

// enqueue queues a datagram, or counts it as lost if the queue is full. It reports whether the caller is to wait until it is sent.
func (s *sender) enqueue(d datagram, transmit func(datagram)) (wait bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.queue) >= maxQueued {
		s.lost++
		return false
	}
	if s.lost > 0 { // There is space again: report the lost ones where they are missing.
		s.queue, s.lost = append(s.queue, datagram{lost: s.lost, sent: make(chan struct{})}), 0
	}
	s.queue = append(s.queue, d)
	if len(s.queue) == 1 { // The queue was empty, so no goroutine works on it.
		go s.work(d, transmit)
	}
	return !s.late
}

// work sends d, which is the first in the queue, and those after it. It ends when the queue is empty.
func (s *sender) work(d datagram, transmit func(datagram)) {
	for more := true; more; {
		transmit(d)
		close(d.sent)
		d, more = s.next()
	}
}

// next drops the datagram that was sent, and returns the next. more is false if there is none, which ends work. If datagrams were lost after
// the last one in the queue, next returns one that stands for them.
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
