package notify

import (
	"os"
	"time"
)

// RetryAfter reads the header of that name, at a time.
func RetryAfter(header string, now time.Time) time.Duration { return parseRetryAfter(header, now) }

// OpenWith has files opened by a function until it is told to go back to how they are.
func OpenWith(open func(path string) (*os.File, error)) (back func()) {
	openFile = open
	return func() { openFile = os.Open }
}
