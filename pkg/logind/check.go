package logind

import (
	"context"
	"time"
)

// Delay asks logind how long it lets a shutdown be held, whichever file says so.
func Delay(ctx context.Context) (time.Duration, error) {
	m, err := readManager(ctx)
	return m.delay, err
}
