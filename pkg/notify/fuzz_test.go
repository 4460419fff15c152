package notify_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/notify"
)

// FuzzRetryAfter holds for whatever an endpoint writes into the header: the pause is between nothing and an hour, and the one that is meant
// if that is a date.
func FuzzRetryAfter(f *testing.F) {
	for _, header := range []string{
		"120", "0", "-1", "4294967295", "18446744073709551616", "Fri, 31 Dec 9999 23:59:59 GMT", "Sunday, 01-Mar-26 12:00:01 GMT", "Mon Jan  1 00:00:00 0001", "soon",
	} {
		f.Add(header, int64(1772366400))
	}
	f.Fuzz(func(t *testing.T, header string, seconds int64) {
		now := time.Unix(seconds%(1<<40), 0) // some 34,000 years either way
		pause := notify.RetryAfter(header, now)
		if pause < 0 || pause > time.Hour {
			t.Fatalf("%q at %s is a pause of %s", header, now, pause)
		}
		if until, err := http.ParseTime(header); err == nil && pause > 0 && pause < time.Hour && !now.Add(pause).Equal(until) {
			t.Fatalf("%q at %s is a pause of %s", header, now, pause)
		}
	})
}
