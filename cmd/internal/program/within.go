package program

import "time"

// LastWords is how long a program that stops waits for those who pass on what has happened. Each of them ends within less, but for one
// that a disk holds up: that nobody is told is no reason not to stop.
const LastWords = 5 * time.Second

// Within waits for something to end, for no longer than limit, and tells whether it has.
func Within(limit time.Duration, wait func()) bool {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		wait()
	}()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-ended:
		return true
	case <-timer.C:
		return false
	}
}
