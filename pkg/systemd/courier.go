package systemd

import (
	"fmt"
	"sync"
	"time"
)

const (
	// courierPatience is how long the one who writes an entry waits until it is taken. That takes microseconds.
	courierPatience = 100 * time.Millisecond
	// courierLoad is how many entries wait for a journal that takes none: more than a drain of a full node writes.
	courierLoad = 1024
)

// A letter is one entry for the journal, or one word to the service manager.
type letter struct {
	message  string
	priority int
	fields   map[string]string

	delivered chan struct{} // closed then
}

// A courier delivers entries one at a time, in their order, and keeps those who write them from waiting for a journal
// that hangs: its socket then takes some entries more, and after them blocks whoever writes to it.
//
// In ordinary times an entry is with the journal when take returns, so that a crash loses nothing. When one is late,
// nobody waits any more until the courier has caught up.
type courier struct {
	deliver    func(letter)
	identifier string // of its own entries

	mu      sync.Mutex
	waiting []letter
	busy    bool // work is running
	late    bool // nobody waits
	lost    int  // entries that there was no room for, after those that wait
}

// take takes an entry.
func (c *courier) take(message string, priority int, fields map[string]string) {
	l := letter{message, priority, fields, make(chan struct{})}
	if !c.accept(l) {
		return
	}
	overdue := time.NewTimer(courierPatience)
	defer overdue.Stop()
	select {
	case <-l.delivered:
	case <-overdue.C:
		c.mu.Lock()
		c.late = c.busy
		c.mu.Unlock()
	}
}

// accept puts an entry behind the others, and tells whether its delivery is to be waited for.
func (c *courier) accept(l letter) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.waiting) >= courierLoad {
		c.lost++
		return false
	}
	if c.lost > 0 {
		c.waiting = append(c.waiting, c.gap())
	}
	c.waiting = append(c.waiting, l)
	if !c.busy {
		c.busy = true
		go c.work()
	}
	return !c.late
}

// work delivers what waits, and ends when that is all.
func (c *courier) work() {
	for {
		l, more := c.next()
		if !more {
			return
		}
		c.deliver(l)
		close(l.delivered)
	}
}

func (c *courier) next() (letter, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.waiting) == 0 && c.lost > 0 {
		return c.gap(), true
	}
	if len(c.waiting) == 0 {
		c.waiting, c.busy, c.late = nil, false, false
		return letter{}, false
	}
	l := c.waiting[0]
	c.waiting = c.waiting[1:]
	return l, true
}

// gap is the entry that stands for those that were lost. c.mu is held.
func (c *courier) gap() letter {
	l := letter{
		message:   fmt.Sprintf("here %d messages are missing: the journal took none", c.lost),
		priority:  warning,
		fields:    map[string]string{fieldIdentifier: c.identifier, FieldMessageID: MessagesLost},
		delivered: make(chan struct{}),
	}
	c.lost = 0
	return l
}
