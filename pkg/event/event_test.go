package event_test

import (
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/event"
)

func TestCredibleTime_WithinReach(t *testing.T) {
	t.Parallel()
	now := time.Now()
	east := time.FixedZone("", 24*60*60)
	for name, row := range map[string]struct{ from, want time.Time }{
		"none":                       {time.Time{}, time.Time{}},
		"one in UTC":                 {now.UTC(), now.UTC()},
		"one in a zone":              {time.Date(2026, 3, 1, 12, 0, 0, 0, east), time.Date(2026, 2, 28, 12, 0, 0, 0, time.UTC)},
		"one by the monotonic clock": {now, now},
		"in the last year":           {time.Date(2199, 12, 31, 23, 59, 59, 0, time.UTC), time.Date(2199, 12, 31, 23, 59, 59, 0, time.UTC)},
		"after that":                 {time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC), time.Time{}},
		"in the first year":          {time.Date(1970, 6, 1, 0, 0, 0, 0, time.UTC), time.Date(1970, 6, 1, 0, 0, 0, 0, time.UTC)},
		"before the first year":      {time.Date(1969, 12, 31, 0, 0, 0, 0, time.UTC), time.Time{}},
	} {
		if got := event.CredibleTime(row.from); got != row.want {
			t.Errorf("%s: %s becomes %s, want %s", name, row.from, got, row.want)
		}
	}
}
