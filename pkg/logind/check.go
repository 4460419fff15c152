package logind

import (
	"context"
	"time"
)

// Delay asks logind how long it lets a shutdown be held, whichever file says so.
func (h Host) Delay(ctx context.Context) (time.Duration, error) {
	m, err := h.readManager(ctx)
	return m.delay, err
}
